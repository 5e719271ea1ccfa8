"""The indexer of few rows, launched on a CUDA device. Knows no layer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from relight.kernels.block import in_place
from relight.kernels.index import cuda
from relight.kernels.index.candidates import worth
from relight.kernels.index.reference import HIDDEN, Asked, first
from relight.kernels.launch import Long
from relight.kernels.rows import Rows
from relight.kernels.sources import readable, source
from relight.kernels.toolbox import Toolbox

MOST_ROWS = 16
"""Rows of a launch: each has four bits that name its sequence, relative to the first one."""

EVERY = -1
"""As `shortcut`: rows are scored however few entries they see."""


class StepIndex:
    """The step family of `select` and its kin, of keys in FP4: two launches for each sixteen rows.
    Scratch is 4 bytes an entry and row of a launch, 16 * E * 4 B at most; to publish, a row."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def takes(self, q: Tensor, keys: Rows) -> bool:
        """Whether this call is for the kernels: the same for all rows of a call site. Where keys
        are FP4, queries lie on its grid, too, and bf16 holds them exactly."""
        return (
            keys.format.name == "fp4"
            and keys.format.dim == cuda.DIM
            and q.shape[1] in cuda.HEADS
            and in_place(q)
            and readable(keys)
        )

    def select(self, asked: Asked, k: int) -> Tensor:
        """As `index.select` -> [n, k]."""
        n, entries = len(asked.q), asked.places.shape[1]
        best = asked.visible.new_empty((n, k))
        scratch = asked.q.new_empty((min(n, MOST_ROWS), entries))
        for own, sequences, to in _launches(asked):
            if entries > k:  # else all rows take the shortcut
                self._score(own, sequences, k, scratch)
            self._choose(scratch, own.visible, best[to])
        return best

    def select_and_publish(
        self, asked: Asked, k: int, size: int, blocks: int
    ) -> tuple[Tensor, Tensor]:
        """As `index.select_and_publish` -> [n, k] and [n, blocks]. No row takes the shortcut: a
        block's worth is asked for however few entries there are."""
        found, visible = self.scores(asked), asked.visible
        listed = torch.arange(found.shape[1], device=found.device)
        found.masked_fill_(listed >= visible.unsqueeze(1), HIDDEN)
        best = visible.new_empty((len(found), k))
        self._choose(found, visible, best)
        published = visible.new_empty((len(found), blocks))
        every = (visible + size - 1).div(size, rounding_mode="floor")
        self._choose(worth(found, visible, size), every, published)
        return best, published

    def select_within(self, asked: Asked, candidates: Tensor, k: int, size: int) -> Tensor:
        """As `index.select_within` -> [n, k]: what a row sees of its candidates, which ascend, is a
        list of entries to select from, and nothing else is scored."""
        visible = asked.visible
        listed = candidates.unsqueeze(2) * size + torch.arange(size, device=visible.device)
        listed = listed.flatten(1)
        inside = (listed >= 0) & (listed < visible.unsqueeze(1))
        at = torch.where(inside, listed, 0)
        rows = zip(asked.places, at.split(list(asked.counts)), strict=True)
        own = torch.cat([line.expand(len(some), -1).gather(1, some) for line, some in rows])
        alone = replace(asked, places=own, counts=(1,) * len(own), visible=inside.sum(1))
        chosen = self.select(alone, k)
        found = torch.where(chosen >= 0, listed.gather(1, chosen.clamp(min=0)), -1)
        return torch.where((visible > k).unsqueeze(1), found, first(k, visible))

    def scores(self, asked: Asked) -> Tensor:
        """As `index.scores` -> [n, E], but that what a row does not see may hold anything."""
        found = asked.q.new_empty((len(asked.q), asked.places.shape[1]))
        for own, sequences, to in _launches(asked):
            self._score(own, sequences, EVERY, found[to])
        return found

    def _score(self, asked: Asked, sequences: int, shortcut: int, scores: Tensor) -> None:
        """`sequences`: four bits for each row, which line of places is its own."""
        q, places = asked.q, asked.places
        entries = places.shape[1]
        if not entries:
            return
        kernel = cuda.scores(self._tools.form, q.shape[1])
        launch = self._tools.load(kernel, cuda.SCORE_THREADS)
        where = (*source(asked.keys), places, entries, Long(sequences))
        grid = (-(-entries // cuda.ENTRIES), len(q))
        launch(grid, q, asked.weights.contiguous(), *where, asked.visible, shortcut, scores)

    def _choose(self, scores: Tensor, visible: Tensor, best: Tensor) -> None:
        """Of scores [n, E] the best, of rows that see as many as best [n, k] has room for, all."""
        rows, k = best.shape
        if rows:
            launch = self._tools.load(cuda.topk(self._tools.form), cuda.TOP_THREADS)
            launch((rows, 1), scores, visible, scores.shape[1], k, best)


def _launches(asked: Asked) -> Iterator[tuple[Asked, int, slice]]:
    """Of each launch: what its rows ask, whose lines of places are relative to that of the first,
    as the four bits of each row say; and which rows of all they are."""
    places = asked.places.contiguous()
    for at, to, sequences, base in launches(asked.counts):
        owners = [base + (sequences >> 4 * row & 15) for row in range(to - at)]
        own = Asked(
            q=asked.q[at:to],
            weights=asked.weights[at:to],
            keys=asked.keys,
            places=places[base : owners[-1] + 1],
            counts=[owners.count(number) for number in range(base, owners[-1] + 1)],
            visible=asked.visible[at:to],
            family=asked.family,
        )
        yield own, sequences, slice(at, to)


def launches(counts: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Of each launch: the first row and the one behind the last, four bits for each row, and the
    sequence that they are relative to."""
    owners = [number for number, count in enumerate(counts) for _ in range(count)]
    at = 0
    while at < len(owners):
        first, to, bits = owners[at], at, 0
        while to < min(at + MOST_ROWS, len(owners)) and owners[to] - first < MOST_ROWS:
            bits |= owners[to] - first << 4 * (to - at)
            to += 1
        yield at, to, bits, first
        at = to
