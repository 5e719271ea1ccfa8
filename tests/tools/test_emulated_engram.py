"""The kernels of n-grams, lane by lane on a processor: rows and values of the definition, gates
near it, and rows with the same bits alone and among others."""

import shutil

import pytest
import torch

from relight.kernels import engram
from relight.kernels.canary import check
from relight.kernels.codec import fp8_quantise
from relight.kernels.cuda_tools import ENGRAM
from relight.kernels.engram.rows import RowEngram
from relight.kernels.select import Selection
from relight.kernels.testing import assert_bits_equal
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials_engram import engram_trials
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
    torch.manual_seed(4)


def test_rows_are_found_and_gates_are_near(tools: Toolbox) -> None:
    """Of 320 columns: halves that are no power of two."""
    assert check(Selection((ENGRAM,)), engram_trials(tools, CPU, width=320)).refused == ()


def test_hashes_are_those_of_the_definition_for_any_number_of_orders(tools: Toolbox) -> None:
    for orders, heads in ((2, 1), (4, 8), (5, 11)):
        classes = torch.randint(99_092, (3, orders))
        factors = torch.randint(2**40, 2**45, (orders,)) * 2 + 1
        primes = torch.randint(2**20, 2**24, (orders - 1, heads))
        wanted = engram.table_rows(classes, factors, primes)
        assert torch.equal(RowEngram(tools).table_rows(classes, factors, primes), wanted)


@pytest.mark.parametrize("width", [256, 32, 96])
@pytest.mark.parametrize("boundary", [torch.float32, torch.bfloat16])
def test_looked_up_values_are_exact_from_a_table_and_from_a_part_of_it(
    tools: Toolbox, boundary: torch.dtype, width: int
) -> None:
    """Every code and every scale that a bf16 holds, NaN too."""
    codes = (torch.arange(20 * width) % 256).to(torch.uint8).view(20, width)
    scale = torch.randint(20, 240, (20, width // 32), dtype=torch.uint8)
    scale[3, -1] = 255
    fast, rows = RowEngram(tools), torch.tensor([[3, 19, 0], [7, 3, 3]])
    assert fast.takes_table(codes, scale)
    found = fast.gather(codes, scale, rows, boundary)
    assert_bits_equal(found, engram.gather(codes, scale, rows).to(boundary))
    listed, places = rows.unique(return_inverse=True)
    part = fast.gather(codes[listed], scale[listed], places, boundary)
    assert_bits_equal(part, found)


def test_a_gate_of_nan_stays_in_its_stream_and_row(tools: Toolbox) -> None:
    boundary = torch.bfloat16 if tools.form.bf16 else torch.float32
    fast, gain = RowEngram(tools), torch.randn(4, 64)
    streams, mapped = torch.randn(3, 4, 64).to(boundary), torch.randn(3, 5 * 64).to(boundary)
    assert fast.takes(streams, boundary)
    wanted = fast.gate(streams, mapped, gain, 1e-20)
    streams[1, 2, 7] = NAN
    found = fast.gate(streams, mapped, gain, 1e-20)
    assert found[1, 2].isnan().all()
    healthy = torch.ones(3, 4, dtype=torch.bool)
    healthy[1, 2] = False
    assert_bits_equal(found[healthy], wanted[healthy])
    mapped[0, -1] = NAN  # a value, which all streams of its row take
    found = fast.gate(streams, mapped, gain, 1e-20)
    assert found[0, :, -1].isnan().all()
    assert_bits_equal(found[2], wanted[2])


def test_zeros_open_a_gate_a_little(tools: Toolbox) -> None:
    """No direction agrees with nothing: the sign of such a product is plus."""
    boundary = torch.bfloat16 if tools.form.bf16 else torch.float32
    streams, mapped = torch.zeros(1, 4, 64, dtype=boundary), torch.ones(1, 320, dtype=boundary)
    gain = torch.ones(4, 64)
    found = RowEngram(tools).gate(streams, mapped, gain, 1e-20)
    assert_bits_equal(found, engram.gate(streams, mapped, gain, 1e-20, boundary))


def test_no_rows_give_no_rows(tools: Toolbox) -> None:
    boundary = torch.bfloat16 if tools.form.bf16 else torch.float32
    fast, none = RowEngram(tools), torch.zeros(0, 4, dtype=torch.int64)
    factors, primes = torch.ones(4, dtype=torch.int64), torch.full((3, 2), 7)
    rows = fast.table_rows(none, factors, primes)
    assert rows.shape == (0, 6)
    table, scale = fp8_quantise(torch.randn(4, 64), 32)
    assert fast.gather(table, scale, rows, boundary).shape == (0, 6 * 64)
    streams = torch.zeros(0, 4, 64, dtype=boundary)
    assert fast.gate(streams, streams.new_zeros(0, 320), torch.ones(4, 64), 0.0).shape == (0, 4, 64)
