"""The pool holds the bytes that the layout counts, and no byte twice."""

from dataclasses import replace

import pytest
import torch

from relight.base.config import ModelConfig
from relight.base.numerics import OFFICIAL, REFERENCE, Numerics
from relight.base.official import V4_FLASH, schedule
from relight.cache.layout import REWIND_ROWS, layout
from relight.cache.pool import Blocks, Pool

TINY = replace(V4_FLASH, head_dim=128, layers=schedule((0, 4, 128, 4), num_hash=1))

KINDS = ("pages", "slots", "records")

models = pytest.mark.parametrize("config", [V4_FLASH, TINY], ids=["official", "tiny"])
roundings = pytest.mark.parametrize("numerics", [OFFICIAL, REFERENCE], ids=lambda n: n.name)


def make_pool(config: ModelConfig, numerics: Numerics, device: str) -> Pool:
    return Pool(config, numerics, torch.device(device), num_pages=3, num_slots=2, num_records=2)


def views(blocks: Blocks) -> list[torch.Tensor]:
    """What is handed out, in pieces: each field's data and scales, layer by layer."""
    parts = [
        part for field in blocks.spec.fields for part in (blocks.data(field), blocks.scales(field))
    ]
    return [part[:, layer] for part in parts for layer in range(part.shape[1])]


@models
@roundings
def test_the_pool_holds_the_bytes_that_the_layout_counts(
    config: ModelConfig, numerics: Numerics, device: str
) -> None:
    pool, spec = make_pool(config, numerics, device), layout(config, numerics)
    assert pool.pages.bytes.nbytes == 3 * spec.page.bytes
    assert pool.slots.bytes.nbytes == 2 * spec.slot.bytes
    assert pool.records.bytes.nbytes == 2 * spec.record.bytes
    for kind in KINDS:
        held = getattr(pool, kind).bytes
        assert held.is_contiguous()
        assert held.untyped_storage().nbytes() == held.nbytes
        assert all(
            view.untyped_storage().data_ptr() == held.untyped_storage().data_ptr()
            for view in views(getattr(pool, kind))
        )


@models
@roundings
@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_belongs_to_one_row_of_one_layer_and_field(
    config: ModelConfig, numerics: Numerics, kind: str, device: str
) -> None:
    """A pattern of its own through each view: none is overwritten, and together they reach all
    bytes but the padding."""
    blocks: Blocks = getattr(make_pool(config, numerics, device), kind)
    parts = views(blocks)
    assert len(parts) < 256
    for number, part in enumerate(parts, start=1):
        part.fill_(number)
    for number, part in enumerate(parts, start=1):
        assert bool((part == number).all())
    rows = sum(field.bytes for field in blocks.spec.fields)
    assert int((blocks.bytes > 0).sum()) == blocks.count * rows
    assert sum(part.numel() for part in parts) == blocks.count * rows


@models
@roundings
@pytest.mark.parametrize("kind", KINDS)
def test_a_block_is_written_through_its_own_rows_only(
    config: ModelConfig, numerics: Numerics, kind: str, device: str
) -> None:
    blocks: Blocks = getattr(make_pool(config, numerics, device), kind)
    for part in views(blocks):
        part[1] = 255
    assert not blocks.bytes[[i for i in range(blocks.count) if i != 1]].any()


@roundings
@pytest.mark.parametrize("boundary", [128, 256, 1152])
def test_a_record_keeps_the_last_rows_of_a_ring_and_gives_back_no_others(
    numerics: Numerics, boundary: int, device: str
) -> None:
    """Of the window all 128 rows, of overlapping compressors the A halves of four. 1,152 is a
    multiple of the ring's 144 rows as well as of a page."""
    pool = make_pool(TINY, numerics, device)
    pool.slots.bytes.random_(0, 255)
    before = pool.slots.bytes.clone()
    pool.take_record(0, 1, boundary)
    pool.slots.bytes[1] = 255
    pool.restore_record(1, 1, boundary)
    assert torch.equal(pool.slots.bytes[0], before[0])
    for field in pool.slots.spec.fields:
        data, scales = pool.slots.data(field), pool.slots.scales(field)
        kept = next((f for f in pool.records.spec.fields if f.name == field.name), None)
        count = 0 if kept is None else kept.rows
        at = torch.tensor(sorted((boundary - 1 - i) % field.rows for i in range(count)))
        read = torch.zeros_like(data[0], dtype=torch.bool)
        if kept is not None:
            read[:, at] = True
            if kept.format != field.format:  # values A, values B, gates A, gates B
                quarter = field.format.data_bytes // 4
                read[..., quarter : 2 * quarter] = False
                read[..., 3 * quarter :] = False
            assert torch.equal(scales[1][:, at], scales[0][:, at])
        assert torch.equal(data[1][read], data[0][read])
        assert bool((data[1][~read] == 255).all()), f"{field.name} outside of the record"


def test_rings_have_rows_to_spare_for_a_record_that_is_taken_late(device: str) -> None:
    """Up to 16 rows past the boundary: they lie outside of what the record keeps."""
    pool = make_pool(TINY, OFFICIAL, device)
    for field in pool.records.spec.fields:
        ring = pool.slots.spec.field(field.name)
        kept = {position % ring.rows for position in range(512 - field.rows, 512)}
        late = {position % ring.rows for position in range(512, 512 + REWIND_ROWS)}
        assert not kept & late
