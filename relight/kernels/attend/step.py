"""Sparse attention of few rows, launched on a CUDA device. Knows no layer."""

import torch
from torch import Tensor

from relight.kernels.attend import cuda
from relight.kernels.block import in_place
from relight.kernels.rows import Rows
from relight.kernels.sources import readable, source
from relight.kernels.toolbox import Toolbox


class StepAttend:
    """The step family of `attend`: two launches. Scratch is 4 bytes a row, head and listed key."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def takes(self, q: Tensor, window: Rows, entries: Rows | None, boundary: torch.dtype) -> bool:
        """Whether this call is for the kernels: the same for all rows of a call site."""
        fits = not _shape(q, window, entries).objection
        return fits and q.dtype == boundary and readable(window, entries)

    def attend(
        self,
        q: Tensor,
        window: Rows,
        window_index: Tensor,
        entries: Rows | None,
        entry_index: Tensor | None,
        sink: Tensor,
        scale: float,
    ) -> Tensor:
        """As `attend.attend`: q [n, H, D] -> [n, H, D], of its dtype."""
        tools, shape, rows = self._tools, _shape(q, window, entries), len(q)
        q = q if in_place(q) else q.clone(memory_format=torch.contiguous_format)
        y = torch.empty_like(q)
        if rows == 0:
            return y
        lists = [
            window_index.contiguous(),
            None if entry_index is None else entry_index.contiguous(),
        ]
        blocks = [0 if one is None else one.shape[1] // cuda.KEY_BLOCK for one in lists]
        given = (*source(window), *source(entries), *lists, *blocks)
        count = sum(blocks)
        scores = sink.new_empty((rows, shape.heads, count, cuda.KEY_BLOCK))
        best = sink.new_empty((rows, shape.heads, count))
        if count:
            launch = tools.load(cuda.scores(tools.form, shape), 32 * shape.chunks)
            launch((count * shape.groups, rows), q, *given, float(scale), scores, best)
        launch = tools.load(cuda.values(tools.form, shape), cuda.VALUE_THREADS)
        launch((shape.chunks * shape.groups, rows), scores, best, *given, sink, y)
        return y


def _shape(q: Tensor, window: Rows, entries: Rows | None) -> cuda.Shape:
    of_entries = window.format if entries is None else entries.format
    return cuda.Shape(q.shape[1], window.format, of_entries, q.dtype)
