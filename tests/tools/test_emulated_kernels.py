"""The kernels themselves, lane by lane on a processor, in each form: near their definitions, and
rows with the same bits alone and among others."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from relight.kernels.canary import check, relative_error
from relight.kernels.codec import fp8_quantise, fp8_round
from relight.kernels.cuda_tools import EXPERTS
from relight.kernels.experts import cuda as experts
from relight.kernels.linear import cuda
from relight.kernels.linear.halves import Halves
from relight.kernels.linear.step import StepLinear
from relight.kernels.select import Selection
from relight.kernels.testing import assert_bits_equal
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials import experts_trial, fp4_stack, fp8_weight, linear_trials, tokens
from tools.emulate import emulated

CPU = torch.device("cpu")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


@pytest.fixture(params=["sm_70", "sm_75", "sm_80", "sm_90"])
def tools(request: pytest.FixtureRequest, tmp_path: Path) -> Toolbox:
    torch.manual_seed(1)
    return emulated(request.param, tmp_path)


@pytest.mark.parametrize("inner", [8192, 15360])
def test_blocks_of_a_cluster_sum_as_one_block_does(tmp_path: Path, inner: int) -> None:
    """SM89 has all that decides bits, but no clusters."""
    found, x = [], tokens(11, inner, CPU, torch.bfloat16)
    w = fp8_weight(64, inner, CPU, 32)
    for arch in ("sm_89", "sm_90"):
        (folder := tmp_path / arch).mkdir()  # a library of one name is loaded once
        made = StepLinear(emulated(arch, folder))
        found.append(made.linear(x, w, torch.bfloat16))
        assert_bits_equal(made.linear(x[:3], w, torch.bfloat16), found[-1][:3], "as of few rows")
    assert_bits_equal(*found)
    exact = fp8_round(x, 32).double() @ w.decode().double().T
    assert relative_error(found[1], exact) <= 4e-3


@pytest.mark.parametrize("inner", [4096, 5120])
def test_bf16_has_the_bits_of_other_numbers_of_outputs(tmp_path: Path, inner: int) -> None:
    """SM89 has room for 16 rows a warp, SM90 for 32, and clusters."""
    w, x = torch.randn(64, inner).bfloat16(), tokens(11, inner, CPU, torch.bfloat16)
    found = []
    for arch in ("sm_89", "sm_90"):
        (folder := tmp_path / arch).mkdir()
        tools = emulated(arch, folder)
        for rows, tiles in ((11, 2), (3, 1)):
            for outputs in cuda.BF16_OUTPUTS:
                made = cuda.bf16(tools.form, inner, tiles, False, outputs)
                product = StepLinear(tools)._product
                found.append(product(made, x[:rows], None, w, None, 1, torch.float32))
    for one in found:
        assert_bits_equal(one, found[0][: len(one)])


FEW = {128: (1024,), 32: (1408, 2304)}
"""Lengths: a measured one, one that a rule leaves in one slice of eleven units, and one of V4.1."""


def test_products_are_near_their_definitions(tools: Toolbox) -> None:
    for trial in linear_trials(tools, CPU, outputs=128, lengths=FEW, many=()):
        x = trial.inputs()
        found = trial.kernel(x)
        assert relative_error(found, trial.reference(x)) <= trial.tolerance, trial.shape
        assert_bits_equal(trial.kernel(x[4:5]), found[4:5], trial.shape)
        sick = x.clone()
        sick[1::3].flatten(1)[:, 5] = float("nan")
        beside = trial.kernel(sick)
        assert beside[1::3].isnan().flatten(1).any(1).all(), trial.shape
        for row in (0, 2, 3, 8):
            assert_bits_equal(beside[row], found[row], trial.shape)


@pytest.mark.parametrize("block", [128, 32])
@pytest.mark.parametrize("rows", [1, 8])
def test_a_product_that_rounds_its_tokens_has_the_bits_of_one_that_is_given_codes(
    tmp_path: Path, rows: int, block: int
) -> None:
    tools, bf16 = emulated("sm_90", tmp_path), torch.bfloat16
    fast, w, x = StepLinear(tools), fp8_weight(64, 8192, CPU, block), tokens(8, 8192, CPU, bf16)
    x[1, 128:256], x[2], x[5, 1024:] = 0.0, x[2] * 1e-9, x[5, 1024:] * 1e30
    x[3, 5], x[4, 700] = float("nan"), float("inf")
    found = fast.linear(x[:rows], w, bf16)
    wanted = fast.multiply(*tools.quantise(x[:rows], block), w, bf16)
    healthy = wanted.isfinite().all(1)
    assert healthy.tolist() == [row not in (3, 4) for row in range(rows)]
    assert_bits_equal(found[healthy], wanted[healthy])
    assert bool(found[~healthy].isnan().all())


def test_float32_tokens_come_back_from_their_halves(tmp_path: Path) -> None:
    """Each group by itself: a huge one, a tiny one, zeros, and one that is not finite."""
    halves, x = Halves(emulated("sm_70", tmp_path)), tokens(6, 192, CPU, torch.float32)
    x[1, :96] *= 1e36
    x[2] *= 1e-36
    x[3, 96:] = 0.0
    x[4, 100] = float("inf")
    parts, scale = halves.split(x, 2)
    found, wanted = halves.join(parts.float(), scale).view(6, 2, 96), x.view(6, 2, 96)
    sick = torch.zeros(6, 2, dtype=torch.bool)
    sick[4, 1] = True
    assert torch.equal(found.isnan().all(2), sick)
    assert torch.equal(found.isnan().any(2), sick)
    off = (found - wanted).abs().amax(2) / wanted.abs().amax(2).clamp(min=1e-38)
    assert bool((off[~sick] <= 2.0**-23).all())
    assert_bits_equal(halves.split(x[2:3], 2)[0], parts[[2, 8]], "a row alone")


@pytest.mark.parametrize("block", [128, 32])
def test_tokens_are_rounded_as_by_the_definition(tools: Toolbox, block: int) -> None:
    x = tokens(5, 256, CPU, torch.float32)
    x[2] *= 1e-9
    x[0, 128:160] = 0.0
    x[1, 3], x[3, 200] = float("nan"), float("inf")
    codes, scales = tools.quantise(x, block)
    wanted, exponents = fp8_quantise(x, block)
    healthy = [0, 2, 4]
    assert_bits_equal(codes[healthy], wanted[healthy])
    assert_bits_equal(scales[healthy], torch.exp2(exponents[healthy].float() - 127))
    sick = ~x.unflatten(1, (-1, block)).isfinite().all(2)
    assert torch.equal(scales.isnan(), sick)
    values = tools.round(x, block)
    assert_bits_equal(values[healthy].float() + 0.0, fp8_round(x, block)[healthy] + 0.0)
    assert torch.equal(values.isnan().unflatten(1, (-1, block)).all(2), sick)
    assert torch.equal(values.isnan().unflatten(1, (-1, block)).any(2), sick)


IDS = torch.tensor([[0, 1], [1, 2], [0, 2], [0, 1], [0, 1], [0, 1], [0, 1], [0, 2], [0, 1]])
"""Nine rows, most of which share experts."""


@pytest.mark.parametrize(("inner", "act_block"), [(2048, 128), (2304, 32)])
def test_an_experts_down_product_is_near_its_definition(
    tools: Toolbox, inner: int, act_block: int
) -> None:
    w = fp4_stack(3, 64, inner, CPU)
    x = tokens(18, inner, CPU, torch.float32)
    given = (x, None) if experts.rounds(tools.form) else tools.quantise(x, act_block)

    def product(few: bool) -> Tensor:
        kernel = experts.down(tools.form, inner, False, act_block, few=few)
        launch, walk = tools.load_walk(kernel)
        out = torch.full((9, 2, 64), float("nan"))
        grid, tiles = (-(-64 // (walk.block_rows * 3)), 18), 3  # the last block has fewer
        launch(grid, w.data, w.scale, *given, IDS, out, 18, 64, tiles)
        return out

    found = product(False)
    assert_bits_equal(product(True), found, "as of few rows")
    exact = fp8_round(x, act_block).double()
    rows = [w.expert(int(e)).decode().double() @ exact[p] for p, e in enumerate(IDS.flatten())]
    assert relative_error(found.view(18, 64), torch.stack(rows)) <= 2e-6
    total = tools.sum_slots(found)
    assert_bits_equal(total, found[:, 0] + found[:, 1])


@pytest.mark.parametrize(("inner", "act_block"), [(4096, 128), (5120, 32)])
def test_gate_and_up_have_the_same_bits_by_either_kernel(
    tools: Toolbox, inner: int, act_block: int
) -> None:
    """That of few rows walks once for every two tokens of an expert."""
    gate, up = (fp4_stack(3, 48, inner, CPU) for _ in range(2))
    x, route = tokens(9, inner, CPU, torch.float32), torch.rand(9, 2)

    def product(rows: slice, few: bool) -> Tensor:
        kernel = experts.gate_up(tools.form, inner, False, act_block, few=few)
        (launch, walk), ids = tools.load_walk(kernel), IDS[rows].contiguous()
        out = torch.full((*ids.shape, 48), float("nan"))
        grid, tiles = (-(-48 // (walk.block_rows * 2)), ids.numel()), 2  # the last block has one
        weights = (gate.data, up.data, gate.scale, up.scale)
        given = (*tools.quantise(x[rows], act_block), ids, route[rows].contiguous(), out)
        launch(grid, *weights, *given, ids.numel(), 2, 48, tiles, 10.0)
        return out

    found = product(slice(9), False)
    assert bool(found.isfinite().all())
    assert_bits_equal(product(slice(9), True), found, "as of few rows")
    assert_bits_equal(product(slice(4, 5), True), found[4:5], "alone")


@pytest.mark.parametrize("widths", [(256, 128), (384, 256)])
def test_experts_of_v41_are_near_their_definition(tools: Toolbox, widths: tuple[int, int]) -> None:
    """Of widths that are cut by a rule, in slices of one unit and of several."""
    trial = experts_trial(tools, CPU, count=4, slots=2, widths=widths, act_block=32)
    assert check(Selection((EXPERTS,)), [trial]).refused == ()
