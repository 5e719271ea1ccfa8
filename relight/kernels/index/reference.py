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
    sequence: Tensor,
    visible: Tensor,
    k: int,
    family: Family,
) -> Tensor:
    listed = torch.arange(k, device=q.device)
    out = torch.where(listed < visible.unsqueeze(1), listed, -1)  # right where visible <= k
    full = torch.where(visible > k)[0]
    for rows, found in _by_sequence(
        q[full],
        weights[full],
        keys,
        places,
        sequence[full],
        visible[full],
        family,
        partial(_best, k),
    ):
        out[full[rows]] = found
    return out


def scores(
    q: Tensor,
    weights: Tensor,
    keys: Rows,
    places: Tensor,
    sequence: Tensor,
    visible: Tensor,
    family: Family,
) -> Tensor:
    out = q.new_full((q.shape[0], places.shape[1]), HIDDEN)
    widen = partial(_widen, out.shape[1])
    for rows, found in _by_sequence(q, weights, keys, places, sequence, visible, family, widen):
        out[rows] = found
    return out


def _by_sequence(
    q: Tensor,
    weights: Tensor,
    keys: Rows,
    places: Tensor,
    sequence: Tensor,
    visible: Tensor,
    family: Family,
    reduce: Callable[[Tensor], Tensor],
) -> list[tuple[Tensor, Tensor]]:
    """For each sequence its rows and `reduce(scores [rows, entries])` of them."""
    results = []
    for s in sequence.unique().tolist():
        rows = torch.where(sequence == s)[0]
        most = min(int(visible[rows].max()), places.shape[1])
        blocks = _key_blocks(keys, places[s, :most])
        found = in_blocks(
            lambda q, weights, seen, blocks=blocks: reduce(_score(q, weights, seen, blocks)),
            q[rows],
            weights[rows],
            visible[rows],
            rows=family_rows(family, ROWS),
        )
        results.append((rows, found))
    return results


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
    for keys in blocks[: max(-(-int(seen.max()) // KEYS), 1)]:
        dots = F.linear(q.flatten(0, 1), keys).unflatten(0, (q.shape[0], -1))[:, :heads]
        parts.append(tree_sum(dots.clamp_(min=0.0) * weights.unsqueeze(-1), 1))
    scores = torch.cat(parts, dim=1)
    entries = torch.arange(scores.shape[1], device=scores.device)
    return scores.masked_fill_(entries >= seen.unsqueeze(1), HIDDEN)


def _best(k: int, scores: Tensor) -> Tensor:
    """The k best entries of rows that see more than k (or are padding) [r, k], ascending."""
    least = scores.topk(k, dim=1).values[:, -1]
    chosen = keep_largest(scores, least, torch.full_like(least, k, dtype=torch.int64))
    chosen &= scores > HIDDEN
    place = chosen.cumsum(1).masked_fill_(~chosen, 0)  # 1, 2, … in the list; 0 for the rest
    entries = torch.arange(scores.shape[1], device=scores.device).expand_as(place)
    listed = entries.new_full((scores.shape[0], k + 1), -1)
    return listed.scatter_(1, place, entries)[:, 1:]


def _widen(count: int, scores: Tensor) -> Tensor:
    return F.pad(scores, (0, max(count - scores.shape[1], 0)), value=HIDDEN)[:, :count]
