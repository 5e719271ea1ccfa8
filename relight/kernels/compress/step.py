"""Compressors of few rows, launched on a CUDA device. Knows no layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from relight.kernels.block import in_words, strides
from relight.kernels.compress import cuda
from relight.kernels.launch import Long
from relight.kernels.rows import Rows
from relight.kernels.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups that may close, all [groups] int64: the entry that each makes, its sequence, and
    its row in the store, 0 where it does not close."""

    entry: Tensor
    sequence: Tensor
    place: Tensor


class StepCompress:
    """The step family of V4's compressors, from projected rows to stored entries: two launches."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def takes(self, ring: Tensor, ratio: int, rows: Rows, rope: int) -> bool:
        """Whether entries of `ratio` tokens, pooled from ring [slots, ring, values | gates], of
        which `rope` values are rotated, are stored in `rows` by these kernels."""
        stored, halves = rows.format, 2 if ratio == cuda.OVERLAP_RATIO else 1
        dim = stored.dim
        known = {"fp8": dim in cuda.THREADS, "fp4": dim == cuda.HADAMARD_WIDTH}
        return (
            known.get(stored.name, False)
            and ratio in cuda.RATIOS
            and rope == cuda.ROPE
            and ring.shape[2] == ring.stride(1) == 2 * halves * dim
            and ring.shape[1] >= halves * ratio
            and ring.data_ptr() % 16 == ring.stride(0) % 4 == 0
            and in_words(rows)
        )

    def put_raw(
        self,
        values: Tensor,
        gates: Tensor,
        ape: Tensor,
        positions: Tensor,
        places: Tensor,
        ring: Tensor,
    ) -> None:
        """values and gates [n, c * d], the gates with ape [ratio, c * d] by positions [n], into
        rows places [n] of the ring."""
        n, channels = values.shape
        assert all(x.is_contiguous() for x in (values, gates, ape)), "they lie in pieces"
        if n == 0:
            return
        kernel = cuda.put_raw(self._tools.form, channels, ape.shape[0])
        launch = self._tools.load(kernel, cuda.RAW_THREADS)
        grid = (-(-channels // cuda.RAW_THREADS), n)
        given = (values, gates, ape, positions, places)
        launch(grid, *given, ring, Long(ring.stride(0)), ring.shape[1])

    def close(
        self,
        ring: Tensor,
        ratio: int,
        slots: Tensor,
        groups: Groups,
        norm: Tensor,
        eps: float,
        frequencies: Tensor,
        rows: Rows,
        boundary: torch.dtype,
    ) -> None:
        """Pools each group that closes out of the ring of its sequence's slot, norms, rotates and
        stores it; index keys are multiplied by Hadamard's matrix first."""
        count = groups.entry.shape[0]
        if count == 0:
            return
        kernel = cuda.pool(self._tools.form, rows.format, ratio, boundary)
        launch = self._tools.load(kernel, cuda.THREADS[rows.format.dim])
        where = (groups.entry, groups.sequence, slots, groups.place)
        given = (ring, Long(ring.stride(0)), ring.shape[1], norm, eps, frequencies)
        launch((count, 1), *where, *given, *strides(rows))
