"""The kernels of sparse attention and of the indexer, lane by lane on a processor, in each form."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.formats import RowFormat, compressed_row_v41, index_row, kv_row, window_row_v41
from relight.kernels import index, store
from relight.kernels.attend import Keys, Turn, attend
from relight.kernels.attend.step import StepAttend
from relight.kernels.canary import relative_error
from relight.kernels.index import Asked, reference
from relight.kernels.index import cuda as index_cuda
from relight.kernels.index.rows import RowIndex
from relight.kernels.quant import fp4_grid
from relight.kernels.rope import frequencies
from relight.kernels.rows import Rows
from relight.kernels.testing import assert_bits_equal
from relight.kernels.toolbox import Toolbox
from relight.kernels.vectors import TURNED, RowVectors
from tools.emulate import emulated

BF16, F32 = torch.bfloat16, torch.float32
ROWS, HEADS, DIM, SCALE = 3, 17, 128, 0.09
COUNT = 300

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


@pytest.fixture(params=["sm_70", "sm_90"])
def tools(request: pytest.FixtureRequest, tmp_path: Path) -> Toolbox:
    torch.manual_seed(1)
    return emulated(request.param, tmp_path)


@pytest.fixture
def modern(tmp_path: Path) -> Toolbox:
    torch.manual_seed(1)
    return emulated("sm_90", tmp_path)


def filled(format: RowFormat, count: int = COUNT, outer: int = 1) -> Rows:
    """Rows in two levels, which do not follow each other."""
    rows = Rows.empty(format, count, torch.device("cpu"))
    store.put(rows, torch.arange(count), torch.randn(count, format.dim))
    parts = (part.view(outer, count // outer, -1) for part in (rows.data, rows.scale))
    apart = [F.pad(part, (0, 0, 0, 16))[:, : count // outer] for part in parts]
    return Rows(format, *apart)


def lists(width: int) -> Tensor:
    """With gaps, of different lengths; the last row has a block in the middle without keys."""
    found = torch.randint(-1, COUNT, (ROWS, width))
    found[0, width // 2 :] = -1
    found[-1, 64:128] = -1
    return found


FORMATS = {
    "V4": (kv_row(DIM, 64), kv_row(DIM, 64)),
    "V4.1": (window_row_v41(DIM), compressed_row_v41(DIM)),
}


@pytest.mark.parametrize("formats", FORMATS)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_attention_is_near_its_definition(tools: Toolbox, formats: str, dtype) -> None:
    """More blocks of keys than warps, and heads that are no whole tiles."""
    window, entries = (filled(format, outer=3) for format in FORMATS[formats])
    near, far, sink = lists(128), lists(448), torch.randn(HEADS)
    q = (2 * torch.randn(ROWS, HEADS, DIM)).to(dtype)
    fast = StepAttend(tools)
    keys = Keys(window, near, entries, far)
    assert fast.takes(q, keys, dtype)
    found = fast.attend(q, keys, sink, SCALE)
    wanted = attend(q, keys, sink, SCALE, "step", dtype)
    assert found.dtype == dtype
    assert relative_error(found, wanted) <= (2e-3 if dtype == BF16 else 2e-6)

    alone = fast.attend(q[1:2], keys.part(slice(1, 2)), sink, SCALE)
    assert_bits_equal(alone, found[1:2], "a row alone")
    near, far = F.pad(near, (0, 64), value=-1), F.pad(far, (0, 64), value=-1)
    q[0, 3, 5] = float("nan")
    beside = fast.attend(q, Keys(window, near, entries, far), sink, SCALE)
    assert_bits_equal(beside[1:], found[1:], "beside a row of NaN, and with blocks of no keys")
    assert bool(beside[0, 3].isnan().all())


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_results_are_turned_back_as_by_a_launch_of_its_own(tools: Toolbox, rows: int) -> None:
    """Early, by few rows, and late."""
    dtype = BF16 if tools.form.bf16 else F32
    which = torch.arange(rows) % ROWS
    keys = Keys(filled(kv_row(DIM, 64)), lists(128)[which])
    q, sink = torch.randn(rows, HEADS, DIM).to(dtype), torch.randn(HEADS)
    given = (torch.tensor([0, 77, 1_000_000])[which], frequencies(1e4, 64, None))
    back = Turn(*given, lambda y: RowVectors(tools).rotate(y, *given, inverse=True))
    fast = StepAttend(tools)
    plain = fast.attend(q, keys, sink, SCALE)
    assert_bits_equal(
        fast.attend(q[:1], keys.part(slice(1)), sink, SCALE), plain[:1], "a row alone"
    )
    assert RowVectors(tools).takes(TURNED, plain, dtype, 64)
    assert_bits_equal(fast.attend(q, keys, sink, SCALE, back), back.apart(plain))


def test_a_nan_reaches_only_rows_that_list_it(tools: Toolbox) -> None:
    dtype = BF16 if tools.form.bf16 else F32
    window, sink = filled(kv_row(DIM, 64)), torch.randn(HEADS)
    near = torch.randint(0, COUNT // 2, (ROWS, 64)) * 2
    q = torch.randn(ROWS, HEADS, DIM).to(dtype)
    fast = StepAttend(tools)
    wanted = fast.attend(q, Keys(window, near), sink, SCALE)
    odd = torch.arange(1, COUNT, 2)
    store.put(window, odd, torch.full((len(odd), DIM), float("nan")))
    assert_bits_equal(fast.attend(q, Keys(window, near), sink, SCALE), wanted)
    near[1, 7] = 1
    found = fast.attend(q, Keys(window, near), sink, SCALE)
    assert_bits_equal(found[[0, 2]], wanted[[0, 2]])
    assert bool(found[1].isnan().any(-1).all())


def test_a_row_without_keys_is_zero(tools: Toolbox) -> None:
    window, none = filled(kv_row(DIM, 64)), torch.full((ROWS, 64), -1)
    q = torch.randn(ROWS, HEADS, DIM)
    fast = StepAttend(tools)
    found = fast.attend(q, Keys(window, none, window, none), torch.randn(HEADS), SCALE)
    assert_bits_equal(found, torch.zeros_like(q))
    empty = fast.attend(q[:0], Keys(window, none[:0]), torch.randn(HEADS), SCALE)
    assert empty.shape == (0, HEADS, DIM)


ENTRIES, K = 700, 40


def asked(heads: int, counts: tuple[int, ...]) -> dict:
    rows, sequences = sum(counts), len(counts)
    return {
        "q": fp4_grid(torch.randn(rows, heads, 128)),
        "weights": torch.randn(rows, heads),
        "keys": filled(index_row(128), 900, outer=3),
        "places": torch.randint(0, 900, (sequences, ENTRIES)),
        "counts": counts,
        "sequence": torch.arange(sequences).repeat_interleave(torch.tensor(counts)),
        "visible": torch.tensor([ENTRIES, 41, 40, 511, 3, 0, 257])[:rows],
    }


@pytest.mark.parametrize("heads", [16, 64])
def test_scores_have_the_bits_of_the_definition(tools: Toolbox, heads: int, monkeypatch) -> None:
    """However many entries a block takes: one turn of a warp or three, half a turn's keys at once
    or all."""
    given = asked(heads, (2, 0, 1, 1))
    fast = RowIndex(tools)
    assert fast.takes(given["q"], given["keys"])
    wanted = index.scores(Asked(**given, family="step"))
    seen = torch.arange(ENTRIES) < given["visible"].unsqueeze(1)
    for span in (64, 128, 384):
        monkeypatch.setattr(index_cuda, "span", lambda rows, entries, span=span: span)
        found = fast.scores(Asked(**given, family="step"))
        assert_bits_equal(found[seen], wanted[seen])


def test_the_best_entries_are_those_of_the_definition(modern: Toolbox) -> None:
    given = asked(16, (2, 0, 1, 1, 2, 1))
    fast = RowIndex(modern)
    found = fast.select(Asked(**given, family="step"), k=K)
    assert torch.equal(found, index.select(Asked(**given, family="step"), k=K))
    alone = {**given, "counts": (1,), "places": given["places"][2:3]}
    alone["sequence"] = torch.zeros(1, dtype=torch.int64)
    alone |= {name: given[name][2:3] for name in ("q", "weights", "visible")}
    assert torch.equal(fast.select(Asked(**alone, family="step"), k=K), found[2:3])


def test_chosen_entries_may_come_as_their_places(modern: Toolbox) -> None:
    given = Asked(**asked(16, (2, 0, 1, 1, 2, 1)), family="step")
    fast, size, blocks = RowIndex(modern), 8, 6
    kept = given.places[given.sequence]

    def places(entries: Tensor) -> Tensor:
        found = kept.gather(1, entries.clamp(min=0))
        return torch.where(entries < 0, -1, found)

    for run in (fast, index):
        wanted = places(run.select(given, k=K))
        assert torch.equal(run.select(given, k=K, placed=True), wanted)
        best, published = run.select_and_publish(given, k=K, size=size, blocks=blocks)
        placed, again = run.select_and_publish(given, k=K, size=size, blocks=blocks, placed=True)
        assert torch.equal(placed, places(best))
        assert torch.equal(again, published)
        within = {"candidates": published, "k": K, "size": size}
        wanted = places(run.select_within(given, **within))
        assert torch.equal(run.select_within(given, **within, placed=True), wanted)


def test_equal_scores_go_to_the_lowest_entry(modern: Toolbox) -> None:
    """Keys repeat, and a head of no weight makes zeros of either sign."""
    given = asked(16, (1, 1, 1))
    given["places"] = given["places"] % 7
    given["weights"][1] *= 0.0
    given["visible"] = torch.tensor([ENTRIES, ENTRIES, 300])
    found = RowIndex(modern).select(Asked(**given, family="step"), k=K)
    assert torch.equal(found, index.select(Asked(**given, family="step"), k=K))
    assert torch.equal(found[1], torch.arange(K))


def test_two_levels_choose_what_the_definition_chooses(modern: Toolbox) -> None:
    """Rows that see few entries or few blocks, and one whose newest block is not whole."""
    given = asked(16, (2, 0, 1, 1, 2, 1))
    size, blocks, fast = 8, 6, RowIndex(modern)
    best, published = fast.select_and_publish(
        Asked(**given, family="step"), k=K, size=size, blocks=blocks
    )
    wanted = index.select_and_publish(Asked(**given, family="step"), k=K, size=size, blocks=blocks)
    assert torch.equal(best, wanted[0])
    assert torch.equal(published, wanted[1])
    chosen = {"candidates": published, "k": K, "size": size}
    found = fast.select_within(Asked(**given, family="step"), **chosen)
    assert torch.equal(found, index.select_within(Asked(**given, family="step"), **chosen))


@pytest.mark.parametrize("count", [1_500, 5_000, 9_000])
def test_the_best_of_any_numbers_are_chosen(modern: Toolbox, count: int) -> None:
    """As many as lanes keep, few and more, and as none does; near the best one and far from it,
    equal, of either sign, and none at all."""
    kinds = (
        torch.randn(count),
        torch.randn(count).exp(),
        torch.randn(count).mul(9).exp(),
        -torch.rand(count),
        torch.randint(-2, 3, (count,)).float(),
        torch.where(torch.rand(count) < 0.02, 1.0, -torch.inf),
        torch.zeros(count).copysign(torch.randn(count)),
    )
    scores = torch.stack(kinds)
    kernel = index_cuda.topk(modern.form)
    launch, k = modern.load(kernel, index_cuda.TOP_THREADS), 300
    visible, best = torch.full((len(scores),), count), torch.full((len(scores), k), 7)
    none = (None, 0, 1, None, None)
    launch((len(scores), 1), scores, visible, count, count, k, *none, best, None)
    assert torch.equal(best, reference.best(k, scores))
