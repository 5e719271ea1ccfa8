"""What the small ops launch, and what they leave to their definitions, with a launcher that only
notes it: runs without a device."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from relight.base.formats import (
    compressed_row_v41,
    float_row,
    index_row,
    kv_row,
    window_row_v41,
)
from relight.kernels.attend import Keys
from relight.kernels.attend.step import StepAttend
from relight.kernels.block import block_of
from relight.kernels.build import Kernel
from relight.kernels.compress.rows import Groups, Raw, RowCompress
from relight.kernels.experts.shared import RowShared
from relight.kernels.forms import Form, form_of
from relight.kernels.hyper.rows import RowHyper
from relight.kernels.index import Asked
from relight.kernels.index.rows import RowIndex
from relight.kernels.launch import MOST_ROWS
from relight.kernels.route.rows import RowRoute
from relight.kernels.row_ops import NO_KERNELS, chosen_ops
from relight.kernels.rows import Rows
from relight.kernels.sample import SampleParams
from relight.kernels.sample.step import StepSample
from relight.kernels.select import Selection
from relight.kernels.store.rows import RowStore
from relight.kernels.vectors import (
    INDEX_QUERIES,
    MOST_BLOCKS,
    NORM,
    QUERIES,
    RowVectors,
    way_into,
)

CPU = torch.device("cpu")
BF16, F32, I64 = torch.bfloat16, torch.float32, torch.int64

OWN_BYTES = 16 * 1024
"""No less than a kernel here has of shared memory beside what is asked for."""


@dataclass
class Noting:
    """Stands for a toolbox: (entry, threads, grid) of each launch, which a device would take."""

    form: Form
    side: None = None
    launched: list[tuple[str, int, tuple[int, int]]] = field(default_factory=list)

    def load(self, kernel: Kernel, threads: int, ring_bytes: int = 0) -> Any:
        assert threads in range(32, 1025, 32)
        assert ring_bytes + OWN_BYTES <= self.form.shared_limit

        def launch(grid: tuple[int, int], *arguments: object) -> None:
            assert 0 < grid[0] < 2**31
            assert 0 < grid[1] <= MOST_ROWS
            self.launched.append((kernel.entry, threads, grid))

        return launch


@pytest.fixture
def tools() -> Any:
    return Noting(form_of("sm_90"))


def some(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def test_a_sublayer_is_four_launches_around_its_streams(tools) -> None:
    fast, streams, f32 = RowHyper(tools), some(17, 4, 4096), {"dtype": F32}
    given = (some(24, 4 * 4096, **f32), some(24, **f32), some(3, **f32), None, some(4096, **f32))
    _, mix, x = fast.mix_and_read(streams, *given, iterations=20, eps=1e-6, norm_eps=1e-6)
    assert (mix.comb.shape, x.shape) == ((17, 4, 4), (17, 4096))
    assert mix.fast is fast
    fast.expand(x, streams, mix)
    assert tools.launched == [
        ("mix_parts", 256, (128, 5)),
        ("mix_end_by_peers", 256, (8, 17)),
        ("balance", 256, (2, 1)),
        ("spread", 64, (17, 8)),
    ]


@pytest.mark.parametrize(
    ("arch", "width", "wanted"),
    [
        ("sm_90", 5120, ("mix_end_by_peers", 320, (8, 3))),
        ("sm_90", 1152, ("mix_end", 96, (3, 1))),
        ("sm_89", 4096, ("mix_end", 288, (3, 1))),
    ],
)
def test_blocks_end_a_mix_together_where_there_are_clusters(
    arch: str, width: int, wanted: tuple[str, int, tuple[int, int]]
) -> None:
    tools: Any = Noting(form_of(arch))
    f32, streams = {"dtype": F32}, some(3, 4, width)
    given = (some(24, 4 * width, **f32), some(24, **f32), some(3, **f32), None, some(width, **f32))
    RowHyper(tools).mix_and_read(streams, *given, iterations=20, eps=1e-6, norm_eps=1e-6, late=True)
    assert tools.launched[1:] == [wanted]


def test_vectors_are_one_launch_a_way(tools) -> None:
    fast = RowVectors(tools)
    at, turn, weight = torch.arange(3), torch.zeros(32), torch.ones(512)
    fast.queries(some(3, 64, 512), 1e-6, at, turn)
    fast.index_queries(some(3, 64, 128), at, turn)
    for stored in (kv_row(512, 64), window_row_v41(512)):
        fast.keep(some(3, 512), weight, 1e-6, at, turn, Rows.empty(stored, 5, CPU), at)
    fast.queries(some(65, 64, 512), 1e-6, torch.arange(65), turn)
    sizes = [(128, 192), (32, 192), (128, 3), (128, 3), (32, 4096)]
    assert tools.launched == [("row_op", threads, (count, 1)) for threads, count in sizes]


def test_what_attention_gives_is_turned_in_its_place(tools) -> None:
    fast, out, at = RowVectors(tools), some(3, 17, 512), torch.arange(3)
    assert fast.rotate(out, at, torch.zeros(32), inverse=True) is out
    assert fast.rotate(out[:0], at[:0], torch.zeros(32)).shape == (0, 17, 512)
    fast.rotate(some(300, 17, 512), torch.arange(300), torch.zeros(32))
    assert tools.launched == [("turn", 256, (7, 1)), ("turn", 256, (113, 1))]  # 51 warps and 900


def test_a_compressor_is_two_launches(tools) -> None:
    fast, n, stored = RowCompress(tools), 5, kv_row(512, 64)
    ring, rows = some(4, 24, 2048, dtype=F32), Rows.empty(stored, 9, CPU)
    assert fast.takes(ring, 4, rows, 64)
    at, raw = torch.zeros(n, dtype=I64), some(n, 1024, dtype=F32)
    fast.put_raw(Raw(raw, raw, some(4, 1024, dtype=F32), at), at, ring)
    fast.close(ring, 4, at, Groups(at, at, at), torch.ones(512), 1e-6, at, rows, BF16)
    assert tools.launched == [("put_raw", 256, (n, 4)), ("pool", 256, (n, 1))]


def test_the_rest_is_a_launch_each_and_a_draw_three(tools) -> None:
    logits, gate = some(2, 256, dtype=F32), some(2, 2048)
    given = {"bias": some(256, dtype=F32), "table": None, "token_ids": None}
    RowRoute(tools).route(logits, 6, 1.5, **given)
    RowShared(tools).swiglu(gate, gate, 10.0)
    row, ones = torch.zeros(2, dtype=I64), torch.ones(2)
    StepSample(tools).draw(logits, SampleParams(ones, ones, row, ones, row, row, row))
    entries = ["route", "gated", "largest_parts", "drawn_parts", "choose"]
    assert [entry for entry, _, _ in tools.launched] == entries


def test_shapes_that_do_not_fit_are_left_to_the_definitions(tools) -> None:
    streams, vectors = RowHyper(tools), RowVectors(tools)
    assert streams.takes(some(1, 4, 4096), BF16)
    assert not streams.takes(some(1, 4, 4096), F32)
    assert not streams.takes(some(1, 2, 4096), BF16)
    assert not streams.takes(some(1, 4, 40), BF16)
    assert not streams.takes(some(4, 1, 4096).transpose(0, 1), F32)
    assert vectors.takes(NORM, some(1, 1024), BF16)
    assert not vectors.takes(NORM, some(1, 100), BF16)
    assert vectors.takes(QUERIES, some(1, 2, 512), BF16, 64)
    assert not vectors.takes(QUERIES, some(1, 2, 512), BF16, 32)
    assert not vectors.takes(QUERIES, some(1, 2, 256), BF16, 64)
    assert not vectors.takes(INDEX_QUERIES, some(1, 2, 512), BF16, 64)
    kept = (kv_row(512, 64), window_row_v41(512), index_row(128), compressed_row_v41(512))
    assert all(way_into(Rows.empty(stored, 2, CPU)) for stored in kept)
    left = (kv_row(512, 128), float_row(512))
    assert not any(way_into(Rows.empty(stored, 2, CPU)) for stored in left)
    ring = some(4, 24, 2048, dtype=F32)
    compress = RowCompress(tools)
    assert not compress.takes(ring, 4, Rows.empty(float_row(512), 2, CPU), 64)
    rows = Rows.empty(kv_row(512, 64), 2, CPU)
    assert not compress.takes(ring, 4, rows, 32)
    assert not compress.takes(ring, 2, rows, 64)
    assert not compress.takes(ring[:, :6], 4, rows, 64)
    assert compress.takes_latents(some(4, 24, 1024, dtype=F32), 2, 512)
    assert not compress.takes_latents(some(4, 24, 1024, dtype=F32), 3, 512)
    assert not compress.takes_latents(some(4, 24, 512, dtype=F32), 2, 256)
    assert not RowRoute(tools).takes(some(1, 24, dtype=F32), 6)


def test_what_takes_several_ops_needs_all_of_them(tools) -> None:
    vectors = RowVectors(tools, frozenset(("norm", "store")))
    assert vectors.takes(NORM, some(1, 1024), BF16)
    assert not vectors.takes(QUERIES, some(1, 2, 512), BF16, 64)
    nothing = chosen_ops(tools, Selection()).step
    assert nothing.vectors is not None
    assert not nothing.vectors.takes(NORM, some(1, 1024), BF16)
    assert (nothing.hyper, nothing.route, NO_KERNELS.step.vectors) == (None, None, None)


def test_threads_share_a_vector_evenly() -> None:
    for width, threads in ((4096, 256), (5120, 256), (1280, 128), (128, 64), (64, 32)):
        block = block_of(width)
        assert block is not None
        assert block.threads == threads
    assert block_of(96) is None
    assert block_of(0) is None


def test_more_rows_than_a_grid_is_wide_are_launched_all(tools) -> None:
    """65,536 given rows, the most that a step may have, are one more than the second size of a grid
    may be. Without memory: on the meta device."""
    n, bf16 = MOST_ROWS + 1, {"dtype": BF16, "device": "meta"}
    f32, i64 = {"dtype": F32, "device": "meta"}, {"dtype": I64, "device": "meta"}

    def empty(*shape: int, **how: Any) -> Tensor:
        return torch.empty(shape, **how)

    streams, x, one = empty(n, 4, 4096, **bf16), empty(n, 4096, **bf16), empty(n, **i64)
    weights = (empty(24, 4 * 4096, **f32), empty(24, **f32), empty(3, **f32), None)
    _, mix, _ = RowHyper(tools).mix_and_read(
        streams, *weights, empty(4096, **f32), iterations=20, eps=1e-6, norm_eps=1e-6
    )
    RowHyper(tools).expand(x, streams, mix)
    RowShared(tools).swiglu(x, x, 10.0)
    RowVectors(tools).queries(empty(n, 64, 512, **bf16), 1e-6, one, empty(32, **f32))
    raw = empty(n, 1024, **f32)
    RowCompress(tools).put_raw(
        Raw(raw, raw, empty(4, 1024, **f32), one), one, empty(4, 24, 2048, **f32)
    )
    router = RowRoute(tools)
    router.route(empty(n, 256, **f32), 6, 1.5, bias=None, table=one, token_ids=one)
    store, rows = RowStore(tools), Rows.empty(kv_row(512, 64), 9, torch.device("meta"))
    store.copy(rows, one, rows, one)
    StepAttend(tools).attend(
        empty(n, 64, 512, **bf16), Keys(rows, empty(n, 192, **i64)), empty(64, **f32), 0.1
    )
    keys = Rows.empty(index_row(128), 9, torch.device("meta"))
    asked = Asked(
        empty(n, 64, 128, **f32),
        empty(n, 64, **f32),
        keys,
        empty(1, 4096, **i64),
        (n,),
        one,
        one,
        "prefill",
    )
    RowIndex(tools).select(asked, 512)
    covered: dict[str, int] = {}
    for entry, _, (first, second) in tools.launched:
        assert first < 2**31
        assert second <= MOST_ROWS
        covered[entry] = covered.get(entry, 0) + (second if entry in BY_SECOND else first)
    blocks = {entry: covered[entry] for entry in covered if entry not in ("row_op", "mix_parts")}
    assert blocks.pop("copy_rows") == -(-n // 4)
    assert blocks.pop("balance") == -(-n // 16)
    assert set(blocks.values()) == {n}, blocks
    assert covered["row_op"] == MOST_BLOCKS  # each goes on


BY_SECOND = ("attend_scores", "attend_values", "index_scores", "mix_end_by_peers")
"""Whose rows are the second size of a grid, in passes."""


@pytest.mark.parametrize("rows", [1, 2, 3, 6, 8, 9, 17])
@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_86", "sm_90"])
def test_attention_of_any_rows_is_what_a_device_takes(arch: str, rows: int) -> None:
    tools: Any = Noting(form_of(arch))
    q = some(rows, 64, 512, dtype=BF16 if tools.form.bf16 else F32)
    for kinds in ((kv_row(512, 64),) * 2, (window_row_v41(512), compressed_row_v41(512))):
        window, entries = (Rows.empty(kind, 9, CPU) for kind in kinds)
        keys = Keys(window, some(rows, 128, dtype=I64), entries, some(rows, 512, dtype=I64))
        StepAttend(tools).attend(q, keys, some(64, dtype=F32), 0.1)
    assert [entry for entry, *_ in tools.launched] == ["attend_scores", "attend_values"] * 2
