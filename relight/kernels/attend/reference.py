"""The definition of attend: batched products of fixed shape, a block of rows times 64 keys of each.

All scores of a block of rows come first, so the maximum is the row's own; then numerators, their
sums and the weighted sums, block of keys by block of keys. Of every source each listed row is
decoded once a block of rows. Scratch for 16 rows, 64 heads of 512 dims and K keys: 4 KB * K for
scores, 2 KB for each different key, 2 MB for a block of gathered keys.
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
    """q [r, H, d], padded; keys as above -> [r, H, d] in `boundary`."""
    scores = []
    top = sink.expand(q.shape[:2])
    for values, place in keys:
        score = torch.bmm(q, values[place].transpose(1, 2)) * scale  # [r, H, 64]
        score.masked_fill_((place == 0).unsqueeze(1), float("-inf"))
        top = torch.maximum(top, score.amax(-1))
        scores.append(score)
    denominator = torch.exp(sink - top)
    out = torch.zeros_like(q)
    for score, (values, place) in zip(scores, keys, strict=True):
        numerator = torch.exp(score - top.unsqueeze(-1))
        denominator = denominator + tree_sum(numerator, -1)
        out = out + torch.bmm(numerator.to(boundary).float(), values[place])
    return (out / denominator.unsqueeze(-1)).to(boundary)
