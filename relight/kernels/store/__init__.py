"""Writes, reads and moves packed rows of the cache. Knows no attention and no allocator."""

from typing import Protocol

from torch import Tensor

from relight.kernels.check import FLOATS, I64, expect
from relight.kernels.rows import Rows
from relight.kernels.store import reference


class FastStore(Protocol):
    """A kernel, chosen at load for rows of a family."""

    def takes(self, source: Rows, target: Rows) -> bool: ...

    def copy(
        self, source: Rows, source_index: Tensor, target: Rows, target_index: Tensor
    ) -> None: ...


def put(rows: Rows, index: Tensor, values: Tensor) -> None:
    """Rounds values [m, dim] to the format of `rows` and writes them to rows index [m] int64.

    Rows of format "fp8" get the official window rounding (floor 1e-4 on the block maximum). An
    index that occurs twice leaves either value: only rows that are never read may be written so.
    """
    expect(index, "index", (None,), I64)
    expect(values, "values", (index.shape[0], rows.format.dim), FLOATS)
    reference.put(rows, index, values)


def get(rows: Rows, index: Tensor) -> Tensor:
    """Rows index [m] -> values [m, dim] float32."""
    expect(index, "index", (None,), I64)
    return reference.get(rows, index)


def copy(
    source: Rows,
    source_index: Tensor,
    target: Rows,
    target_index: Tensor,
    fast: FastStore | None = None,
) -> None:
    """Copies the bytes of rows source_index [m] to target_index [m] of the same format."""
    expect(source_index, "source_index", (None,), I64)
    expect(target_index, "target_index", (source_index.shape[0],), I64)
    assert source.format == target.format, f"formats differ: {source.format}, {target.format}"
    if fast is not None and fast.takes(source, target):
        fast.copy(source, source_index, target, target_index)
        return
    reference.copy(source, source_index, target, target_index)
