"""The indexer, launched on a CUDA device. Knows no layer."""

from collections.abc import Iterator

from torch import Tensor

from relight.kernels.block import in_place
from relight.kernels.index import cuda
from relight.kernels.index.reference import Asked
from relight.kernels.passes import passes, rows_of_a_pass
from relight.kernels.rows import Rows
from relight.kernels.sources import readable, source
from relight.kernels.toolbox import Toolbox

EVERY = -1
"""As `shortcut`: rows are scored however few entries they see."""


class RowIndex:
    """`select` and its kin, of keys in FP4, for either family: two launches a pass. Scratch is 4
    bytes an entry, or candidate, and row of a pass. Places, what rows see and whose they are must
    be older than the launch in front: kernels read them before it has ended (SM90)."""

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

    def select(self, asked: Asked, k: int, *, placed: bool = False) -> Tensor:
        """As `index.select` -> [n, k]."""
        n, entries = asked.rows, asked.entries
        best = asked.visible.new_empty((n, k))
        scratch = asked.q.new_empty((rows_of_a_pass(n, 4 * entries), entries))
        for part in _parts(asked):
            own = asked.part(part)
            if entries > k:  # else all rows take the shortcut
                self._score(own, k, scratch)
            self._choose(own, scratch, best[part], placed=placed)
        return best

    def select_and_publish(
        self, asked: Asked, k: int, size: int, blocks: int, *, placed: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As `index.select_and_publish` -> [n, k] and [n, blocks]. No row takes the shortcut: a
        block's worth is asked for however few entries there are."""
        best = asked.visible.new_empty((asked.rows, k))
        published = asked.visible.new_empty((asked.rows, blocks))
        for part in _parts(asked):
            own = asked.part(part)
            chosen = (best[part], None, size, published[part])
            self._choose(own, self.scores(own), *chosen, placed=placed)
        return best, published

    def select_within(
        self, asked: Asked, candidates: Tensor, k: int, size: int, *, placed: bool = False
    ) -> Tensor:
        """As `index.select_within` -> [n, k]: what a row sees of its candidates, which ascend, is
        scored as a list of its own, and nothing else."""
        found = asked.visible.new_empty((asked.rows, k))
        width = candidates.shape[1] * size
        scratch = asked.q.new_empty((rows_of_a_pass(asked.rows, 4 * width), width))
        for part in passes(asked.rows, 4 * width):
            own, among = asked.part(part), candidates[part].contiguous()
            self._score(own, k, scratch, among, size)
            self._choose(own, scratch, found[part], among, size, placed=placed)
        return found

    def scores(self, asked: Asked) -> Tensor:
        """As `index.scores` -> [n, E], but that what a row does not see may hold anything."""
        found = asked.q.new_empty((asked.rows, asked.entries))
        for part in _parts(asked):
            self._score(asked.part(part), EVERY, found[part])
        return found

    def _score(
        self,
        asked: Asked,
        shortcut: int,
        scores: Tensor,
        candidates: Tensor | None = None,
        size: int = 1,
    ) -> None:
        """Of the rows of a pass, into the first rows of scores [.., width]."""
        rows, entries, width = asked.rows, asked.entries, scores.shape[1]
        if not entries or not width:
            return
        kernel = cuda.scores(self._tools.form, asked.q.shape[1])
        launch = self._tools.load(kernel, cuda.SCORE_THREADS)
        span = cuda.span(rows, width)
        where = (*source(asked.keys), asked.places.contiguous(), entries, asked.sequence)
        given = (asked.q, asked.weights.contiguous(), *where, asked.visible, shortcut, span)
        among = (candidates, _count(candidates), size, width)
        launch((-(-width // span), rows), *given, *among, scores)

    def _choose(
        self,
        asked: Asked,
        scores: Tensor,
        best: Tensor,
        candidates: Tensor | None = None,
        size: int = 1,
        published: Tensor | None = None,
        *,
        placed: bool,
    ) -> None:
        """Of scores [.., width] the best of each row, of rows that see as many as best [n, k] has
        room for, all, or the places of these; and of blocks of entries, as many as published
        [n, blocks] has room for."""
        rows, k = best.shape
        launch = self._tools.load(cuda.topk(self._tools.form), cuda.TOP_THREADS)
        given = (asked.visible, asked.entries, scores.shape[1], k, candidates)
        blocks = _count(candidates if published is None else published)
        grid = (rows, 1 if published is None else 2)
        names = (asked.places.contiguous(), asked.sequence) if placed else (None, None)
        launch(grid, scores, *given, blocks, size, *names, best, published)


def _count(blocks: Tensor | None) -> int:
    return 0 if blocks is None else blocks.shape[1]


def _parts(asked: Asked) -> Iterator[slice]:
    return passes(asked.rows, 4 * asked.entries)
