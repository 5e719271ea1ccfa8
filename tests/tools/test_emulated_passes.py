"""The kernels between products with more rows than a pass has, and attention of given rows, lane by
lane on a processor: near the definitions of given rows, and with the same bits in any pass."""

import shutil
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.formats import (
    RowFormat,
    compressed_row_v41,
    index_row,
    kv_row,
    window_row_v41,
)
from relight.kernels import index, passes, store, toolbox, vectors
from relight.kernels.attend import Keys, attend
from relight.kernels.attend import cuda as attend_cuda
from relight.kernels.attend.given import GivenAttend
from relight.kernels.attend.step import StepAttend
from relight.kernels.canary import relative_error
from relight.kernels.forms import form_of
from relight.kernels.hyper.rows import RowHyper
from relight.kernels.index import Asked
from relight.kernels.index import cuda as index_cuda
from relight.kernels.index.rows import RowIndex
from relight.kernels.projected import given_hyper
from relight.kernels.quant import fp4_grid
from relight.kernels.rows import Rows
from relight.kernels.store.rows import RowStore
from relight.kernels.testing import assert_bits_equal
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials_small import EPS, randoms
from relight.kernels.vectors import RowVectors
from tools.emulate import emulated

CPU = torch.device("cpu")
F32, BF16 = torch.float32, torch.bfloat16

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


@pytest.fixture(scope="module", params=["sm_70", "sm_80"])
def tools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Toolbox:
    return emulated(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def modern(tmp_path_factory: pytest.TempPathFactory) -> Toolbox:
    return emulated("sm_90", tmp_path_factory.mktemp("modern"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(4)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch):
    """`few(bytes)`: so much scratch from now on."""
    return lambda size: monkeypatch.setattr(passes, "SCRATCH_BYTES", size)


def boundary_of(tools: Toolbox) -> torch.dtype:
    return BF16 if tools.form.bf16 else F32


def filled(format: RowFormat, count: int = 90) -> Rows:
    rows = Rows.empty(format, count, CPU)
    store.put(rows, torch.arange(count), torch.randn(count, format.dim))
    return rows


@pytest.mark.parametrize("kind", [RowHyper, given_hyper])
def test_streams_are_mixed_in_passes(
    tools: Toolbox, few, kind: Callable[[Toolbox], RowHyper]
) -> None:
    """Of 265 rows a block takes more than of few."""
    rows, width, boundary = 265, 128, boundary_of(tools)
    streams = randoms(rows, 4, width, device=CPU, dtype=boundary)
    given = (torch.randn(24, 4 * width), torch.randn(24), torch.rand(3))
    norm, fast = torch.rand(width), kind(tools)

    def mixed(some: slice, pre: Tensor | None = None) -> tuple[Tensor, ...]:
        _, mix, x = fast.mix_and_read(
            streams[some], *given, pre, norm, iterations=3, eps=EPS, norm_eps=EPS
        )
        return mix.pre, mix.post, mix.comb, x

    pre, *_ = wanted = mixed(slice(0, rows))
    few(4 * 128 * 100)  # four slices, 128 bytes each, of 100 rows
    assert_bits_equal(mixed(slice(0, rows)), wanted, "in passes")
    assert_bits_equal(mixed(slice(0, rows), pre), wanted, "read by what was given")
    assert_bits_equal(mixed(slice(200, 201)), tuple(x[200:201] for x in wanted), "alone")


def test_attention_in_passes(tools: Toolbox, few) -> None:
    rows, heads, dim, boundary = 7, 3, 128, boundary_of(tools)
    window, entries = (filled(kv_row(dim, 64)) for _ in range(2))
    near, far = (torch.randint(-1, 90, (rows, width)) for width in (128, 64))
    keys = Keys(window, near, entries, far)
    q, sink = torch.randn(rows, heads, dim).to(boundary), torch.randn(heads)
    fast = StepAttend(tools)
    whole = fast.attend(q, keys, sink, 0.1)
    wanted = attend(q, keys, sink, 0.1, "prefill", boundary)
    assert relative_error(whole, wanted) <= (2e-3 if boundary == BF16 else 2e-6)
    for size in (1, 3 * 4 * heads * 3 * 65):  # one row a pass, and three
        few(size)
        assert_bits_equal(fast.attend(q, keys, sink, 0.1), whole, "in passes")
    assert_bits_equal(attend(q, keys, sink, 0.1, "prefill", boundary, fast), whole)


def lists(rows: int, width: int) -> Tensor:
    """With gaps, of different lengths; the last row has a block in the middle without keys."""
    found = torch.randint(-1, 90, (rows, width))
    found[0, width // 2 :] = -1
    found[-1, 64:128] = -1
    return found


@pytest.mark.parametrize("generation", ["V4", "V4.1"])
@pytest.mark.parametrize(("heads", "dim"), [(17, 128), (64, 512)])
def test_given_rows_attend_as_by_the_definition(
    modern: Toolbox, generation: str, heads: int, dim: int
) -> None:
    """Heads that are no whole tiles, and dims of fewer warps than there are."""
    rows, scale = 3, dim**-0.5
    formats = {
        "V4": (kv_row(dim, 64), kv_row(dim, 64)),
        "V4.1": (window_row_v41(dim), compressed_row_v41(dim)),
    }[generation]
    window, entries = (filled(one) for one in formats)
    keys = Keys(window, lists(rows, 128), entries, lists(rows, 192))
    q, sink = (2 * torch.randn(rows, heads, dim)).to(BF16), torch.randn(heads)
    fast = GivenAttend(modern)
    assert fast.takes(q, keys, BF16)
    found = fast.attend(q, keys, sink, scale)
    assert relative_error(found, attend(q, keys, sink, scale, "prefill", BF16)) <= 2e-3
    alone = slice(1, 2)
    assert_bits_equal(fast.attend(q[alone], keys.part(alone), sink, scale), found[alone], "alone")
    longer = Keys(window, F.pad(keys.window_index, (0, 64), value=-1), entries, keys.entry_index)
    q[0, 3, 5] = float("nan")
    beside = fast.attend(q, longer, sink, scale)
    assert_bits_equal(beside[1:], found[1:], "beside a row of NaN, and with a block of no keys")
    assert bool(beside[0, 3].isnan().all())
    assert_bits_equal(beside[0, 4:], found[0, 4:], "other heads of that row")


def test_nan_reaches_given_rows_that_list_it_and_none_without_keys(modern: Toolbox) -> None:
    rows, heads, dim = 3, 5, 128
    window, sink = filled(kv_row(dim, 64)), torch.randn(heads)
    q, none = torch.randn(rows, heads, dim).to(BF16), torch.full((rows, 64), -1)
    fast = GivenAttend(modern)
    found = fast.attend(q, Keys(window, none, window, none), sink, 0.1)
    assert_bits_equal(found, torch.zeros_like(q))
    assert fast.attend(q[:0], Keys(window, none[:0]), sink, 0.1).shape == (0, heads, dim)
    near = torch.randint(0, 45, (rows, 64)) * 2
    wanted = fast.attend(q, Keys(window, near), sink, 0.1)
    store.put(window, torch.arange(1, 90, 2), torch.full((45, dim), float("nan")))
    assert_bits_equal(fast.attend(q, Keys(window, near), sink, 0.1), wanted)
    near[1, 7] = 1
    found = fast.attend(q, Keys(window, near), sink, 0.1)
    assert_bits_equal(found[[0, 2]], wanted[[0, 2]])
    assert bool(found[1].isnan().any(-1).all())


def test_where_a_row_has_no_room_the_kernels_of_a_step_serve(tools: Toolbox) -> None:
    for arch, there in (("sm_80", True), ("sm_86", False), ("sm_90", True)):
        form = form_of(arch)
        assert all(attend_cuda.is_given(form, one) == there for one in attend_cuda.shapes(form))
    window, near = filled(kv_row(128, 64)), torch.randint(-1, 90, (3, 64))
    given = (torch.randn(3, 5, 128), Keys(window, near), torch.randn(5), 0.1)  # float32
    assert_bits_equal(GivenAttend(tools).attend(*given), StepAttend(tools).attend(*given))


def test_entries_are_chosen_in_passes(tools: Toolbox, few, monkeypatch) -> None:
    """By blocks that take more entries than those of few rows, too."""
    counts, heads, entries, k = (5, 0, 4), 16, 600, 40
    rows = sum(counts)
    asked = Asked(
        fp4_grid(torch.randn(rows, heads, 128)),
        torch.randn(rows, heads),
        filled(index_row(128), 700),
        torch.randint(0, 700, (3, entries)),
        counts,
        torch.tensor([0] * 5 + [2] * 4),
        torch.tensor([600, 599, 41, 40, 3, 0, 512, 513, 257]),
        "prefill",
    )
    fast, wanted = RowIndex(tools), index.select(asked, k)
    assert torch.equal(fast.select(asked, k), wanted)
    both = index.select_and_publish(asked, k, 8, 6)
    within = index.select_within(asked, both[1], k, 8)
    monkeypatch.setattr(index_cuda, "MANY_BLOCKS", 1)
    for size in (1, 4 * entries * 4):
        few(size)
        assert torch.equal(index.select(asked, k, fast), wanted)
        found = index.select_and_publish(asked, k, 8, 6, fast)
        assert torch.equal(found[0], both[0])
        assert torch.equal(found[1], both[1])
        assert torch.equal(index.select_within(asked, both[1], k, 8, fast), within)


@pytest.mark.parametrize("format", [kv_row(128, 64), index_row(128)], ids=["fp8", "fp4"])
def test_rows_are_copied_byte_by_byte(tools: Toolbox, format: RowFormat) -> None:
    source, count = filled(format, 30), 9
    found, wanted = (filled(format, 40) for _ in range(2))
    wanted.data.copy_(found.data)
    wanted.scale.copy_(found.scale)
    at, to = torch.randint(0, 30, (count,)), torch.randperm(40)[:count]
    store.copy(source, at, wanted, to)
    fast = RowStore(tools)
    assert fast.takes(source, found)
    store.copy(source, at, found, to, fast)
    assert torch.equal(found.data, wanted.data)
    assert torch.equal(found.scale, wanted.scale)
    store.copy(source, at[:0], found, to[:0], fast)


def test_blocks_that_go_on_leave_the_same_bits(
    modern: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of vectors, with and without a sum over them, and of rounded tokens."""
    x = torch.randn(11, 2, 512).to(BF16)
    small = torch.randn(11, 2, 128).to(BF16)
    positions, frequencies = torch.arange(11) * 3, torch.rand(32)

    def all_of_it() -> list[Tensor]:
        turn = (positions, frequencies)
        fast = RowVectors(modern)
        found = [fast.queries(x, 1e-6, *turn), fast.rotate(x.clone(), *turn)]
        found += [fast.index_queries(small, *turn), modern.round(x.view(11, 1024), 32)]
        return [*found, *modern.quantise(x.view(11, 1024))]

    wanted = all_of_it()
    monkeypatch.setattr(vectors, "MANY", 20)
    for found, alone in zip(all_of_it(), wanted, strict=True):
        assert_bits_equal(found, alone, "as many would be held")
    monkeypatch.setattr(vectors, "MOST_BLOCKS", 3)
    monkeypatch.setattr(toolbox, "MOST_BLOCKS", 2)
    for found, alone in zip(all_of_it(), wanted, strict=True):
        assert_bits_equal(found, alone)
