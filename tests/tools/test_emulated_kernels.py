"""The kernels themselves, lane by lane on a processor, in each form: near their definitions, and
rows with the same bits alone and among others."""

import shutil
from pathlib import Path

import pytest
import torch

from relight.kernels.canary import relative_error
from relight.kernels.codec import fp8_quantise, fp8_round
from relight.kernels.experts import cuda as experts
from relight.kernels.testing import assert_bits_equal
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials import fp4_stack, linear_trials, tokens
from tools.emulate import emulated

CPU = torch.device("cpu")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


@pytest.fixture(params=["sm_70", "sm_75", "sm_80"])
def tools(request: pytest.FixtureRequest, tmp_path: Path) -> Toolbox:
    torch.manual_seed(1)
    return emulated(request.param, tmp_path)


def test_products_are_near_their_definitions(tools: Toolbox) -> None:
    fp8, *_, wide = linear_trials(tools, CPU, outputs=128)
    for trial in (fp8, wide):
        x = trial.inputs()
        found = trial.kernel(x)
        assert relative_error(found, trial.reference(x)) <= trial.tolerance, trial.shape
        assert_bits_equal(trial.kernel(x[4:5]), found[4:5], trial.shape)


def test_tokens_are_rounded_as_by_the_definition(tools: Toolbox) -> None:
    x = tokens(5, 256, CPU, torch.float32)
    x[2] *= 1e-9
    x[1, 3], x[3, 200] = float("nan"), float("inf")
    codes, scales = tools.quantise(x)
    wanted, exponents = fp8_quantise(x, 128)
    healthy = [0, 2, 4]
    assert_bits_equal(codes[healthy], wanted[healthy])
    assert_bits_equal(scales[healthy], torch.exp2(exponents[healthy].float() - 127))
    assert scales.isnan().tolist() == [[0, 0], [1, 0], [0, 0], [0, 1], [0, 0]]


def test_an_experts_down_product_is_near_its_definition(tools: Toolbox) -> None:
    """Nine rows, most of which share experts."""
    w = fp4_stack(3, 64, 2048, CPU)
    x = tokens(18, 2048, CPU, torch.float32)
    ids = torch.tensor([[0, 1], [1, 2], [0, 2], [0, 1], [0, 1], [0, 1], [0, 1], [0, 2], [0, 1]])
    launch, walk = tools.load_walk(experts.down(tools.form, boundary_bf16=False))
    codes, scales = tools.quantise(x)
    found = torch.full((9, 2, 64), float("nan"))
    launch((64 // walk.block_rows, 18), w.data, w.scale, codes, scales, ids, found, 18, 64)
    exact = fp8_round(x, 128).double()
    rows = [w.expert(int(e)).decode().double() @ exact[p] for p, e in enumerate(ids.flatten())]
    assert relative_error(found.view(18, 64), torch.stack(rows)) <= 2e-6
    total = tools.sum_slots(found)
    assert_bits_equal(total, found[:, 0] + found[:, 1])
