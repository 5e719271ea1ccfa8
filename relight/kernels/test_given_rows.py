"""Kernels between products with as many rows as a prompt has, on a device: passes, rows of a pass,
and more elements than 32 bits count."""

import pytest
import torch
from torch import Tensor

from relight.base.formats import index_row, kv_row
from relight.kernels import index, store
from relight.kernels.attend import Keys, attend, cuda
from relight.kernels.attend.given import GivenAttend
from relight.kernels.attend.step import StepAttend
from relight.kernels.canary import relative_error
from relight.kernels.index import Asked, reference
from relight.kernels.index.rows import RowIndex
from relight.kernels.launch import MOST_ROWS
from relight.kernels.projected import given_hyper
from relight.kernels.quant import fp4_grid
from relight.kernels.store.rows import RowStore
from relight.kernels.testing import assert_bits_equal
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials_small import EPS, randoms
from relight.kernels.trials_sparse import TO_BF16, TO_F32, filled, listed
from relight.kernels.vectors import RowVectors

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

DEVICE = torch.device("cuda")
BF16, F32 = torch.bfloat16, torch.float32
GIB = 2**30


def boundary_of(tools: Toolbox) -> torch.dtype:
    return BF16 if tools.form.bf16 else F32


def some_rows(count: int) -> list[slice]:
    """The first, those around where passes may end, and the last."""
    return [slice(at, at + 1) for at in (0, 1, 180, 181, count // 2, count - 2, count - 1)]


@pytest.mark.parametrize("kernels", [GivenAttend, StepAttend])
def test_attention_of_a_chunk(device_tools: Toolbox, kernels: type[GivenAttend]) -> None:
    """By the kernels of a step, which may serve given rows too, three passes and a part of one."""
    rows, fast = 600, kernels(device_tools)
    for shape in cuda.shapes(device_tools.form):
        window, entries = (filled(one, 900, DEVICE) for one in (shape.window, shape.entries))
        q = torch.randn(rows, shape.heads, shape.dim, device=DEVICE).to(shape.dtype)
        keys = Keys(window, listed(q, 192, 900), entries, listed(q, 512, 900))
        sink, scale = torch.randn(shape.heads, device=DEVICE), shape.dim**-0.5
        found = fast.attend(q, keys, sink, scale)
        wanted = attend(q, keys, sink, scale, "prefill", shape.dtype)
        tolerance = TO_BF16 if shape.dtype == BF16 else TO_F32
        assert relative_error(found, wanted) <= tolerance
        for row in some_rows(rows):
            alone = fast.attend(q[row], keys.part(row), sink, scale)
            assert_bits_equal(alone, found[row], f"row {row.start} alone")


def test_entries_chosen_by_a_chunk(device_tools: Toolbox) -> None:
    """Of two sequences: blocks take more entries than those of few rows."""
    counts, entries, k = (700, 0, 500), 32_768, 512
    rows, fast = sum(counts), RowIndex(device_tools)
    sequence = torch.tensor([0] * 700 + [2] * 500, device=DEVICE)
    asked = Asked(
        fp4_grid(torch.randn(rows, 64, 128, device=DEVICE)),
        torch.randn(rows, 64, device=DEVICE),
        filled(index_row(128), 40_000, DEVICE),
        torch.randint(0, 40_000, (3, entries), device=DEVICE),
        counts,
        sequence,
        torch.randint(0, entries + 1, (rows,), device=DEVICE),
        "prefill",
    )
    scores, found = fast.scores(asked), index.select(asked, k, fast)
    seen = torch.arange(entries, device=DEVICE) < asked.visible.unsqueeze(1)
    scores = scores.masked_fill(~seen, float("-inf"))
    simple = reference.first(k, asked.visible)
    few = (asked.visible <= k).unsqueeze(1)
    assert torch.equal(found, torch.where(few, simple, reference.best(k, scores)))
    some = asked.part(slice(690, 710))
    wanted = index.scores(some).masked_fill(~seen[690:710], 0.0)
    assert relative_error(scores[690:710].masked_fill(~seen[690:710], 0.0), wanted) <= TO_F32
    for row in some_rows(rows):
        assert torch.equal(fast.select(asked.part(row), k), found[row]), f"row {row.start} alone"


def test_streams_of_a_chunk(device_tools: Toolbox) -> None:
    rows, width, boundary = 2500, 4096, boundary_of(device_tools)
    streams = randoms(rows, 4, width, device=DEVICE, dtype=boundary)
    fn = torch.randn(24, 4 * width, device=DEVICE) / width**0.5
    given = (fn, torch.randn(24, device=DEVICE), torch.rand(3, device=DEVICE), None)
    norm, fast = torch.rand(width, device=DEVICE), given_hyper(device_tools)

    def read(some: slice) -> tuple[Tensor, ...]:
        own = streams[some]
        _, mix, x = fast.mix_and_read(own, *given, norm, iterations=20, eps=EPS, norm_eps=EPS)
        return mix.pre, mix.post, mix.comb, x, fast.expand(x, own, mix)

    whole = read(slice(0, rows))
    for row in (*some_rows(rows), slice(2040, 2060)):
        assert_bits_equal(read(row), tuple(part[row] for part in whole), f"row {row.start}")


def test_rows_are_moved_byte_by_byte(device_tools: Toolbox) -> None:
    fast, count = RowStore(device_tools), 3000
    source = filled(kv_row(512, 64), count, DEVICE)
    found, wanted = (filled(kv_row(512, 64), count, DEVICE) for _ in range(2))
    at, to = (torch.randperm(count, device=DEVICE) for _ in range(2))
    store.copy(source, at, wanted, to)
    store.copy(source, at, found, to, fast)
    assert torch.equal(found.data, wanted.data)
    assert torch.equal(found.scale, wanted.scale)


def test_more_elements_than_32_bits_count(device_tools: Toolbox) -> None:
    """Queries of 65,536 rows are 2^31 values, and one row more than a grid may be wide."""
    rows, boundary = MOST_ROWS + 1, boundary_of(device_tools)
    size = rows * 64 * 512 * boundary.itemsize
    if torch.cuda.mem_get_info()[0] < 4 * size + 2 * GIB:
        pytest.skip(f"needs {4 * size / GIB:.0f} GiB of the device")
    last = torch.randn(3, 64, 512, device=DEVICE).to(boundary)
    q = torch.zeros(rows, 64, 512, dtype=boundary, device=DEVICE)
    q[-3:] = last
    at, turn = torch.arange(rows, device=DEVICE), torch.rand(32, device=DEVICE)
    turned = RowVectors(device_tools).queries(q, EPS, at, turn)
    wanted = RowVectors(device_tools).queries(last, EPS, at[-3:].clone(), turn)
    assert_bits_equal(turned[-3:], wanted, "queries")
    del turned
    window, sink = filled(kv_row(512, 64), 90, DEVICE), torch.randn(64, device=DEVICE)
    near = torch.randint(-1, 90, (rows, 64), device=DEVICE)
    fast = GivenAttend(device_tools)
    found = fast.attend(q, Keys(window, near), sink, 0.04)
    assert_bits_equal(found[-3:], fast.attend(last, Keys(window, near[-3:]), sink, 0.04), "attend")
