"""Bytes of every kind of state, by page, by slot and by boundary record. Knows no torch.

The same figures feed the pool, admission and the planner.

What is kept, and where:

- page: 128 tokens of compressed rows and index keys; paged, shared, counted per token.
- slot: rings of one running sequence, addressed by position: window rows, and raw compressor rows
  of groups that are still open.
- record: what a slot needs to go on at a page boundary: 128 window rows of each layer and, of the
  overlapping compressor (ratio 4), the A halves of the four rows before the boundary. Other ratios
  leave nothing open there, since they divide 128 and do not overlap.

V4.1 has compressed rows and index keys in its full layers only, which other layers read, and the
last token ids of a sequence in its slot and records: the next n-grams begin with them.

A draft has window rows of its own for each of its stages.

A ring is `REWIND_ROWS` rows longer than what is read, so that a rejected row never overwrites a row
that an accepted one reads: rewinding by up to that many rows is setting a length.
"""

from collections import defaultdict
from dataclasses import dataclass

from relight.base.config import PAGE_TOKENS as PAGE_TOKENS  # whoever lays out needs it
from relight.base.config import ModelConfig
from relight.base.formats import (
    RowFormat,
    compressed_row_v41,
    float_row,
    index_row,
    kv_row,
    token_row,
    window_row_v41,
)
from relight.base.numerics import Numerics

REWIND_ROWS = 16
OVERLAP_RATIO = 4
ALIGNMENT = 16
"""A data part starts at a multiple of 16 bytes: one vector load."""


@dataclass(frozen=True, slots=True)
class Field:
    """One kind of rows in a block: all data parts of all its layers, then all scale groups."""

    name: str
    layers: tuple[int, ...]
    rows: int
    format: RowFormat
    data_offset: int
    scale_offset: int

    @property
    def bytes(self) -> int:
        return len(self.layers) * self.rows * self.format.bytes


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The fields of a page, a slot or a record, and the bytes of a whole block."""

    fields: tuple[Field, ...]
    bytes: int

    @property
    def padding(self) -> float:
        """The share of a block that holds nothing."""
        return 1 - sum(f.bytes for f in self.fields) / self.bytes if self.bytes else 0.0

    def field(self, name: str) -> Field:
        return next(f for f in self.fields if f.name == name)


@dataclass(frozen=True, slots=True)
class Layout:
    """All state of a model under one numerics."""

    page: BlockLayout
    slot: BlockLayout
    record: BlockLayout

    @property
    def bytes_per_token(self) -> float:
        return self.page.bytes / PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class _Rows:
    name: str
    layers: tuple[int, ...]
    rows: int
    format: RowFormat


def compressed(ratio: int) -> str:
    """Name of the field that holds the compressed rows of the layers with this ratio."""
    return f"compressed{ratio}"


def partial(ratio: int) -> str:
    """Name of the field that holds the raw compressor rows of the layers with this ratio."""
    return f"partial{ratio}"


def index_keys(ratio: int) -> str:
    """Name of the field that holds the index keys of V4.1's full layers with this ratio."""
    return f"index_keys{ratio}"


WINDOW = "window"
DRAFT = "draft"
TOKENS = "tokens"
INDEX_KEYS = "index_keys"
INDEX_PARTIAL = "index_partial"


def window_ring_rows(config: ModelConfig) -> int:
    return config.window + REWIND_ROWS


def partial_ring_rows(ratio: int) -> int:
    """Rows that a closing group reads (two groups where they overlap) and the rows to rewind."""
    return (2 * ratio if ratio == OVERLAP_RATIO else ratio) + REWIND_ROWS


def token_ring_rows(config: ModelConfig) -> int:
    """Rows of the token ids that n-grams begin with, 0 without n-grams."""
    return config.engram.max_ngram - 1 + REWIND_ROWS if config.engram else 0


def ring_lengths(config: ModelConfig) -> tuple[int, ...]:
    """Of all kinds of rings that rows are written to, ascending."""
    ratios = {layer.ratio for layer in config.layers if layer.ratio}
    lengths = {window_ring_rows(config), *map(partial_ring_rows, ratios)}
    return tuple(sorted(lengths | ({token_ring_rows(config)} if config.engram else set())))


def layout(
    config: ModelConfig,
    numerics: Numerics,
    index_format: RowFormat | None = None,
    *,
    draft: bool = False,
) -> Layout:
    """The layout of `config`'s state, with its draft's if asked for. `index_format` asks what other
    index keys would cost."""
    stages = tuple(range(config.draft.num_stages)) if draft else ()
    if config.generation == "v4.1":
        return _layout_v41(config, numerics, stages)
    head, index = config.head_dim, config.index_dim
    row = kv_row(head, config.rope_dim) if numerics.quantised else float_row(head)
    key = index_format or (index_row(index) if numerics.quantised else float_row(index))
    by_ratio: dict[int, list[int]] = defaultdict(list)
    for layer in config.layers:
        if layer.ratio:
            by_ratio[layer.ratio].append(layer.index)
    everywhere = tuple(range(config.num_layers))

    page, slot, record = [], [], []
    slot.append(_Rows(WINDOW, everywhere, window_ring_rows(config), row))
    record.append(_Rows(WINDOW, everywhere, config.window, row))
    for ratio, ids in sorted(by_ratio.items()):
        layers, ring = tuple(ids), partial_ring_rows(ratio)
        page.append(_Rows(compressed(ratio), layers, PAGE_TOKENS // ratio, row))
        if ratio != OVERLAP_RATIO:  # a raw row: values and gates of one head
            slot.append(_Rows(partial(ratio), layers, ring, float_row(2 * head)))
            continue
        page.append(_Rows(INDEX_KEYS, layers, PAGE_TOKENS // ratio, key))
        # values and gates, each with an A half (next group) and a B half (own group)
        slot.append(_Rows(partial(ratio), layers, ring, float_row(4 * head)))
        slot.append(_Rows(INDEX_PARTIAL, layers, ring, float_row(4 * index)))
        record.append(_Rows(partial(ratio), layers, ratio, float_row(2 * head)))
        record.append(_Rows(INDEX_PARTIAL, layers, ratio, float_row(2 * index)))
    if stages:
        slot.append(_Rows(DRAFT, stages, window_ring_rows(config), row))
        record.append(_Rows(DRAFT, stages, config.window, row))
    return Layout(_block(page), _block(slot), _block(record))


def _layout_v41(config: ModelConfig, numerics: Numerics, stages: tuple[int, ...]) -> Layout:
    head, index, quantised = config.head_dim, config.index_dim, numerics.quantised
    window = window_row_v41(head) if quantised else float_row(head)
    row = compressed_row_v41(head) if quantised else float_row(head)
    key = index_row(index) if quantised else float_row(index)
    everywhere = tuple(range(config.num_layers))
    page = []
    slot = [_Rows(WINDOW, everywhere, window_ring_rows(config), window)]
    record = [_Rows(WINDOW, everywhere, config.window, window)]
    full = [layer for layer in config.layers if layer.attention == "full"]
    for ratio in sorted({layer.ratio for layer in full}):
        layers = tuple(layer.index for layer in full if layer.ratio == ratio)
        page.append(_Rows(compressed(ratio), layers, PAGE_TOKENS // ratio, row))
        page.append(_Rows(index_keys(ratio), layers, PAGE_TOKENS // ratio, key))
        if ratio > 1:  # a raw row: values and gates of one head
            ring = partial_ring_rows(ratio)
            slot.append(_Rows(partial(ratio), layers, ring, float_row(2 * head)))
    if config.engram:
        slot.append(_Rows(TOKENS, (0,), token_ring_rows(config), token_row()))
        record.append(_Rows(TOKENS, (0,), config.engram.max_ngram - 1, token_row()))
    if stages:
        slot.append(_Rows(DRAFT, stages, window_ring_rows(config), window))
        record.append(_Rows(DRAFT, stages, config.window, window))
    return Layout(_block(page), _block(slot), _block(record))


def _block(kinds: list[_Rows]) -> BlockLayout:
    offset, fields = 0, []
    for kind in kinds:
        count = len(kind.layers) * kind.rows
        scales = _aligned(offset + count * kind.format.data_bytes)
        fields.append(Field(kind.name, kind.layers, kind.rows, kind.format, offset, scales))
        offset = _aligned(scales + count * kind.format.scale_bytes)
    return BlockLayout(tuple(fields), offset)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
