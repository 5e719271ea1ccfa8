"""The definition of store: the formats are those of `kernels/rows.py`."""

from torch import Tensor

from relight.kernels.rows import Rows


def put(rows: Rows, index: Tensor, values: Tensor) -> None:
    rows.put(index, values)


def get(rows: Rows, index: Tensor) -> Tensor:
    return rows.get(index)


def copy(source: Rows, source_index: Tensor, target: Rows, target_index: Tensor) -> None:
    target.put_packed(target_index, *source.get_packed(source_index))
