"""The definition of attend: batched products of fixed shape, a block of rows times 64 keys of each.

Scores, numerators, their sum and the weighted sum are taken block of keys by block of keys, with
the maximum so far. On a processor each listed row of a source is decoded once a block of rows, and
blocks of keys that no row uses are left out; elsewhere nobody looks. Scratch for 16 rows, 64 heads
of 512 dims and K keys: 4 KB * K for scores, 2 KB for each decoded key, 2 MB for a block of gathered
keys.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.invariant import ALIGN, in_blocks, tree_sum
from relight.kernels.peek import distinct, some
from relight.kernels.rows import Rows

KEY_BLOCK = 64

ROWS = 16
"""Rows of a block of the prefill family."""

KeyBlock = tuple[Tensor, Tensor, Tensor]
"""Decoded keys [u, d], for each row which of them are its 64 [r, 64], and which are none."""


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
        return _attend(q, keys, sink, scale, family, boundary)

    q = F.pad(q.float(), (0, -dim % ALIGN, 0, -heads % ALIGN))
    # Indexes are shifted by one, so that a row of padding (zeros) lists no keys.
    shifted = [index + 1 for _, index in sources]
    if family == "prefill":
        out = in_blocks(block, q, *shifted, rows=ROWS)
    else:  # what is elementwise may be done for several at once, since it is the same for each
        parts = zip(*(x.split(ROWS) for x in (q, *shifted)), strict=True)
        out = torch.cat([block(*part) for part in parts])
    return out[:, :heads, :dim]


def _key_blocks(rows: Rows, index: Tensor) -> list[KeyBlock]:
    """The keys listed by index [r, K], -1 for none, in blocks. Rows that are not listed may hold
    anything, so what stands for no key is zero."""
    used, place = distinct(index)
    values = rows.get(used.clamp(min=0)).masked_fill_((used < 0).unsqueeze(1), 0.0)
    values = F.pad(values, (0, -values.shape[1] % ALIGN))
    blocks = zip(place.split(KEY_BLOCK, 1), (index < 0).split(KEY_BLOCK, 1), strict=True)
    return [(values, part, none) for part, none in blocks if part.numel() and some(~none)]


def _attend(
    q: Tensor,
    keys: list[KeyBlock],
    sink: Tensor,
    scale: float,
    family: Family,
    boundary: torch.dtype,
) -> Tensor:
    """q [r, H, d], padded; keys as above -> [r, H, d] in `boundary`.

    The maximum is the running one, over the keys and not the sink, as in official code: what a
    numerator is rounded against is the best key so far, and alone it is exactly 1.
    """
    top = q.new_full(q.shape[:2], torch.finfo(q.dtype).min)
    denominator = torch.zeros_like(top)
    out = torch.zeros_like(q)
    for values, place, none in keys:
        block = values.index_select(0, place.flatten()).unflatten(0, place.shape)  # [r, 64, d]
        score = _products(q, block.transpose(1, 2), family).mul_(scale)  # [r, H, 64]
        score.masked_fill_(none.unsqueeze(1), float("-inf"))
        before, top = top, torch.maximum(top, score.amax(-1))
        shrink = torch.exp(before - top)  # exactly 1 where the block has no better key
        numerator = score.sub_(top.unsqueeze(-1)).exp_()
        denominator = denominator * shrink + tree_sum(numerator, -1)
        weighted = _products(numerator.to(boundary).float(), block, family)
        out = out.mul_(shrink.unsqueeze(-1)).add_(weighted)
    denominator = denominator + torch.exp(sink - top)
    return (out / denominator.unsqueeze(-1)).to(boundary)


def _products(a: Tensor, b: Tensor, family: Family) -> Tensor:
    """a [r, m, k] times b [r, k, n] -> [r, m, n]: for given rows a batch of always 16, for made
    rows one by one."""
    if family == "prefill":
        return torch.bmm(a, b)
    out = a.new_empty((*a.shape[:2], b.shape[2]))
    for one, other, result in zip(a.split(1), b.split(1), out.split(1), strict=True):
        torch.bmm(one, other, out=result)
    return out
