"""Rows of the cache as arguments of kernels that read them (`Source` of `cuda/keys.cuh`). Knows no
op."""

from torch import Tensor

from relight.kernels.block import strides
from relight.kernels.launch import Long
from relight.kernels.rows import Rows

Source = tuple[Tensor | None, Tensor | None, Long, Long, int, int, int]

NOTHING: Source = (None, None, Long(0), Long(0), 1, 0, 0)
"""Of which no row is listed."""


def source(rows: Rows | None) -> Source:
    return NOTHING if rows is None else strides(rows)


def readable(*several: Rows | None) -> bool:
    """Whether kernels may read them as they lie: each row from a multiple of 16 bytes on, and
    fewer than 2^31 rows."""
    return all(
        rows.count < 2**31
        and rows.data.data_ptr() % 16 == rows.data.stride(0) % 16 == rows.data.stride(1) % 16 == 0
        for rows in several
        if rows is not None
    )
