import pytest
import torch
from torch import Tensor

from relight.base.formats import RowFormat, float_row, index_row, kv_row
from relight.kernels import store
from relight.kernels.codec import fp4_round, fp8_round
from relight.kernels.rows import Rows, pack, unpack
from relight.kernels.testing import assert_rows_invariant

KV, KEY, RAW = kv_row(192, 64), index_row(64), float_row(24)
FORMATS = (KV, KEY, RAW)


def blocks(format: RowFormat, device: str) -> Rows:
    """Rows as a pool has them: both levels strided, among other bytes, all 0xEE."""
    data = torch.full((5, 3, 7, format.data_bytes + 16), 0xEE, dtype=torch.uint8, device=device)
    scale = torch.full((5, 3, 7, format.scale_bytes + 3), 0xEE, dtype=torch.uint8, device=device)
    return Rows(
        format, data[:, 1, :, 16 : 16 + format.data_bytes], scale[:, 2, :, : format.scale_bytes]
    )


def grid(format: RowFormat, values: Tensor) -> Tensor:
    """What a row holds of values."""
    if format is KV:
        rope = values[..., 128:].to(torch.bfloat16).float()
        return torch.cat([fp8_round(values[..., :128], 64), rope], -1)
    return fp4_round(values) if format is KEY else values


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
def test_what_is_put_is_what_is_got_and_nothing_else_changes(device: str, format) -> None:
    rows = blocks(format, device)
    assert rows.count == 35
    index = torch.randperm(35)[:11].to(device)
    values = torch.randn(11, format.dim).to(device)
    store.put(rows, index, values)
    assert torch.equal(store.get(rows, index), grid(format, values))
    others = torch.ones(35, dtype=torch.bool)
    others[index.cpu()] = False
    data, scale = rows.get_packed(torch.where(others)[0].to(device))
    assert bool((data == 0xEE).all())
    assert bool((scale == 0xEE).all())
    whole = rows.data.untyped_storage()
    written = torch.tensor([], dtype=torch.uint8, device=device).set_(whole).ne(0xEE).sum()
    assert int(written) <= 11 * format.data_bytes, "bytes beside the rows are not touched"


def test_a_kv_row_has_the_official_584_bytes(device: str) -> None:
    format = kv_row(512, 64)
    assert (format.data_bytes, format.scale_bytes) == (576, 8)
    values = torch.randn(3, 512).to(device)
    data, scale = pack(format, values)
    assert data.shape == (3, 576)
    assert scale.shape == (3, 8)
    assert bool((scale[:, 7] == 0).all()), "the eighth scale is padding"
    rope = data[:, 448:].contiguous().view(torch.bfloat16)
    assert torch.equal(rope, values[:, 448:].to(torch.bfloat16))
    assert torch.equal(unpack(format, data, scale)[:, :448], fp8_round(values[:, :448], 64))


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
def test_copies_are_byte_for_byte(device: str, format) -> None:
    source, target = blocks(format, device), Rows.empty(format, 4, torch.device(device))
    source.data.copy_(torch.randint(0, 256, source.data.shape))
    source.scale.copy_(torch.randint(0, 256, source.scale.shape))
    chosen = torch.tensor([33, 0, 6, 7], device=device)
    store.copy(source, chosen, target, torch.tensor([2, 0, 1, 3], device=device))
    for found, wanted in zip(
        target.get_packed(torch.tensor([2, 0, 1, 3], device=device)),
        source.get_packed(chosen),
        strict=True,
    ):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
def test_rows_are_invariant(device: str, format) -> None:
    def through(values: Tensor) -> Tensor:
        rows = Rows.empty(format, len(values), torch.device(device))
        index = torch.arange(len(values), device=device)
        store.put(rows, index, values)
        return store.get(rows, index)

    inputs = {"values": torch.randn(70, format.dim).to(device)}
    for family in ("prefill", "step"):
        assert_rows_invariant(through, inputs, family)


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
def test_no_rows_are_put_and_got(device: str, format) -> None:
    rows, none = blocks(format, device), torch.zeros(0, dtype=torch.int64, device=device)
    store.put(rows, none, torch.zeros(0, format.dim, device=device))
    assert store.get(rows, none).shape == (0, format.dim)
    assert bool((rows.data == 0xEE).all())


def test_storing_what_is_stored_reads_back_the_same_values(device: str) -> None:
    for format in FORMATS:
        once = unpack(format, *pack(format, torch.randn(99, format.dim).to(device)))
        assert torch.equal(unpack(format, *pack(format, once)), once), format.name
