import pytest
import torch
from torch import Tensor

from relight.base.formats import float_row, index_row
from relight.base.numerics import Family
from relight.kernels import index, store
from relight.kernels.index import Asked
from relight.kernels.quant import fp4_grid
from relight.kernels.rows import Rows
from relight.kernels.testing import FAMILIES, assert_bits_equal, assert_rows_invariant

HEADS, DIM, ENTRIES = 5, 32, 700


def keys_of(values: Tensor, packed: bool = False) -> Rows:
    format = (index_row if packed else float_row)(values.shape[1])
    rows = Rows.empty(format, values.shape[0], values.device)
    store.put(rows, torch.arange(values.shape[0], device=values.device), values)
    return rows


def rows_of(count: int, device: str, sequences: int = 3) -> dict[str, Tensor]:
    return {
        "q": fp4_grid(torch.randn(count, HEADS, DIM)).to(device),
        "weights": torch.randn(count, HEADS).to(device),
        "sequence": torch.randint(sequences, (count,)).to(device),
        "visible": torch.randint(ENTRIES + 1, (count,)).to(device),
    }


def places_of(device: str, sequences: int = 3) -> Tensor:
    return torch.randperm(sequences * ENTRIES).view(sequences, ENTRIES).to(device)


def asked_of(
    rows: dict[str, Tensor], keys: Rows, places: Tensor, family: Family
) -> tuple[Asked, Tensor]:
    """Rows of any order: those of a sequence are brought together, in this order."""
    order = rows["sequence"].argsort(stable=True)
    q, weights, sequence, visible = (x[order] for x in rows.values())
    counts = sequence.bincount(minlength=places.shape[0]).tolist()
    return Asked(q, weights, keys, places, counts, sequence, visible, family), order


def call(op, rows: dict[str, Tensor], keys: Rows, places: Tensor, family: Family, *rest) -> Tensor:
    asked, order = asked_of(rows, keys, places, family)
    return op(asked, *rest)[order.argsort()]


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_lists_equal_official(device: str, vectors, family) -> None:
    keys = keys_of(vectors("indexer/keys"))
    visible = vectors("indexer/visible").long()
    rows = {
        "q": vectors("indexer/q").float(),
        "weights": vectors("indexer/weights").float(),
        "sequence": torch.zeros_like(visible),
        "visible": visible,
    }
    places = torch.arange(60, device=device).unsqueeze(0)
    found = call(index.scores, rows, keys, places, family)
    hidden = torch.arange(60, device=device) >= visible.unsqueeze(1)
    exact = vectors("indexer/scores_exact").masked_fill(hidden, float("-inf"))
    assert torch.allclose(found, exact, rtol=1e-5, atol=1e-5)
    lists = call(index.select, rows, keys, places, family, 12).cpu()
    ordered = exact.sort(1, descending=True).values
    margin = ordered[:, 11] - ordered[:, 12]
    clear = ((margin > ordered[:, 11].abs() * 2.0**-7) | (visible <= 12)).cpu()
    assert clear.sum() >= 6
    assert torch.equal(lists[clear], vectors("indexer/top12").long().cpu()[clear])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("packed", [False, True])
def test_rows_are_invariant(device: str, family, packed: bool) -> None:
    keys = keys_of(torch.randn(3 * ENTRIES, DIM).to(device), packed)
    places = places_of(device)

    def op(**rows: Tensor) -> tuple[Tensor, Tensor]:
        scores = call(index.scores, rows, keys, places, family)
        return scores, call(index.select, rows, keys, places, family, 40)

    assert_rows_invariant(op, rows_of(24, device), family)


@pytest.mark.parametrize("family", FAMILIES)
def test_longer_lists_of_entries_change_no_bit(device: str, family) -> None:
    keys, rows = keys_of(torch.randn(3 * ENTRIES, DIM).to(device)), rows_of(20, device)
    rows["visible"] = rows["visible"].clamp(max=333)
    places = places_of(device)
    wanted = call(index.scores, rows, keys, places[:, :333], family)
    lists = call(index.select, rows, keys, places[:, :333], family, 40)
    for count in (334, 512, 513, ENTRIES):
        found = call(index.scores, rows, keys, places[:, :count], family)
        assert_bits_equal(found[:, :333].contiguous(), wanted, f"{count} entries")
        assert bool(found[:, 333:].isneginf().all())
        found = call(index.select, rows, keys, places[:, :count], family, 40)
        assert torch.equal(found, lists)


@pytest.mark.parametrize("family", FAMILIES)
def test_where_entries_lie_changes_no_bit(device: str, family) -> None:
    values, rows = torch.randn(3 * ENTRIES, DIM).to(device), rows_of(20, device)
    places = places_of(device)
    inverse = places.flatten().argsort()
    moved = keys_of(values[places.flatten()])
    straight = torch.arange(3 * ENTRIES, device=device).view(3, ENTRIES)
    assert inverse.shape == (3 * ENTRIES,)
    for op, rest in ((index.scores, ()), (index.select, (40,))):
        wanted = call(op, rows, keys_of(values), places, family, *rest)
        assert_bits_equal(call(op, rows, moved, straight, family, *rest), wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_best_visible_entries_are_selected(device: str, family) -> None:
    values, rows, places = torch.randn(900, DIM).to(device), rows_of(30, device), places_of(device)
    places = places % 900
    k = 50
    found = call(index.select, rows, keys_of(values), places, family, k).cpu()
    q, weights = rows["q"].double(), rows["weights"].double()
    for row in range(30):
        mine = values[places[rows["sequence"][row]]].double()
        scores = ((mine @ q[row].T).relu() @ weights[row]).cpu()
        visible = int(rows["visible"][row])
        chosen = found[row][found[row] >= 0]
        assert len(chosen) == min(k, visible)
        assert bool((found[row][len(chosen) :] == -1).all()), "padding is behind"
        assert bool((chosen[1:] > chosen[:-1]).all()), "ascending"
        assert bool((chosen < visible).all())
        left = torch.ones(visible, dtype=torch.bool)
        left[chosen] = False
        if left.any():
            assert scores[chosen].min() >= scores[:visible][left].max() - 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_ties_go_to_the_lowest_entries(device: str, family) -> None:
    values = torch.zeros(ENTRIES, DIM, device=device)
    values[600] = 1.0
    rows = {
        "q": torch.ones(1, HEADS, DIM, device=device),
        "weights": torch.ones(1, HEADS, device=device),
        "sequence": torch.zeros(1, dtype=torch.int64, device=device),
        "visible": torch.full((1,), ENTRIES, device=device),
    }
    places = torch.arange(ENTRIES, device=device).unsqueeze(0)
    found = call(index.select, rows, keys_of(values), places, family, 4)
    assert found.tolist() == [[0, 1, 2, 600]]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_that_sees_few_entries_gets_them_all(device: str, family) -> None:
    keys, rows = keys_of(torch.randn(900, DIM).to(device)), rows_of(5, device)
    rows["visible"] = torch.tensor([0, 1, 7, 8, 9], device=device)
    found = call(index.select, rows, keys, places_of(device) % 900, family, 8).tolist()
    assert found[0] == [-1] * 8
    assert found[1] == [0] + [-1] * 7
    assert found[2] == [0, 1, 2, 3, 4, 5, 6, -1]
    assert found[3] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert -1 not in found[4]


@pytest.mark.parametrize("family", FAMILIES)
def test_nan_in_keys_that_a_row_does_not_see_stays_there(device: str, family) -> None:
    values, rows = torch.randn(ENTRIES, DIM).to(device), rows_of(20, device, sequences=1)
    rows["visible"] = torch.full((20,), 100, device=device)
    places = torch.arange(ENTRIES, device=device).unsqueeze(0)
    wanted = call(index.select, rows, keys_of(values), places, family, 40)
    values[100:] = float("nan")
    assert torch.equal(call(index.select, rows, keys_of(values), places, family, 40), wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_rows_give_no_lists(device: str, family) -> None:
    keys, rows = keys_of(torch.zeros(3 * ENTRIES, DIM, device=device)), rows_of(0, device)
    none = torch.zeros(1, 0, dtype=torch.int64, device=device)
    assert call(index.select, rows, keys, places_of(device), family, 8).shape == (0, 8)
    assert call(index.scores, rows, keys, none, family).shape == (0, 0)


class Noting:
    """Stands for kernels: takes what is packed, and notes that it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def takes(self, q, keys) -> bool:
        return keys.format.name == "fp4"

    def select(self, asked, k, *, placed) -> Tensor:
        self.asked += 1
        return torch.full((len(asked.q), k), -7)


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_are_asked_for_rows_that_they_take(family) -> None:
    rows, places, fast = rows_of(4, "cpu"), places_of("cpu"), Noting()
    for packed in (False, True):
        keys = keys_of(torch.randn(3 * ENTRIES, DIM), packed)
        found = call(index.select, rows, keys, places, family, 40, fast)
        assert fast.asked == packed
        assert bool((found == -7).all()) == packed


def test_a_part_asks_what_its_rows_ask() -> None:
    """Wherever a pass is cut, counts are those of its rows."""
    rows, keys = rows_of(20, "cpu"), keys_of(torch.randn(3 * ENTRIES, DIM))
    asked, _ = asked_of(rows, keys, places_of("cpu"), "prefill")
    wanted = index.select(asked, 40)
    for size in (1, 7, 20):
        cuts = [slice(at, min(at + size, 20)) for at in range(0, 20, size)]
        assert torch.equal(torch.cat([index.select(asked.part(cut), 40) for cut in cuts]), wanted)
