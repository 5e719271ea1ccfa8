"""The definition of attend: batched products of fixed shape, a block of rows times 64 keys of each.

Scores, numerators, their sum and the weighted sum are taken block of keys by block of keys, with
the maximum so far. Of every source each listed row is decoded once a block of rows. Scratch for 16
rows, 64 heads of 512 dims and K keys: 4 KB * K for scores, 2 KB for each different key, 2 MB for a
block of gathered keys.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.invariant import ALIGN, family_rows, in_blocks, tree_sum
from relight.kernels.rows import Rows

KEY_BLOCK = 64

ROWS = 16
"""Rows of a block of the prefill family."""


def attend(
    q: Tensor,
    window: Rows,
    window_index: Tensor,
    entries: Rows | None,
    entry_index: Tensor | None,
    sink: Tensor,
    scale: float,
    family: Family,
    boundary: torch.dtype,
) -> Tensor:
    _, heads, dim = q.shape
    sources = [(window, window_index)]
    if entries is not None and entry_index is not None:
        sources.append((entries, entry_index))
    sink = F.pad(sink, (0, -heads % ALIGN))

    def block(q: Tensor, *indexes: Tensor) -> Tensor:
        keys = [
            part
            for (rows, _), index in zip(sources, indexes, strict=True)
            for part in _key_blocks(rows, index - 1)
        ]
        return _attend(q, keys, sink, scale, boundary)

    q = F.pad(q.float(), (0, -dim % ALIGN, 0, -heads % ALIGN))
    # Indexes are shifted by one, so that a row of padding (zeros) lists no keys.
    shifted = [index + 1 for _, index in sources]
    out = in_blocks(block, q, *shifted, rows=family_rows(family, ROWS))
    return out[:, :heads, :dim]


def _key_blocks(rows: Rows, index: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The keys listed by index [r, K] in blocks that some row uses: what is decoded [u, d], and for
    each row which of it [r, 64]. The first decoded row is zero and stands for no key."""
    used, place = index.clamp(min=-1).unique(return_inverse=True)
    values = rows.get(used[used >= 0])
    none = values.shape[0] - used.shape[0] + 1  # 1 where no list has a gap, then places are shifted
    values = F.pad(values, (0, -values.shape[1] % ALIGN, 1, 0))
    return [
        (values, part) for part in (place + none).split(KEY_BLOCK, dim=1) if bool((part > 0).any())
    ]


def _attend(
    q: Tensor,
    keys: list[tuple[Tensor, Tensor]],
    sink: Tensor,
    scale: float,
    boundary: torch.dtype,
) -> Tensor:
    """q [r, H, d], padded; keys as above -> [r, H, d] in `boundary`.

    The maximum is the running one, over the keys and not the sink, as in official code: what a
    numerator is rounded against is the best key so far, and alone it is exactly 1.
    """
    top = q.new_full(q.shape[:2], torch.finfo(q.dtype).min)
    denominator = torch.zeros_like(top)
    out = torch.zeros_like(q)
    for values, place in keys:
        block = values[place]  # [r, 64, d]
        score = torch.bmm(q, block.transpose(1, 2)) * scale  # [r, H, 64]
        score.masked_fill_((place == 0).unsqueeze(1), float("-inf"))
        before, top = top, torch.maximum(top, score.amax(-1))
        shrink = torch.exp(before - top)  # exactly 1 where the block has no better key
        numerator = torch.exp(score - top.unsqueeze(-1))
        denominator = denominator * shrink + tree_sum(numerator, -1)
        weighted = torch.bmm(numerator.to(boundary).float(), block)
        out = out * shrink.unsqueeze(-1) + weighted
    denominator = denominator + torch.exp(sink - top)
    return (out / denominator.unsqueeze(-1)).to(boundary)
