import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.formats import float_row, kv_row
from relight.kernels import store
from relight.kernels.attend import Keys, attend
from relight.kernels.rows import Rows
from relight.kernels.testing import FAMILIES, assert_bits_equal, assert_rows_invariant, bf16_steps

BF16, F32 = torch.bfloat16, torch.float32
HEADS, DIM, SCALE = 5, 128, 128**-0.5
WINDOW_ROWS, ENTRY_ROWS = 300, 200


def rows_of(values: Tensor, packed: bool = False) -> Rows:
    count, dim = values.shape
    rows = Rows.empty(kv_row(dim, 64) if packed else float_row(dim), count, values.device)
    store.put(rows, torch.arange(count, device=values.device), values)
    return rows


def lists(count: int, width: int, rows: int) -> Tensor:
    """Lists of any length, gaps inside, padded with -1 to `width`."""
    found = torch.randint(-1, rows, (count, width))
    length = torch.randint(0, width + 1, (count, 1))
    return torch.where(torch.arange(width) < length, found, -1)


def inputs_of(count: int, device: str) -> dict[str, Tensor]:
    return {
        "q": torch.randn(count, HEADS, DIM).to(device),
        "window_index": lists(count, 192, WINDOW_ROWS).to(device),
        "entry_index": lists(count, 128, ENTRY_ROWS).to(device),
    }


class Sources:
    """A window and entries, and attention over both."""

    def __init__(self, device: str, packed: bool = False) -> None:
        self.window = rows_of(torch.randn(WINDOW_ROWS, DIM).to(device), packed)
        self.entries = rows_of(torch.randn(ENTRY_ROWS, DIM).to(device), packed)
        self.sink = torch.randn(HEADS).to(device)

    def attend(self, q, window_index, entry_index, family, boundary=F32) -> Tensor:
        return attend(q, self.keys(window_index, entry_index), self.sink, SCALE, family, boundary)

    def keys(self, window_index, entry_index) -> Keys:
        return Keys(self.window, window_index, self.entries, entry_index)


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_equals_official(device: str, vectors, family) -> None:
    keys = rows_of(vectors("sparse_attn/kv"))
    slots = F.pad(vectors("sparse_attn/slots").long(), (0, 192 - 150), value=-1)
    given = (Keys(keys, slots), vectors("sparse_attn/sink"), SCALE, family)
    wanted = vectors("sparse_attn/o")
    found = attend(vectors("sparse_attn/q"), *given, BF16)
    assert bf16_steps(found, wanted) <= 1
    exact = attend(vectors("sparse_attn/q"), *given, F32)
    assert (exact - vectors("sparse_attn/o_exact")).abs().max() < 2e-6


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("boundary", [F32, BF16])
@pytest.mark.parametrize("packed", [False, True])
def test_rows_are_invariant(device: str, family, boundary, packed: bool) -> None:
    sources = Sources(device, packed)
    assert_rows_invariant(
        lambda **rows: sources.attend(**rows, family=family, boundary=boundary),
        inputs_of(37, device),
        family,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_without_keys_change_no_bit(device: str, family) -> None:
    sources, given = Sources(device), inputs_of(20, device)
    wanted = sources.attend(**given, family=family)
    for more in (64, 640):
        longer = {name: F.pad(x, (0, more), value=-1) for name, x in given.items() if name != "q"}
        assert_bits_equal(sources.attend(given["q"], **longer, family=family), wanted)
    empty = torch.full((20, 64), -1, device=device)
    window = Keys(sources.window, given["window_index"])
    alone = attend(given["q"], window, sources.sink, SCALE, family, F32)
    found = sources.attend(given["q"], given["window_index"], empty, family)
    assert_bits_equal(found, alone, "no entries and an empty list of entries")


@pytest.mark.parametrize("family", FAMILIES)
def test_where_keys_lie_changes_no_bit(device: str, family) -> None:
    """Ring, scratch and page hold the same bytes in other places."""
    values, order = torch.randn(WINDOW_ROWS, DIM).to(device), torch.randperm(WINDOW_ROWS).to(device)
    q, listed = inputs_of(20, device)["q"], lists(20, 128, WINDOW_ROWS).to(device)
    moved = torch.where(listed >= 0, order.argsort()[listed.clamp(min=0)], -1)
    sink = torch.randn(HEADS).to(device)
    wanted = attend(q, Keys(rows_of(values), listed), sink, SCALE, family, F32)
    found = attend(q, Keys(rows_of(values[order]), moved), sink, SCALE, family, F32)
    assert_bits_equal(found, wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_a_softmax_over_listed_keys_and_the_sink(device: str, family) -> None:
    sources, given = Sources(device), inputs_of(30, device)
    found = sources.attend(**given, family=family)
    for row in range(30):
        window = given["window_index"][row]
        entries = given["entry_index"][row]
        keys = torch.cat(
            [
                store.get(sources.window, window[window >= 0]),
                store.get(sources.entries, entries[entries >= 0]),
            ]
        ).double()
        scores = given["q"][row].double() @ keys.T * SCALE
        shares = torch.cat([scores, sources.sink.double().unsqueeze(1)], 1).softmax(1)[:, :-1]
        assert torch.allclose(found[row].double(), shares @ keys, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_numerators_are_rounded_to_bf16(device: str, family) -> None:
    sources, given = Sources(device), inputs_of(30, device)
    given["q"] = given["q"].to(BF16)
    exact = sources.attend(**given, family=family)
    found = sources.attend(**given, family=family, boundary=BF16)
    assert found.dtype == BF16
    assert bf16_steps(found, exact, exact.abs().amax(-1, keepdim=True)) <= 1.5


@pytest.mark.parametrize("family", FAMILIES)
def test_nan_in_rows_that_are_not_listed_never_spreads(device: str, family) -> None:
    sources, given = Sources(device), inputs_of(20, device)
    for name in ("window_index", "entry_index"):
        given[name] = torch.where(given[name] % 2 == 0, given[name], -1)  # even rows only
    wanted = sources.attend(**given, family=family)
    for rows in (sources.window, sources.entries):
        odd = torch.arange(1, rows.count, 2, device=device)
        store.put(rows, odd, torch.full((len(odd), DIM), float("nan"), device=device))
    assert_bits_equal(sources.attend(**given, family=family), wanted)
    assert bool(wanted.isfinite().all())


@pytest.mark.parametrize("family", FAMILIES)
def test_nan_in_a_listed_key_stays_in_the_rows_that_list_it(device: str, family) -> None:
    sources, given = Sources(device), inputs_of(30, device)
    wanted = sources.attend(**given, family=family)
    bad = torch.tensor([7], device=device)
    store.put(sources.window, bad, torch.full((1, DIM), float("nan"), device=device))
    hit = (given["window_index"] == 7).any(1)
    found = sources.attend(**given, family=family)
    assert_bits_equal(found[~hit], wanted[~hit])
    assert bool(found[hit].isnan().any(-1).all())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_without_keys_is_zero(device: str, family) -> None:
    sources, none = Sources(device), torch.full((3, 64), -1, device=device)
    found = sources.attend(torch.randn(3, HEADS, DIM).to(device), none, none, family)
    assert_bits_equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sink", [-1e4, 1e4, float("-inf")])
def test_extreme_sinks_are_finite(device: str, family, sink: float) -> None:
    sources, given = Sources(device), inputs_of(9, device)
    given["window_index"][:, 0] = 3
    sources.sink = torch.full((HEADS,), sink, device=device)
    assert bool(sources.attend(**given, family=family).isfinite().all())


@pytest.mark.parametrize("family", FAMILIES)
def test_no_rows_give_no_rows(device: str, family) -> None:
    found = Sources(device).attend(**inputs_of(0, device), family=family)
    assert found.shape == (0, HEADS, DIM)


class Noting:
    """Stands for kernels: takes what is packed, and notes that it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def takes(self, q, keys, boundary) -> bool:
        return keys.window.format.name == "fp8" and q.dtype == boundary

    def attend(self, q, keys, sink, scale, back) -> Tensor:
        self.asked += 1
        return torch.zeros_like(q)


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_are_asked_for_rows_that_they_take(family) -> None:
    given, fast = inputs_of(3, "cpu"), Noting()
    for packed in (False, True):
        sources = Sources("cpu", packed)
        keys = sources.keys(given["window_index"], given["entry_index"])
        found = attend(given["q"], keys, sources.sink, SCALE, family, F32, fast)
        assert fast.asked == packed
        assert bool(found.any()) != packed
