"""The indexer of few rows, launched on a CUDA device. Knows no layer."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from relight.kernels.block import in_place
from relight.kernels.index import cuda
from relight.kernels.launch import Long
from relight.kernels.rows import Rows
from relight.kernels.sources import readable, source
from relight.kernels.toolbox import Toolbox

MOST_ROWS = 16
"""Rows of a launch: each has four bits that name its sequence, relative to the first one."""

EVERY = -1
"""As `shortcut`: rows are scored however few entries they see."""


class StepIndex:
    """The step family of `select`, of keys in FP4: two launches for each sixteen rows. Scratch is 4
    bytes an entry and row of a launch, 16 * E * 4 B at most."""

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

    def select(
        self,
        q: Tensor,
        weights: Tensor,
        keys: Rows,
        places: Tensor,
        counts: Sequence[int],
        visible: Tensor,
        k: int,
    ) -> Tensor:
        """As `index.select` -> [n, k]."""
        n, entries = len(q), places.shape[1]
        best = torch.empty((n, k), dtype=torch.int64, device=q.device)
        scratch = q.new_empty((min(n, MOST_ROWS), entries))
        launch = self._tools.load(cuda.topk(self._tools.form), cuda.TOP_THREADS)
        for at, to, sequences, first in launches(counts):
            seen = visible[at:to]
            if entries > k:  # else all rows take the shortcut
                given = (q[at:to], weights[at:to], keys, places[first:], seen)
                self._score(*given, sequences, k, scratch)
            launch((to - at, 1), scratch, seen, entries, k, best[at:to])
        return best

    def scores(
        self,
        q: Tensor,
        weights: Tensor,
        keys: Rows,
        places: Tensor,
        counts: Sequence[int],
        visible: Tensor,
    ) -> Tensor:
        """As `index.scores` -> [n, E], but that what a row does not see may hold anything."""
        found = q.new_empty((len(q), places.shape[1]))
        for at, to, sequences, first in launches(counts):
            given = (q[at:to], weights[at:to], keys, places[first:], visible[at:to])
            self._score(*given, sequences, EVERY, found[at:to])
        return found

    def _score(
        self,
        q: Tensor,
        weights: Tensor,
        keys: Rows,
        places: Tensor,
        visible: Tensor,
        sequences: int,
        shortcut: int,
        scores: Tensor,
    ) -> None:
        entries = places.shape[1]
        if not entries:
            return
        assert places.is_contiguous(), "places do not lie in one piece"
        kernel = cuda.scores(self._tools.form, q.shape[1])
        launch = self._tools.load(kernel, cuda.SCORE_THREADS)
        where = (*source(keys), places, entries, Long(sequences))
        grid = (-(-entries // cuda.ENTRIES), len(q))
        launch(grid, q, weights.contiguous(), *where, visible, shortcut, scores)


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
