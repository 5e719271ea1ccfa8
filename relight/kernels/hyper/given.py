"""Hyper-connections of given rows, launched on a CUDA device. Knows no sublayer.

They are multiplied by the matrix unit: streams are bf16, and a float32 weight is the sum of three
that are, so products are exact and only the order of their sum differs from a step's.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from relight.kernels.codec import DenseWeight, FastLinear
from relight.kernels.forms import UNIT
from relight.kernels.hyper import Unspread, cuda
from relight.kernels.hyper.rows import RowHyper
from relight.kernels.passes import passes
from relight.kernels.toolbox import Toolbox

SPLIT_THREADS = 256


class GivenHyper(RowHyper):
    """`hyper` of the prefill family. `linear` multiplies given rows by bf16 weights."""

    def __init__(self, tools: Toolbox, linear: FastLinear) -> None:
        super().__init__(tools)
        self._linear = linear

    def _parts(
        self, streams: Tensor, fn: Tensor, late: Unspread | None
    ) -> Iterator[tuple[slice, Tensor, int]]:
        assert late is None, "given rows are spread at once"
        n, cut = len(streams), fn.shape[1] // cuda.CUTS
        values = self._tools.form.bf16 and streams.dtype == torch.bfloat16
        if len(fn) == cuda.HC or not values or cut % UNIT[16]:
            yield from super()._parts(streams, fn, None)
        elif n:
            w = self._split(fn, streams.shape[2])
            for part in passes(n, 4 * w.shape[0]):
                by_cut = streams[part].view(-1, cuda.CUTS, cut)
                yield part, self._linear.grouped(by_cut, w, torch.float32), cuda.PIECES

    def _split(self, fn: Tensor, width: int) -> DenseWeight:
        """The pieces of weights [outputs, INNER], cut by cut."""
        outputs, inner = fn.shape
        shape = (cuda.CUTS * cuda.CUT_ROWS, inner // cuda.CUTS)
        pieces = torch.empty(shape, dtype=torch.bfloat16, device=fn.device)
        kernel = cuda.split_weights(self._tools.form, self._held(width), torch.bfloat16, outputs)
        grid = (-(-inner // (2 * SPLIT_THREADS)), cuda.CUT_ROWS)
        self._tools.load(kernel, SPLIT_THREADS)(grid, fn, pieces)
        return DenseWeight(pieces)
