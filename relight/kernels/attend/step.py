"""Sparse attention, launched on a CUDA device. Knows no layer."""

import torch
from torch import Tensor

from relight.kernels.attend import cuda
from relight.kernels.attend.keys import KEY_BLOCK, Keys, Turn
from relight.kernels.block import in_place
from relight.kernels.passes import passes, rows_of_a_pass
from relight.kernels.sources import readable, source
from relight.kernels.toolbox import Toolbox


class StepAttend:
    """`attend` of either family: two launches a pass. Scratch is 4 bytes for each listed key and
    head of a row of a pass, and 4 more for 64 of them."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def takes(self, q: Tensor, keys: Keys, boundary: torch.dtype) -> bool:
        """Whether this call is for the kernels: the same for all rows of a call site."""
        fits = not shape_of(q, keys).objection
        return fits and q.dtype == boundary and readable(keys.window, keys.entries)

    def attend(
        self, q: Tensor, keys: Keys, sink: Tensor, scale: float, back: Turn | None = None
    ) -> Tensor:
        """As `attend.attend`: q [n, H, D] -> [n, H, D], of its dtype."""
        tools, shape = self._tools, shape_of(q, keys)
        q = q if in_place(q) else q.clone(memory_format=torch.contiguous_format)
        y = torch.empty_like(q)
        count = sum(one.shape[1] // KEY_BLOCK for one in keys.lists if one is not None)
        nbytes = 4 * shape.heads * count * (KEY_BLOCK + 1)
        kept = (rows_of_a_pass(len(q), nbytes), shape.heads, count)
        how = cuda.cut(tools.form, shape, len(q))
        scores, best = sink.new_empty((*kept, KEY_BLOCK)), sink.new_empty((*kept, how.parts))
        for part in passes(len(q), nbytes):
            rows, given = part.stop - part.start, addresses(keys.part(part))
            if count:
                launch = tools.load(cuda.scores(tools.form, shape, how), 32 * shape.chunks)
                grid = (count * how.parts * shape.groups(how.heads), rows)
                launch(grid, q[part], *given, float(scale), scores, best)
            kernel = cuda.values(tools.form, shape, how)
            launch = tools.load(kernel, 32 * how.warps, how.part_bytes)
            grid = (shape.dim // how.dims * shape.groups(cuda.TILE_HEADS), rows)
            turn: tuple[Tensor | None, Tensor | None, int] = (None, None, 0)
            if back:
                turn = (back.positions[part], back.frequencies, 2 * len(back.frequencies))
            launch(grid, scores, best, *given, sink, *turn, y[part])
        return y


def addresses(keys: Keys) -> tuple[Tensor | int | None, ...]:
    """As kernels take them: where rows lie, both lists and how many blocks each has."""
    lists = [None if one is None else one.contiguous() for one in keys.lists]
    blocks = [0 if one is None else one.shape[1] // KEY_BLOCK for one in lists]
    return (*source(keys.window), *source(keys.entries), *lists, *blocks)


def shape_of(q: Tensor, keys: Keys) -> cuda.Shape:
    entries = keys.window if keys.entries is None else keys.entries
    return cuda.Shape(q.shape[1], keys.window.format, entries.format, q.dtype)
