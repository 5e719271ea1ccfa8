"""The device memory that holds all state: pages, slots and records as blocks of bytes. Knows where
a row lies, not whose it is.

Three tensors of bytes, one block a row; every other view is a strided window into them, so the
bytes that `cache/layout` counts are the bytes that exist.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from relight.base.config import ModelConfig
from relight.base.numerics import Numerics
from relight.cache.layout import BlockLayout, Field, Layout, layout


class Blocks:
    """`count` blocks of one layout in one tensor."""

    def __init__(self, spec: BlockLayout, count: int, device: torch.device) -> None:
        self.spec = spec
        self.count = count
        self.bytes = torch.zeros((count, spec.bytes), dtype=torch.uint8, device=device)

    def data(self, field: Field) -> Tensor:
        """The data parts of a field: [blocks, layers, rows, bytes]."""
        return self._part(field, field.data_offset, field.format.data_bytes)

    def scales(self, field: Field) -> Tensor:
        """The scale groups of a field: [blocks, layers, rows, bytes]."""
        return self._part(field, field.scale_offset, field.format.scale_bytes)

    def _part(self, field: Field, offset: int, width: int) -> Tensor:
        layers, rows = len(field.layers), field.rows
        part = self.bytes[:, offset : offset + layers * rows * width]
        return part.view(self.count, layers, rows, width)


class Pool:
    """All state on one device. Page 0 is the null page: its rows are written and never read."""

    def __init__(
        self,
        config: ModelConfig,
        numerics: Numerics,
        device: torch.device,
        *,
        num_pages: int,
        num_slots: int,
        num_records: int,
        draft: bool = False,
    ) -> None:
        self.layout: Layout = layout(config, numerics, draft=draft)
        self.pages = Blocks(self.layout.page, num_pages, device)
        self.slots = Blocks(self.layout.slot, num_slots, device)
        self.records = Blocks(self.layout.record, num_records, device)

    @property
    def nbytes(self) -> int:
        return sum(blocks.bytes.nbytes for blocks in (self.pages, self.slots, self.records))

    @property
    def device(self) -> torch.device:
        return self.pages.bytes.device

    def take_record(self, slot: int, record: int, boundary: int) -> None:
        """Copies what is needed to go on at `boundary` from the rings of a slot to a record. The
        slot may be up to `REWIND_ROWS` past the boundary."""
        for kept, ring, at in self._pairs(boundary):
            kept[record] = ring[slot][:, at]

    def restore_record(self, slot: int, record: int, boundary: int) -> None:
        """The inverse of `take_record`."""
        for kept, ring, at in self._pairs(boundary):
            ring[slot][:, at] = kept[record]

    def _pairs(self, boundary: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(record part, ring part, ring rows) of every kind; parts are [blocks, layers, rows,
        width]."""
        for field in self.layout.record.fields:
            ring = self.layout.slot.field(field.name)
            last = torch.arange(boundary - field.rows, boundary, device=self.device) % ring.rows
            if field.format == ring.format:
                yield self.records.data(field), self.slots.data(ring), last
                yield self.records.scales(field), self.slots.scales(ring), last
                continue
            # A ring row of an overlapping compressor is values A, values B, gates A, gates B; the
            # next group reads the A halves only.
            half = field.format.data_bytes // 2
            kept, rows = self.records.data(field), self.slots.data(ring)
            yield kept[..., :half], rows[..., :half], last
            yield kept[..., half:], rows[..., 2 * half : 3 * half], last
