"""The indexer, launched on a CUDA device. Knows no layer."""

from collections.abc import Iterator

import torch
from torch import Tensor

from relight.kernels.block import in_place
from relight.kernels.index import cuda
from relight.kernels.index.candidates import worth
from relight.kernels.index.reference import HIDDEN, Asked, first
from relight.kernels.passes import passes, rows_of_a_pass
from relight.kernels.rows import Rows
from relight.kernels.sources import readable, source
from relight.kernels.toolbox import Toolbox

EVERY = -1
"""As `shortcut`: rows are scored however few entries they see."""


class RowIndex:
    """`select` and its kin, of keys in FP4, for either family: two launches a pass. Scratch is 4
    bytes an entry and row of a pass."""

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
        n, entries = asked.rows, asked.entries
        best = asked.visible.new_empty((n, k))
        scratch = asked.q.new_empty((rows_of_a_pass(n, 4 * entries), entries))
        for part in _parts(asked):
            own = asked.part(part)
            if entries > k:  # else all rows take the shortcut
                self._score(own, k, scratch)
            self._choose(scratch, own.visible, best[part])
        return best

    def select_and_publish(
        self, asked: Asked, k: int, size: int, blocks: int
    ) -> tuple[Tensor, Tensor]:
        """As `index.select_and_publish` -> [n, k] and [n, blocks]. No row takes the shortcut: a
        block's worth is asked for however few entries there are."""
        best = asked.visible.new_empty((asked.rows, k))
        published = asked.visible.new_empty((asked.rows, blocks))
        for part in _parts(asked):
            own = asked.part(part)
            found, visible = self.scores(own), own.visible
            listed = torch.arange(found.shape[1], device=found.device)
            found.masked_fill_(listed >= visible.unsqueeze(1), HIDDEN)
            self._choose(found, visible, best[part])
            every = (visible + size - 1).div(size, rounding_mode="floor")
            self._choose(worth(found, visible, size), every, published[part])
        return best, published

    def select_within(self, asked: Asked, candidates: Tensor, k: int, size: int) -> Tensor:
        """As `index.select_within` -> [n, k]: what a row sees of its candidates, which ascend, is a
        list of entries to select from, and nothing else is scored."""
        found = asked.visible.new_empty((asked.rows, k))
        for part in passes(asked.rows, 8 * candidates.shape[1] * size):
            found[part] = self._within(asked.part(part), candidates[part], k, size)
        return found

    def _within(self, asked: Asked, candidates: Tensor, k: int, size: int) -> Tensor:
        visible = asked.visible
        listed = candidates.unsqueeze(2) * size + torch.arange(size, device=visible.device)
        listed = listed.flatten(1)
        inside = (listed >= 0) & (listed < visible.unsqueeze(1))
        line = asked.sequence.unsqueeze(1) * asked.entries
        own = asked.places.take(line + torch.where(inside, listed, 0))
        chosen = self.select(asked.among(own, inside.sum(1)), k)
        found = torch.where(chosen >= 0, listed.gather(1, chosen.clamp(min=0)), -1)
        return torch.where((visible > k).unsqueeze(1), found, first(k, visible))

    def scores(self, asked: Asked) -> Tensor:
        """As `index.scores` -> [n, E], but that what a row does not see may hold anything."""
        found = asked.q.new_empty((asked.rows, asked.entries))
        for part in _parts(asked):
            self._score(asked.part(part), EVERY, found[part])
        return found

    def _score(self, asked: Asked, shortcut: int, scores: Tensor) -> None:
        """Of the rows of a pass, into the first rows of scores [.., E]."""
        rows, entries = asked.rows, asked.entries
        if not entries:
            return
        kernel = cuda.scores(self._tools.form, asked.q.shape[1])
        launch = self._tools.load(kernel, cuda.SCORE_THREADS)
        span = cuda.span(rows, entries)
        where = (*source(asked.keys), asked.places.contiguous(), entries, asked.sequence)
        given = (asked.q, asked.weights.contiguous(), *where, asked.visible, shortcut, span)
        launch((-(-entries // span), rows), *given, scores)

    def _choose(self, scores: Tensor, visible: Tensor, best: Tensor) -> None:
        """Of scores [.., E] the best of each row, of rows that see as many as best [n, k] has room
        for, all."""
        rows, k = best.shape
        launch = self._tools.load(cuda.topk(self._tools.form), cuda.TOP_THREADS)
        launch((rows, 1), scores, visible, scores.shape[1], k, best)


def _parts(asked: Asked) -> Iterator[slice]:
    return passes(asked.rows, 4 * asked.entries)
