"""Segment: all that a forward pass may know. Knows no request, no allocator, no prefix index.

A step has at most two segments, one of given and one of made rows; a segment runs one family of
kernels. Rows are flat: the rows of one sequence are consecutive and ascending.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from relight.base.numerics import Family


@dataclass(frozen=True, slots=True)
class Groups:
    """Compressed groups that may close in this segment, for one ratio.

    A group of a made row that does not close has the place of the null page, whose rows are never
    read: so the work of a step does not depend on positions that only the device knows.
    """

    row: Tensor  # [groups] segment row of the group's last token
    entry: Tensor  # [groups] number of the entry in its sequence, position // ratio
    place: Tensor  # [groups] row of the paged store


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one role. All tensors are int64 on the model's device.

    `window_index` lists, for each row, the keys of its window in 64-key blocks that start at
    absolute positions: entries of `window_source`, -1 where the window has no key. What the source
    is depends on the family: the step family reads the rings (rows are stored first), the prefill
    family reads a scratch of `history` ring rows a sequence followed by the segment's own rows.
    """

    family: Family
    token_ids: Tensor  # [rows]
    positions: Tensor  # [rows]
    sequence: Tensor  # [rows] index into the per-sequence tensors
    slots: Tensor  # [sequences]
    starts: Tensor  # [sequences] position of the first row
    counts: Tensor  # [sequences] rows
    first_rows: Tensor  # [sequences] segment row of the first row
    page_table: Tensor  # [sequences, pages]
    max_length: int  # upper bound of positions + 1
    groups: Mapping[int, Groups]  # by ratio
    sample_rows: Tensor  # [draws] rows whose logits are wanted

    @property
    def num_rows(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_sequences(self) -> int:
        return self.slots.shape[0]
