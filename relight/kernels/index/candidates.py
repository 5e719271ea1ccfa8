"""The definition of two-level selection: blocks of entries that one layer publishes for each row,
and selection inside them by later layers.

Scratch is that of `reference`, and a mask of the entries of a block of rows.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.index.reference import HIDDEN, ROWS, _best, _key_blocks, _score
from relight.kernels.invariant import family_rows, in_blocks
from relight.kernels.peek import most
from relight.kernels.rows import Rows


def select_and_publish(
    q: Tensor,
    weights: Tensor,
    keys: Rows,
    places: Tensor,
    counts: Sequence[int],
    visible: Tensor,
    k: int,
    size: int,
    blocks: int,
    family: Family,
) -> tuple[Tensor, Tensor]:
    def reduce(scores: Tensor, seen: Tensor) -> Tensor:
        return torch.cat([_best(k, scores), _best(blocks, _worth(scores, seen, size))], dim=1)

    every = -(-visible // size)  # blocks that a row sees
    simple = torch.cat([_first(k, visible), _first(blocks, every)], dim=1)
    needed = (visible > k) | (every > blocks)
    out = _by_sequence(q, weights, keys, places, counts, visible, simple, needed, family, reduce)
    # What is simple is so for either list alone.
    entries = torch.where((visible > k).unsqueeze(1), out[:, :k], simple[:, :k])
    listed = torch.where((every > blocks).unsqueeze(1), out[:, k:], simple[:, k:])
    return entries, listed


def select_within(
    q: Tensor,
    weights: Tensor,
    keys: Rows,
    places: Tensor,
    counts: Sequence[int],
    visible: Tensor,
    candidates: Tensor,
    k: int,
    size: int,
    family: Family,
) -> Tensor:
    def reduce(scores: Tensor, _seen: Tensor, listed: Tensor) -> Tensor:
        count = -(-scores.shape[1] // size)
        inside = torch.zeros(
            (listed.shape[0], count + 1), dtype=torch.bool, device=scores.device
        ).scatter_(1, torch.where(listed < 0, count, listed.clamp(max=count)), True)
        allowed = inside[:, :count].repeat_interleave(size, 1)[:, : scores.shape[1]]
        return _best(k, scores.masked_fill(~allowed, HIDDEN))

    return _by_sequence(
        q,
        weights,
        keys,
        places,
        counts,
        visible,
        _first(k, visible),
        visible > k,
        family,
        reduce,
        candidates,
    )


def _by_sequence(
    q: Tensor,
    weights: Tensor,
    keys: Rows,
    places: Tensor,
    counts: Sequence[int],
    visible: Tensor,
    simple: Tensor,
    needed: Tensor,
    family: Family,
    reduce: Callable[..., Tensor],
    *others: Tensor,
) -> Tensor:
    """`reduce(scores, visible, *others)` for blocks of rows of each sequence where it is needed,
    else what is simple. A sequence without a row that needs it is not scored."""
    tensors = (q, weights, visible, simple, needed, *others)
    parts = []
    for own, row in zip(
        places, zip(*(t.split(list(counts)) for t in tensors), strict=True), strict=True
    ):
        q, weights, seen, first, wanted, *rest = row
        if most(wanted.int(), 1):
            blocks = _key_blocks(keys, own[: most(seen, own.shape[0])])
            block = partial(_reduced, reduce, blocks)
            found = in_blocks(block, q, weights, seen, *rest, rows=family_rows(family, ROWS))
            first = torch.where(wanted.unsqueeze(1), found, first)
        parts.append(first)
    return torch.cat(parts) if parts else simple


def _reduced(
    reduce: Callable[..., Tensor],
    blocks: Sequence[Tensor],
    q: Tensor,
    weights: Tensor,
    seen: Tensor,
    *others: Tensor,
) -> Tensor:
    return reduce(_score(q, weights, seen, blocks), seen, *others)


def _first(count: int, seen: Tensor) -> Tensor:
    """0 … seen - 1 for each row [n, count], -1 behind."""
    listed = torch.arange(count, device=seen.device)
    return torch.where(listed < seen.unsqueeze(1), listed, -1)


def _worth(scores: Tensor, seen: Tensor, size: int) -> Tensor:
    """A block is worth its best entry, the one of the newest entry more than any other."""
    padded = F.pad(scores, (0, -scores.shape[1] % size), value=HIDDEN)
    worth = padded.unflatten(1, (-1, size)).amax(2)
    newest = (seen - 1).div(size, rounding_mode="floor").unsqueeze(1)
    is_newest = torch.arange(worth.shape[1], device=seen.device) == newest
    return torch.where(is_newest, torch.inf, worth)
