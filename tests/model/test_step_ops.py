"""Kernels of the small ops inside the network, lane by lane on a processor: made rows leave what
the definitions leave, and given rows are not touched."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.numerics import OFFICIAL, OFFICIAL_BF16, Numerics
from relight.cache.layout import PAGE_TOKENS
from relight.kernels.cuda_tools import VARIANTS
from relight.kernels.select import Selection
from relight.kernels.step_ops import StepOps, step_ops
from relight.model.weights import ModelWeights, load_weights
from tests.model.harness import GOLDEN, Driver, same_bits
from tools.emulate import emulated

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]

PROMPT = [random.Random(5).randrange(4, 320) for _ in range(PAGE_TOKENS + 2)]
START = PAGE_TOKENS - 3  # groups of 4 and of 128 close in the steps behind it


@pytest.fixture(scope="module")
def weights() -> ModelWeights:
    return load_weights(open_model(GOLDEN / "v4" / "checkpoint"), torch.device("cpu"))


@pytest.fixture
def ops(tmp_path: Path) -> StepOps:
    return step_ops(emulated("sm_80", tmp_path), Selection(VARIANTS))


def run(weights: ModelWeights, numerics: Numerics) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    config = open_model(GOLDEN / "v4" / "checkpoint").config
    driver = Driver(config, weights, numerics, num_slots=2, context=2 * PAGE_TOKENS)
    driver.set_length(1, 0)
    given = driver.given(1, PROMPT[:START])
    made = torch.cat(
        [driver.made(1, PROMPT[START : START + 1]), driver.made(1, PROMPT[START + 1 :], 4)]
    )
    return given, made, driver.readable(1)


@pytest.mark.parametrize("numerics", [OFFICIAL, OFFICIAL_BF16], ids=["float32", "bf16"])
def test_a_step_by_kernels_is_near_the_step_by_definitions(
    weights: ModelWeights, ops: StepOps, numerics: Numerics
) -> None:
    given, made, state = run(weights, numerics)
    same_given, near_made, near_state = run(replace(weights, ops=ops), numerics)
    assert same_bits(given, same_given)
    assert (near_made - made).norm() <= 0.02 * made.norm()
    assert near_state.keys() == state.keys()
    for name, rows in state.items():
        raw = "partial" in name
        assert distance(near_state[name], rows, raw=raw) <= 0.05, name


def distance(found: Tensor, wanted: Tensor, *, raw: bool) -> float:
    """Of raw rows as a share of their norm, of packed bytes the share that differs."""
    if raw:
        found, wanted = (x.contiguous().view(torch.float32) for x in (found, wanted))
        return float((found - wanted).norm() / wanted.norm())
    return float((found != wanted).float().mean())
