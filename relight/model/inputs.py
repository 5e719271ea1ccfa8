"""Segment: all that a forward pass may know. Knows no request, no allocator, no prefix index.

A step has at most two segments, one of made and one of given rows; a segment runs one family of
kernels. Rows are flat: the rows of one sequence are consecutive and ascending.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from relight.base.numerics import Family


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one role. All tensors are int64 on the model's device.

    What only the host can decide without waiting for the device (how many rows, which of them may
    close a group) is here as well, as tensors of fixed length.
    """

    family: Family
    token_ids: Tensor  # [rows]
    positions: Tensor  # [rows]
    sequence: Tensor  # [rows] index into the per-sequence tensors
    slots: Tensor  # [sequences]
    starts: Tensor  # [sequences] position of the first row
    counts: tuple[int, ...]  # rows of each sequence
    first_rows: Tensor  # [sequences] segment row of the first row
    page_table: Tensor  # [sequences, pages]
    max_length: int  # upper bound of positions + 1
    closing_rows: Mapping[int, Tensor]  # ratio -> rows that may be the last of a group
    kept_rows: Mapping[int, Tensor]  # ring length -> rows that are still in such a ring afterwards
    sample_rows: Tensor  # [draws] rows whose logits are wanted
    since: Tensor | None = None  # [sequences] the decoder sees no window row before; None: sees all

    @property
    def num_rows(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_sequences(self) -> int:
        return self.slots.shape[0]
