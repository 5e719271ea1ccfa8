"""The layout's figures against the published ones, and against its own arithmetic."""

import itertools
from dataclasses import replace

import pytest

from relight.base.config import ModelConfig
from relight.base.formats import fp8_index_row
from relight.base.numerics import OFFICIAL, OFFICIAL_BF16, REFERENCE, Numerics
from relight.base.official import V4_FLASH, V4_FLASH_DSPARK, V41_FLASH, schedule
from relight.cache.layout import (
    ALIGNMENT,
    PAGE_TOKENS,
    REWIND_ROWS,
    BlockLayout,
    layout,
    partial_ring_rows,
    ring_lengths,
    window_ring_rows,
)

TINY = replace(V4_FLASH, head_dim=128, layers=schedule((0, 4, 128, 4), num_hash=1))
SHORT = replace(V4_FLASH, head_dim=32, rope_dim=8, index_dim=16, layers=schedule((0, 4, 16), 0))


def test_a_token_costs_the_published_3514_bytes() -> None:
    page = layout(V4_FLASH, OFFICIAL).page
    assert page.bytes == 21 * 32 * (584 + 68) + 20 * 584
    assert page.bytes / PAGE_TOKENS == 3514.25


def test_fp8_index_keys_would_cost_3850_bytes() -> None:
    assert layout(V4_FLASH, OFFICIAL, fp8_index_row(128)).bytes_per_token == 3850.25


def test_a_v4_row_is_584_bytes_and_an_index_key_68() -> None:
    formats = {f.name: f.format for f in layout(V4_FLASH, OFFICIAL).page.fields}
    assert formats["compressed4"].bytes == formats["compressed128"].bytes == 584
    assert (formats["compressed4"].data_bytes, formats["compressed4"].scale_bytes) == (576, 8)
    assert (formats["index_keys"].data_bytes, formats["index_keys"].scale_bytes) == (64, 4)


def test_a_slot_costs_at_most_21_megabytes() -> None:
    window = 43 * 144 * 584
    csa = 21 * 24 * (4 * 512 + 4 * 128) * 4
    hca = 20 * 144 * 2 * 512 * 4
    assert layout(V4_FLASH, OFFICIAL).slot.bytes == window + csa + hca == 20_573_568
    assert layout(V4_FLASH, OFFICIAL).slot.bytes <= 21e6


def test_a_record_holds_128_window_rows_and_the_a_halves_of_four() -> None:
    window = 43 * 128 * 584
    halves = 21 * 4 * (2 * 512 + 2 * 128) * 4
    assert layout(V4_FLASH, OFFICIAL).record.bytes == window + halves == 3_644_416


def test_a_token_of_v41_costs_the_published_890_bytes() -> None:
    """Three full layers of ratio 2 and one of ratio 1, FP4 rows and keys."""
    page = layout(V41_FLASH, OFFICIAL).page
    assert page.bytes == 128 * (3 * (288 + 68) // 2 + 288 + 68) == 128 * 890
    formats = {f.name: f.format.bytes for f in page.fields}
    assert formats == {"compressed1": 288, "index_keys1": 68, "compressed2": 288, "index_keys2": 68}
    assert page.padding == 0


def test_a_slot_of_v41_costs_at_most_3500000_bytes() -> None:
    window = 40 * 144 * 528
    pending = 3 * 18 * 2 * 512 * 4
    tokens = 19 * 8
    spec = layout(V41_FLASH, OFFICIAL).slot
    assert window + pending + tokens <= spec.bytes < window + pending + tokens + 3 * ALIGNMENT
    assert spec.bytes <= 3.5e6


def test_a_record_of_v41_holds_window_rows_and_three_tokens() -> None:
    record = layout(V41_FLASH, OFFICIAL).record
    assert [(f.name, f.rows) for f in record.fields] == [("window", 128), ("tokens", 3)]
    assert record.bytes <= 40 * 128 * 528 + 3 * 8 + ALIGNMENT


@pytest.mark.parametrize(
    ("config", "row", "largest"), [(V4_FLASH_DSPARK, 584, 3.9e6), (V41_FLASH, 528, 2.95e6)]
)
def test_a_draft_keeps_a_window_for_each_of_its_stages(
    config: ModelConfig, row: int, largest: float
) -> None:
    with_draft, without = layout(config, OFFICIAL, draft=True), layout(config, OFFICIAL)
    assert with_draft.page == without.page
    slot = 3 * (config.window + REWIND_ROWS) * row
    assert abs(with_draft.slot.bytes - without.slot.bytes - slot) < 2 * ALIGNMENT
    record = 3 * config.window * row
    assert abs(with_draft.record.bytes - without.record.bytes - record) < 2 * ALIGNMENT
    assert with_draft.record.bytes <= largest


def test_rings_are_those_that_rows_are_written_to() -> None:
    assert ring_lengths(V4_FLASH) == (24, 144)
    assert ring_lengths(V41_FLASH) == (17, 18, 19, 144)


def test_reference_numerics_keep_float32_rows_and_say_so() -> None:
    got = layout(V4_FLASH, REFERENCE)
    assert got.bytes_per_token == 21 * (512 + 128) * 4 / 4 + 20 * 512 * 4 / 128
    assert all(f.format.bytes == 4 * f.format.dim for f in got.page.fields + got.slot.fields)


@pytest.mark.parametrize("config", [V4_FLASH, TINY], ids=["official", "tiny"])
@pytest.mark.parametrize("numerics", [OFFICIAL, OFFICIAL_BF16, REFERENCE], ids=lambda n: n.name)
def test_padding_is_at_most_three_percent(config: ModelConfig, numerics: Numerics) -> None:
    got = layout(config, numerics)
    assert max(block.padding for block in (got.page, got.slot, got.record)) <= 0.03
    if config is V4_FLASH:
        assert got.page.padding == 0


@pytest.mark.parametrize(
    "config", [V4_FLASH, TINY, SHORT, V41_FLASH], ids=["official", "tiny", "short", "v4.1"]
)
@pytest.mark.parametrize("kind", ["page", "slot", "record"])
def test_parts_are_aligned_and_never_overlap(config: ModelConfig, kind: str) -> None:
    block: BlockLayout = getattr(layout(config, REFERENCE if config is SHORT else OFFICIAL), kind)
    spans = []
    for field in block.fields:
        count = len(field.layers) * field.rows
        assert field.data_offset % ALIGNMENT == field.scale_offset % ALIGNMENT == 0
        spans.append((field.data_offset, field.data_offset + count * field.format.data_bytes))
        spans.append((field.scale_offset, field.scale_offset + count * field.format.scale_bytes))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert spans[-1][1] <= block.bytes
    assert block.bytes % ALIGNMENT == 0


def test_rings_keep_what_is_read_and_the_rows_to_rewind() -> None:
    assert window_ring_rows(V4_FLASH) == 128 + REWIND_ROWS == 144
    assert partial_ring_rows(4) == 8 + 16
    assert partial_ring_rows(128) == 128 + 16
