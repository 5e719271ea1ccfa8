"""The definition of index: products of fixed shape, a block of rows of one sequence times a block
of its entries.

Scratch is ROWS * heads * KEYS floats (16 * 64 * 512 * 4 B = 2 MB) and one block's scores
(ROWS * E * 4 B), beside the decoded keys of one sequence (E * d * 4 B).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

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


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of the keys: the arguments that all functions of `index` share. The keys of
    entry e of sequence s are row places[s, e] of `keys`. The rows of a sequence follow each other,
    counts[s] of them, and `sequence` says the same on the device."""

    q: Tensor  # [n, h, d] float32
    weights: Tensor  # [n, h] float32
    keys: Rows
    places: Tensor  # [S, E] int64
    counts: Sequence[int]  # [S], n in all
    sequence: Tensor  # [n] int64, ascending
    visible: Tensor  # [n] int64; row i sees the first visible[i] entries
    family: Family

    @property
    def rows(self) -> int:
        return self.q.shape[0]

    @property
    def entries(self) -> int:
        return self.places.shape[1]

    def by_sequence(self, *others: Tensor) -> Iterator[tuple["Asked", tuple[Tensor, ...]]]:
        """What each sequence asks, and its rows of the others [n, ..]."""
        tensors = (self.q, self.weights, self.visible, *others)
        rows = zip(*(x.split(list(self.counts)) for x in tensors), strict=True)
        for number, (q, weights, seen, *rest) in enumerate(rows):
            places = self.places[number : number + 1]
            counts = self.counts[number : number + 1]
            first = torch.zeros_like(seen)
            own = Asked(q, weights, self.keys, places, counts, first, seen, self.family)
            yield own, tuple(rest)

    def part(self, rows: slice) -> "Asked":
        """What these rows ask."""
        if rows == slice(0, self.rows):
            return self
        ends = accumulate(self.counts)
        both = zip(ends, self.counts, strict=True)
        counts = [max(0, min(e, rows.stop) - max(e - count, rows.start)) for e, count in both]
        return replace(
            self,
            q=self.q[rows],
            weights=self.weights[rows],
            counts=counts,
            sequence=self.sequence[rows],
            visible=self.visible[rows],
        )

    def among(self, places: Tensor, visible: Tensor) -> "Asked":
        """The same of entries places [n, E], a list for each row, of which it sees the first."""
        alone = torch.arange(self.rows, device=places.device)
        counts = (1,) * self.rows
        return replace(self, places=places, counts=counts, sequence=alone, visible=visible)


def select(asked: Asked, k: int) -> Tensor:
    out = first(k, asked.visible)  # right where visible <= k
    parts = []
    for own, (listed,) in asked.by_sequence(out):
        if most(own.visible, own.places.shape[1]) > k:
            found = scored(own, lambda scores, _seen: best(k, scores))
            listed = torch.where((own.visible > k).unsqueeze(1), found, listed)
        parts.append(listed)
    return torch.cat(parts) if parts else out


def scores(asked: Asked) -> Tensor:
    width = asked.places.shape[1]
    parts = [
        scored(own, lambda scores, _seen: _widen(width, scores)[:, :width])
        for own, _ in asked.by_sequence()
    ]
    return torch.cat(parts) if parts else asked.q.new_full((0, width), HIDDEN)


def scored(asked: Asked, reduce: Callable[..., Tensor], *others: Tensor) -> Tensor:
    """`reduce(scores [rows, entries], visible, *others)` for blocks of rows of one sequence."""
    (places,) = asked.places
    blocks = _key_blocks(asked.keys, places[: most(asked.visible, places.shape[0])])
    return in_blocks(
        lambda q, weights, seen, *rest: reduce(_score(q, weights, seen, blocks), seen, *rest),
        asked.q,
        asked.weights,
        asked.visible,
        *others,
        rows=family_rows(asked.family, ROWS),
    )


def first(count: int, seen: Tensor) -> Tensor:
    """0 … seen - 1 for each row [n, count], -1 behind."""
    listed = torch.arange(count, device=seen.device)
    return torch.where(listed < seen.unsqueeze(1), listed, -1)


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


def best(k: int, scores: Tensor) -> Tensor:
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
