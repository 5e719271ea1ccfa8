"""The definition of index: products of fixed shape, a block of rows of one sequence times a block
of its entries.

Scratch is ROWS * heads * KEYS floats (16 * 64 * 512 * 4 B = 2 MB) and one block's scores
(ROWS * E * 4 B), beside the decoded keys of one sequence (E * d * 4 B).
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.invariant import ALIGN, family_rows, in_blocks, keep_largest, tree_sum
from relight.kernels.peek import most
from relight.kernels.rows import Rows

ROWS = 16
"""Rows of a block of the prefill family."""

KEYS = 512
"""Entries of a block; blocks start at multiples of this and are padded with zeros."""

HIDDEN = float("-inf")
"""Score of an entry that a row does not see."""


def select(
    q: Tensor,
    weights: Tensor,
    keys: Rows,
    places: Tensor,
    counts: Sequence[int],
    visible: Tensor,
    k: int,
    family: Family,
) -> Tensor:
    listed = torch.arange(k, device=q.device)
    out = torch.where(listed < visible.unsqueeze(1), listed, -1)  # right where visible <= k
    best = partial(_best, k)
    rows = zip(*(x.split(list(counts)) for x in (q, weights, visible, out)), strict=True)
    parts = []
    for (q, weights, seen, first), own in zip(rows, places, strict=True):
        if most(seen, own.shape[0]) > k:
            found = _scored(q, weights, keys, own, seen, family, best)
            first = torch.where((seen > k).unsqueeze(1), found, first)
        parts.append(first)
    return torch.cat(parts) if parts else out


def scores(
    q: Tensor,
    weights: Tensor,
    keys: Rows,
    places: Tensor,
    counts: Sequence[int],
    visible: Tensor,
    family: Family,
) -> Tensor:
    width = places.shape[1]
    rows = zip(*(x.split(list(counts)) for x in (q, weights, visible)), strict=True)
    parts = [
        _scored(q, weights, keys, own, seen, family, lambda found: _widen(width, found)[:, :width])
        for (q, weights, seen), own in zip(rows, places, strict=True)
    ]
    return torch.cat(parts) if parts else q.new_full((0, width), HIDDEN)


def _scored(
    q: Tensor,
    weights: Tensor,
    keys: Rows,
    places: Tensor,
    visible: Tensor,
    family: Family,
    reduce: Callable[[Tensor], Tensor],
) -> Tensor:
    """`reduce(scores [rows, entries])` of the rows of one sequence with entries at `places` [E]."""
    blocks = _key_blocks(keys, places[: most(visible, places.shape[0])])
    return in_blocks(
        lambda q, weights, seen: reduce(_score(q, weights, seen, blocks)),
        q,
        weights,
        visible,
        rows=family_rows(family, ROWS),
    )


def _key_blocks(keys: Rows, places: Tensor) -> Sequence[Tensor]:
    """The keys in blocks [KEYS, d], zero behind the last one and in padded columns; one at
    least."""
    values = keys.get(places)
    count = max(-(-values.shape[0] // KEYS), 1) * KEYS
    values = F.pad(values, (0, -values.shape[1] % ALIGN, 0, count - values.shape[0]))
    blocks: Sequence[Tensor] = values.split(KEYS)
    return blocks


def _score(q: Tensor, weights: Tensor, seen: Tensor, blocks: Sequence[Tensor]) -> Tensor:
    """Scores of a block of rows, q [r, h, d] and weights [r, h], over the blocks of entries that
    one of them sees: [r, entries]."""
    heads = q.shape[1]
    q = F.pad(q, (0, blocks[0].shape[1] - q.shape[2], 0, -heads % ALIGN))
    parts = []
    for keys in blocks[: max(-(-most(seen, len(blocks) * KEYS) // KEYS), 1)]:
        dots = F.linear(q.flatten(0, 1), keys).unflatten(0, (q.shape[0], -1))[:, :heads]
        parts.append(tree_sum(dots.clamp_(min=0.0) * weights.unsqueeze(-1), 1))
    scores = torch.cat(parts, dim=1)
    entries = torch.arange(scores.shape[1], device=scores.device)
    return scores.masked_fill_(entries >= seen.unsqueeze(1), HIDDEN)


def _best(k: int, scores: Tensor) -> Tensor:
    """The k best entries of rows [r, k], ascending; of rows that see k at most it means nothing."""
    scores = _widen(k, scores)
    least = scores.topk(k, dim=1).values[:, -1]
    chosen = keep_largest(scores, least, torch.full_like(least, k, dtype=torch.int64))
    chosen &= scores > HIDDEN
    place = chosen.cumsum(1).masked_fill_(~chosen, 0)  # 1, 2, … in the list; 0 for the rest
    entries = torch.arange(scores.shape[1], device=scores.device).expand_as(place)
    listed = entries.new_full((scores.shape[0], k + 1), -1)
    return listed.scatter_(1, place, entries)[:, 1:]


def _widen(count: int, scores: Tensor) -> Tensor:
    """At least `count` columns."""
    return F.pad(scores, (0, max(count - scores.shape[1], 0)), value=HIDDEN)
