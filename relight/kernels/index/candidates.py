"""The definition of two-level selection: blocks of entries that one layer publishes for each row,
and selection inside them by later layers.

Scratch is that of `reference`, and a mask of the entries of a block of rows.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.kernels.index.reference import HIDDEN, Asked, best, first, scored
from relight.kernels.peek import most


def select_and_publish(asked: Asked, k: int, size: int, blocks: int) -> tuple[Tensor, Tensor]:
    def reduce(scores: Tensor, seen: Tensor) -> Tensor:
        return torch.cat([best(k, scores), best(blocks, worth(scores, seen, size))], dim=1)

    visible = asked.visible
    every = -(-visible // size)  # blocks that a row sees
    simple = torch.cat([first(k, visible), first(blocks, every)], dim=1)
    needed = (visible > k) | (every > blocks)
    out = _where_needed(asked, simple, needed, reduce)
    # What is simple is so for either list alone.
    entries = torch.where((visible > k).unsqueeze(1), out[:, :k], simple[:, :k])
    listed = torch.where((every > blocks).unsqueeze(1), out[:, k:], simple[:, k:])
    return entries, listed


def select_within(asked: Asked, candidates: Tensor, k: int, size: int) -> Tensor:
    def reduce(scores: Tensor, _seen: Tensor, listed: Tensor) -> Tensor:
        count = -(-scores.shape[1] // size)
        inside = torch.zeros(
            (listed.shape[0], count + 1), dtype=torch.bool, device=scores.device
        ).scatter_(1, torch.where(listed < 0, count, listed.clamp(max=count)), True)
        allowed = inside[:, :count].repeat_interleave(size, 1)[:, : scores.shape[1]]
        return best(k, scores.masked_fill(~allowed, HIDDEN))

    visible = asked.visible
    return _where_needed(asked, first(k, visible), visible > k, reduce, candidates)


def _where_needed(
    asked: Asked, simple: Tensor, needed: Tensor, reduce: Callable[..., Tensor], *others: Tensor
) -> Tensor:
    """`reduce(scores, visible, *others)` of the rows that need it, else what is simple. A sequence
    without a row that needs it is not scored."""
    parts = []
    for own, (listed, wanted, *rest) in asked.by_sequence(simple, needed, *others):
        if most(wanted.int(), 1):
            found = scored(own, reduce, *rest)
            listed = torch.where(wanted.unsqueeze(1), found, listed)
        parts.append(listed)
    return torch.cat(parts) if parts else simple


def worth(scores: Tensor, seen: Tensor, size: int) -> Tensor:
    """A block is worth its best entry, the one of the newest entry more than any other."""
    padded = F.pad(scores, (0, -scores.shape[1] % size), value=HIDDEN)
    most = padded.unflatten(1, (-1, size)).amax(2)
    newest = (seen - 1).div(size, rounding_mode="floor").unsqueeze(1)
    is_newest = torch.arange(most.shape[1], device=seen.device) == newest
    return torch.where(is_newest, torch.inf, most)
