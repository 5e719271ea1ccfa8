"""Hyper-connections of given rows, launched on a CUDA device. Knows no sublayer.

Many rows are multiplied by the matrix unit: streams are bf16, and a float32 weight is the sum of
three that are, so products are exact and only the order of their sum differs from a step's.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from relight.kernels.codec import DenseWeight, FastLinear
from relight.kernels.hyper import cuda
from relight.kernels.hyper.rows import RowHyper
from relight.kernels.toolbox import Toolbox

SPLIT_THREADS = 256


class GivenHyper(RowHyper):
    """`hyper` of the prefill family. `linear` multiplies given rows by bf16 weights."""

    def __init__(self, tools: Toolbox, linear: FastLinear) -> None:
        super().__init__(tools)
        self._linear = linear

    def _parts(self, streams: Tensor, fn: Tensor) -> Iterator[tuple[slice, Tensor, int]]:
        outputs, n = len(fn), len(streams)
        if outputs == cuda.HC or streams.dtype != torch.bfloat16 or not self._tools.form.bf16:
            yield from super()._parts(streams, fn)
        elif n:
            pieces = torch.empty(
                (cuda.PIECES * outputs, fn.shape[1]), dtype=torch.bfloat16, device=fn.device
            )
            held = self._held(streams.shape[2])
            kernel = cuda.split_weights(self._tools.form, held, streams.dtype, outputs)
            grid = (-(-fn.shape[1] // (2 * SPLIT_THREADS)), outputs)
            self._tools.load(kernel, SPLIT_THREADS)(grid, fn, pieces)
            w = DenseWeight(pieces)
            found = self._linear.linear(streams.flatten(1), w, torch.float32)
            yield slice(0, n), found, cuda.PIECES
