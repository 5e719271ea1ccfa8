"""The definition of attend: batched products of fixed shape, a block of rows times 64 keys of each.

Scores, numerators, their sum and the weighted sum are taken block of keys by block of keys, with
the maximum so far. On a processor a listed row of a source is decoded once for several blocks of
rows, and blocks of keys that no row uses are left out; elsewhere nobody looks. Scratch with heads
of 512 dims: 2 KB for each decoded key, 32 MB at most, and 2 MB for a block of gathered keys.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.attend.keys import KEY_BLOCK, Keys
from relight.kernels.invariant import ALIGN, in_blocks, tree_sum
from relight.kernels.peek import distinct, some
from relight.kernels.rows import Rows

ROWS = 16
"""Rows of a block of the prefill family."""

LISTED_KEYS = 2**14
"""Of rows whose keys are decoded together, 16 rows at least: neighbours share most of a window."""


def attend(
    q: Tensor, keys: Keys, sink: Tensor, scale: float, family: Family, boundary: torch.dtype
) -> Tensor:
    count, heads, dim = q.shape
    sources = [(keys.window, keys.window_index)]
    if keys.entries is not None and keys.entry_index is not None:
        sources.append((keys.entries, keys.entry_index))
    q = F.pad(q.float(), (0, -dim % ALIGN, 0, -heads % ALIGN))

    def part(at: int, to: int) -> Tensor:
        decoded = [_decoded(rows, index[at:to]) for rows, index in sources]

        def block(q: Tensor, *lists: Tensor) -> Tensor:
            keys = [
                (values, *of_block)
                for (values, *_), *whole in zip(decoded, lists[::2], lists[1::2], strict=True)
                for of_block in zip(*(x.split(KEY_BLOCK, 1) for x in whole), strict=True)
            ]
            return _attend(q, keys, sink, scale, family, boundary)

        lists = [x for _, place, listed in decoded for x in (place, listed)]
        if family == "prefill":
            return in_blocks(block, q[at:to], *lists, rows=ROWS)
        return block(q[at:to], *lists)

    width = sum(index.shape[1] for _, index in sources)
    rows = max(LISTED_KEYS // (max(width, 1) * ROWS), 1) * ROWS
    out = [part(at, min(at + rows, count)) for at in range(0, max(count, 1), rows)]
    return torch.cat(out)[..., :dim]


def _decoded(rows: Rows, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the keys listed by index [r, K], -1 for none: values [u, d], which of them each is
    [r, K], and whether it is one. Rows that are not listed may hold anything, so what stands for no
    key is zero."""
    used, place = distinct(index)
    values = rows.get(used.clamp(min=0)).masked_fill_((used < 0).unsqueeze(1), 0.0)
    # One more row, so that there is one: a block's rows of padding name the first.
    return F.pad(values, (0, -values.shape[1] % ALIGN, 0, 1)), place, index >= 0


def _attend(
    q: Tensor,
    keys: list[tuple[Tensor, Tensor, Tensor]],
    sink: Tensor,
    scale: float,
    family: Family,
    boundary: torch.dtype,
) -> Tensor:
    """q [r, H, d], heads and dims padded; of each block of keys the values [u, d], which of them
    are a row's keys [r, 64], and whether they are -> [r, heads, d] in `boundary`.

    Products are those of all H heads, so that their shape is fit for a library; in between there
    are only the heads of `sink`. The maximum is the running one, over the keys and not the sink, as
    in official code: what a numerator is rounded against is the best key so far, and alone it is
    exactly 1.
    """
    heads = sink.shape[0]
    top = q.new_full((q.shape[0], heads), torch.finfo(q.dtype).min)
    denominator = torch.zeros_like(top)
    out = q.new_zeros((q.shape[0], heads, q.shape[2]))
    for values, place, listed in keys:
        if not listed.shape[1] or not some(listed):  # a list of no keys is one empty block
            continue
        block = values.index_select(0, place.flatten()).unflatten(0, place.shape)  # [r, 64, d]
        score = _products(q, block.transpose(1, 2), family)[:, :heads] * scale  # [r, heads, 64]
        score.masked_fill_(~listed.unsqueeze(1), float("-inf"))
        before, top = top, torch.maximum(top, score.amax(-1))
        shrink = torch.exp(before - top)  # exactly 1 where the block has no better key
        numerator = score.sub_(top.unsqueeze(-1)).exp_()
        denominator = denominator * shrink + tree_sum(numerator, -1)
        numerator = F.pad(numerator.to(boundary).float(), (0, 0, 0, q.shape[1] - heads))
        out = out.mul_(shrink.unsqueeze(-1)).add_(_products(numerator, block, family)[:, :heads])
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
