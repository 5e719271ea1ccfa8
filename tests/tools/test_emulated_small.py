"""The kernels of small ops, lane by lane on a processor: their definitions' bits where functions do
not differ, near them else, and rows with the same bits alone and among others."""

import shutil

import pytest
import torch
from torch import Tensor

from relight.base.formats import (
    RowFormat,
    compressed_row_v41,
    index_row,
    kv_row,
    window_row_v41,
)
from relight.kernels import hyper
from relight.kernels.canary import check
from relight.kernels.cuda_tools import VARIANTS
from relight.kernels.experts import in_order
from relight.kernels.hyper import cuda as hyper_kernels
from relight.kernels.hyper.rows import RowHyper
from relight.kernels.norm import rms_norm
from relight.kernels.projected import given_hyper
from relight.kernels.quant import fp4_grid, hadamard
from relight.kernels.route import route
from relight.kernels.route.rows import RowRoute
from relight.kernels.rows import Rows
from relight.kernels.sample.step import StepSample
from relight.kernels.select import Selection
from relight.kernels.store import put
from relight.kernels.testing import FAMILIES, assert_bits_equal
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials_rounded import assert_input_comes_rounded
from relight.kernels.trials_small import (
    EPS,
    compress_trials,
    hyper_trials,
    randoms,
    route_trials,
    sample_trial,
    shared_trial,
    vector_trials,
)
from relight.kernels.vectors import RowVectors
from tools.emulate import emulated

CPU = torch.device("cpu")
NAN = float("nan")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


@pytest.fixture(scope="module", params=["sm_70", "sm_90"])
def tools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Toolbox:
    """The forms differ in what is between ops: float32 and bf16."""
    return emulated(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(3)


def boundary_of(tools: Toolbox) -> torch.dtype:
    return torch.bfloat16 if tools.form.bf16 else torch.float32


def passes(trials: list) -> None:
    found = check(Selection(VARIANTS), trials)
    assert found.refused == ()


@pytest.mark.parametrize("given", [False, True], ids=["step", "prefill"])
def test_streams_are_mixed_read_and_spread(tools: Toolbox, given: bool) -> None:
    passes(hyper_trials(tools, CPU, boundary_of(tools), width=256, given=given))


def test_given_streams_are_projected_exactly(tools: Toolbox) -> None:
    """Also by weights that are no bf16, where most of a sum cancels: what is left shows their last
    bits."""
    if not tools.form.bf16:
        pytest.skip("streams are float32")
    streams = torch.randn(3, 4, 256).to(torch.bfloat16)
    streams[:, 2:] = streams[:, :2]
    fn = torch.randn(24, 1024)
    fn[:, 512:] = -fn[:, :512] + 2.0**-20 * torch.randn(24, 512)
    ((_, parts, pieces),) = given_hyper(tools)._parts(streams, fn, None)
    found = parts[:, :, : pieces * 24].unflatten(2, (pieces, 24)).double().sum((1, 2))
    wanted = streams.flatten(1).double() @ fn.double().T
    assert (found - wanted).norm() <= 0.1 * wanted.norm()


def test_vectors_go_each_way(tools: Toolbox) -> None:
    passes(vector_trials(tools, CPU, boundary_of(tools)))


@pytest.mark.parametrize("family", FAMILIES)
def test_groups_are_pooled_and_stored(tools: Toolbox, family) -> None:
    passes(compress_trials(tools, CPU, boundary_of(tools), family))


def test_rows_are_routed_and_drawn(tools: Toolbox) -> None:
    passes([*route_trials(tools, CPU), sample_trial(tools, CPU, vocab=999)])
    passes(route_trials(tools, CPU, experts=384)[:1])


def test_the_shared_expert_is_gated_and_added(tools: Toolbox) -> None:
    passes([shared_trial(tools, CPU, boundary_of(tools))])


def test_spreading_has_the_bits_of_the_definition(tools: Toolbox) -> None:
    boundary = boundary_of(tools)
    streams, out = randoms(3, 4, 256, device=CPU, dtype=boundary), torch.randn(3, 256).to(boundary)
    mix = hyper.Mix(torch.rand(3, 4), torch.rand(3, 4), torch.rand(3, 4, 4))
    wanted = hyper.expand(out, streams, mix.post, mix.comb, boundary)
    assert_bits_equal(RowHyper(tools).expand(out, streams, mix), wanted)


def test_what_experts_gave_is_summed_as_it_is_spread(tools: Toolbox) -> None:
    """By the definition's order and rounding, of any number of slots."""
    boundary = boundary_of(tools)
    streams, shared = randoms(3, 4, 256, device=CPU, dtype=boundary), torch.randn(3, 256)
    shared = shared.to(boundary)
    mix = hyper.Mix(torch.rand(3, 4), torch.rand(3, 4), torch.rand(3, 4, 4))
    for slots in (1, 6, 9):
        routed = torch.randn(3, slots, 256)
        out = (in_order(routed) + shared.float()).to(boundary)
        wanted = hyper.expand(out, streams, mix.post, mix.comb, boundary)
        assert_bits_equal(RowHyper(tools).expand(shared, streams, mix, routed), wanted)


@pytest.mark.parametrize(("slots", "width"), [(0, 256), (6, 320)])
def test_streams_spread_as_they_are_read_have_the_bits_of_those_spread_before(
    tools: Toolbox, slots: int, width: int
) -> None:
    """Also where a slice has parts of two streams."""
    boundary, fast = boundary_of(tools), RowHyper(tools)
    streams = randoms(3, 4, width, device=CPU, dtype=boundary)
    out = torch.randn(3, width).to(boundary)
    routed = torch.randn(3, slots, width) if slots else None
    mix = hyper.Mix(torch.rand(3, 4), torch.rand(3, 4), torch.rand(3, 4, 4))
    given = (torch.randn(24, 4 * width), torch.rand(24), torch.rand(3), None, torch.rand(width))
    how = {"iterations": 3, "eps": EPS, "norm_eps": EPS}
    spread = fast.expand(out, streams, mix, routed)
    _, wanted, wanted_x = fast.mix_and_read(spread, *given, **how)
    late = hyper.Unspread(out, routed, streams, mix)
    whole, found, x = fast.mix_and_read(late, *given, **how)
    assert_bits_equal(whole, spread)
    assert_bits_equal(x, wanted_x)
    for part in ("pre", "post", "comb"):
        assert_bits_equal(getattr(found, part), getattr(wanted, part))


@pytest.mark.parametrize("late", [False, True])
def test_streams_of_any_few_rows_have_the_bits_of_those_among_others(
    tools: Toolbox, late: bool
) -> None:
    """Rows that are no whole share of a block among them."""
    boundary, fast, width = boundary_of(tools), RowHyper(tools), 256
    streams = randoms(9, 4, width, device=CPU, dtype=boundary)
    out, routed = torch.randn(9, width).to(boundary), torch.randn(9, 6, width)
    mix = (torch.rand(9, 4), torch.rand(9, 4), torch.rand(9, 4, 4))
    given = (torch.randn(24, 4 * width), torch.rand(24), torch.rand(3), None, torch.rand(width))

    def run(rows: int) -> tuple[Tensor, ...]:
        own = hyper.Unspread(
            out[:rows], routed[:rows], streams[:rows], hyper.Mix(*(one[:rows] for one in mix))
        )
        read = own if late else fast.expand(own.out, own.streams, own.mix, own.routed)
        whole, found, x = fast.mix_and_read(read, *given, iterations=3, eps=EPS, norm_eps=EPS)
        return whole, x, found.pre, found.post, found.comb

    wanted = run(9)
    for rows in range(1, 9):
        for one, of_all in zip(run(rows), wanted, strict=True):
            assert_bits_equal(one, of_all[:rows], f"{rows} rows")


@pytest.mark.parametrize(("width", "block"), [(1024, 128), (5120, 32)])
def test_blocks_that_end_a_mix_together_leave_the_bits_of_one(
    tools: Toolbox, width: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the head, and of a row beside one that is no number."""
    if not tools.form.clusters:
        pytest.skip("no clusters")
    fast, streams = RowHyper(tools), randoms(2, 4, width, device=CPU, dtype=torch.bfloat16)
    streams[1, 2, 77] = NAN
    fn, base, scale, norm = (
        torch.randn(24, 4 * width),
        torch.rand(24),
        torch.rand(3),
        torch.rand(width),
    )
    epsilons = {"eps": EPS, "norm_eps": EPS}

    def run() -> list[Tensor]:
        found = []
        for pre in (None, torch.linspace(0.1, 2, 8).view(2, 4)):
            given = (streams, fn, base, scale, pre, norm)
            _, mix, x = fast.mix_and_read(*given, iterations=2, act_block=block, **epsilons)
            found += [x, mix.pre, mix.post, mix.comb, *tools.quantise(x, block)]
        head = (fn[:4], base[:4], scale[:1], norm)
        return [*found, *fast.read_by_head(streams, *head, **epsilons)]

    together = run()
    monkeypatch.setattr(hyper_kernels, "peer_threads", lambda form, width: 0)
    for found, wanted in zip(together, run(), strict=True):
        assert_bits_equal(found, wanted)


def test_what_a_sublayer_reads_has_the_bits_of_the_definition(tools: Toolbox) -> None:
    """With given weights of the streams: only the projection has sums of its own."""
    boundary = boundary_of(tools)
    streams, pre = randoms(3, 4, 512, device=CPU, dtype=boundary), torch.rand(3, 4)
    fn, norm = torch.randn(24, 2048), torch.rand(512)
    _, _, found = RowHyper(tools).mix_and_read(
        streams, fn, torch.rand(24), torch.rand(3), pre, norm, iterations=3, eps=EPS, norm_eps=EPS
    )
    wanted = rms_norm(hyper.collapse(streams, pre, boundary), norm, EPS, boundary)
    assert_bits_equal(found, wanted)


def test_streams_read_by_given_weights_have_the_bits_of_the_definition(tools: Toolbox) -> None:
    boundary, fast, norm = boundary_of(tools), RowHyper(tools), torch.rand(512)
    streams, pre = randoms(3, 4, 512, device=CPU, dtype=boundary), torch.rand(3, 4)
    wanted = hyper.collapse(streams, pre, boundary)
    plain, normed = fast.read(streams, pre, norm, EPS)
    assert_bits_equal(plain, wanted)
    assert_bits_equal(normed, rms_norm(wanted, norm, EPS, boundary))
    assert_bits_equal(fast.mean(streams), hyper.mean(streams, boundary))


@pytest.mark.parametrize("block", [128, 32])
def test_what_products_read_comes_rounded_as_they_would_round_it(
    tools: Toolbox, block: int
) -> None:
    assert_input_comes_rounded(tools, CPU, block)


def test_norms_have_the_bits_of_the_definition(tools: Toolbox) -> None:
    boundary, fast = boundary_of(tools), RowVectors(tools)
    for width in (64, 512, 1024):
        x, weight = randoms(3, width, device=CPU, dtype=boundary), torch.rand(width)
        assert_bits_equal(fast.norm(x, weight, EPS), rms_norm(x, weight, EPS, boundary), f"{width}")
    x = randoms(2, 3, 512, device=CPU, dtype=boundary)
    start, still = torch.zeros(2, dtype=torch.int64), torch.zeros(32)
    wanted = rms_norm(x, None, EPS, boundary)
    assert_bits_equal(fast.queries(x, EPS, start, still), wanted, "queries")


STORED = (kv_row(512, 64), window_row_v41(512), index_row(128), compressed_row_v41(512))


@pytest.mark.parametrize("stored", STORED, ids=lambda stored: stored.name)
def test_stored_bytes_are_those_of_the_definition(tools: Toolbox, stored: RowFormat) -> None:
    """At the start, where nothing is turned; one row is tiny, one holds zeros."""
    boundary, fast = boundary_of(tools), RowVectors(tools)
    dim, normed = stored.dim, stored.name != "fp4-fine"
    x, weight = randoms(4, dim, device=CPU, dtype=boundary), torch.rand(dim) if normed else None
    x[1], x[2, 64:128] = x[1] * 1e-12, 0.0
    start, still, at = (
        torch.zeros(4, dtype=torch.int64),
        torch.zeros(32),
        torch.tensor([5, 0, 3, 6]),
    )
    found, wanted = (Rows.empty(stored, 7, CPU) for _ in range(2))
    fast.keep(x, weight, EPS, start, still, found, at)
    put(wanted, at, x if weight is None else rms_norm(x, weight, EPS, boundary))
    assert_bits_equal(found.data, wanted.data, "data")
    assert_bits_equal(found.scale, wanted.scale, "scales")


def test_index_queries_have_the_bits_of_the_definition(tools: Toolbox) -> None:
    boundary, fast = boundary_of(tools), RowVectors(tools)
    x = randoms(2, 3, 128, device=CPU, dtype=boundary)
    x[1, 1] = 0.0
    found = fast.index_queries(x, torch.zeros(2, dtype=torch.int64), torch.zeros(32))
    assert_bits_equal(found, fp4_grid(hadamard(x, boundary)))


def test_a_row_of_nan_stays_alone(tools: Toolbox) -> None:
    boundary, fast = boundary_of(tools), RowVectors(tools)
    x, weight = randoms(3, 512, device=CPU, dtype=boundary), torch.rand(512)
    at, turn = torch.arange(3), torch.rand(32)
    for stored in (kv_row(512, 64), window_row_v41(512)):
        rows, sick = Rows.empty(stored, 3, CPU), x.clone()
        fast.keep(x, weight, EPS, at, turn, rows, at)
        wanted = rows.get(at)
        sick[1, 7] = NAN
        fast.keep(sick, weight, EPS, at, turn, rows, at)
        assert rows.get(at)[1].isnan().all()
        assert_bits_equal(rows.get(at)[::2], wanted[::2])


def test_a_group_of_nan_has_a_scale_of_nan_and_infinity_the_largest(tools: Toolbox) -> None:
    """Where rows are not normed: what is beside it in the row stays."""
    boundary, fast = boundary_of(tools), RowVectors(tools)
    x, at = randoms(2, 512, device=CPU, dtype=boundary), torch.arange(2)
    x[0, 7], x[1, 40], x[1, 41] = NAN, float("inf"), float("-inf")
    found, wanted = (Rows.empty(compressed_row_v41(512), 2, CPU) for _ in range(2))
    fast.keep(x, None, EPS, torch.zeros(2, dtype=torch.int64), torch.zeros(32), found, at)
    put(wanted, at, x)
    assert_bits_equal(found.get(at), wanted.get(at))
    assert found.get(at)[0, :16].isnan().all()
    assert found.get(at)[0, 16:].isfinite().all()


def test_ties_go_to_the_lowest_expert_and_token(tools: Toolbox) -> None:
    logits = torch.zeros(2, 64)
    logits[1, [3, 40]] = 1.0
    given = {"bias": torch.zeros(64), "table": None, "token_ids": None}
    found = RowRoute(tools).route(logits, 4, 1.5, **given)
    wanted = route(logits, 4, 1.5, **given)
    assert found[0].tolist() == wanted[0].tolist() == [[0, 1, 2, 3], [0, 1, 3, 40]]
    logits = torch.zeros(4, 300)
    logits[1, [17, 250]] = 2.0
    logits[2, 9] = NAN
    logits[3] = float("-inf")
    trial = sample_trial(tools, CPU)
    assert trial.kernel(logits)[:2].flatten().tolist() == [0, 17]
    assert trial.kernel(logits)[2:].isnan().all()


def test_no_rows_give_no_rows(tools: Toolbox) -> None:
    boundary = boundary_of(tools)
    some = [
        *hyper_trials(tools, CPU, boundary, width=256),
        *vector_trials(tools, CPU, boundary),
        *compress_trials(tools, CPU, boundary),
        *route_trials(tools, CPU),
    ]
    for trial in some:
        assert trial.kernel(trial.inputs()[:0]).shape[0] == 0, trial.shape
    empty = torch.zeros(0, 10)
    assert sample_trial(tools, CPU, 10).kernel(empty).shape == (0, 1)
    assert StepSample(tools).takes(empty)
