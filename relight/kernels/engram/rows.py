"""n-grams, launched on a CUDA device. Knows no layer."""

import torch
from torch import Tensor

from relight.kernels.block import in_place
from relight.kernels.engram import cuda
from relight.kernels.toolbox import Toolbox


class RowEngram:
    """`engram` of either family: a launch each. A table may be a part of one, brought for these
    tokens, with places in that part for rows."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def takes(self, streams: Tensor, boundary: torch.dtype) -> bool:
        """Whether these streams [n, hc, D] are for the kernels: the same for all rows of a call
        site."""
        return (
            cuda.block(streams.shape[2]) is not None
            and streams.dtype == boundary
            and in_place(streams)
        )

    def takes_table(self, table: Tensor, scale: Tensor) -> bool:
        """table [R, d] and scale [R, d / 32]."""
        whole = table.is_contiguous() and scale.is_contiguous()
        return whole and table.shape[1] % cuda.GROUP == 0

    def table_rows(self, classes: Tensor, factors: Tensor, primes: Tensor) -> Tensor:
        """As `engram.table_rows`: classes [n, N] -> [n, (N - 1) * heads]."""
        n, length = classes.shape
        rows = classes.new_empty((n, primes.numel()))
        if n:
            launch = self._tools.load(cuda.table_rows(self._tools.form), cuda.ROWS_THREADS)
            given = (classes.contiguous(), factors, primes.contiguous())
            launch((n, 1), *given, rows, length, primes.shape[1])
        return rows

    def gather(self, table: Tensor, scale: Tensor, rows: Tensor, boundary: torch.dtype) -> Tensor:
        """As `engram.gather`, of rows [n, c] -> [n, c * d], but in `boundary`, which holds these
        values exactly."""
        (n, columns), width = rows.shape, table.shape[1]
        values = torch.empty((n, columns * width), dtype=boundary, device=table.device)
        if n:
            kernel = cuda.gather(self._tools.form, boundary)
            launch = self._tools.load(kernel, cuda.GATHER_THREADS)
            blocks = -(-columns * width // (cuda.GATHERED * cuda.GATHER_THREADS))
            launch((n, blocks), table, scale, rows.contiguous(), values, columns, width)
        return values

    def gate(self, streams: Tensor, mapped: Tensor, gain: Tensor, eps: float) -> Tensor:
        """As `engram.gate`: streams [n, hc, D] and mapped [n, (hc + 1) * D] of their dtype."""
        n, hc, width = streams.shape
        y = torch.empty_like(streams)
        held = cuda.block(width)
        assert held is not None, f"{width} columns are not shared evenly by 32 threads"
        assert mapped.dtype == streams.dtype, f"mapped is {mapped.dtype}"
        if n:
            kernel = cuda.gate(self._tools.form, held, streams.dtype)
            launch = self._tools.load(kernel, held.threads)
            given = (streams, mapped.contiguous(), gain, float(eps), float(width) ** -0.5)
            launch((n, hc), *given, y)
        return y
