"""Kernels inside the network, on a device or lane by lane on a processor: made rows leave what the
definitions leave, and given rows are not touched."""

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.config import ModelConfig
from relight.base.numerics import OFFICIAL, OFFICIAL_BF16, Numerics
from relight.cache.layout import PAGE_TOKENS
from relight.kernels.build import Kernel
from relight.kernels.cuda_tools import ALL, VARIANTS, supported, toolbox
from relight.kernels.launch import Grid, Launch
from relight.kernels.select import Selection
from relight.kernels.step_ops import StepOps, step_ops
from relight.kernels.toolbox import Toolbox
from relight.model.network import AnyWeights, load
from tests.model.harness import GOLDEN, Driver, same_bits
from tools.emulate import emulated

pytestmark = pytest.mark.slow

PROMPT = [random.Random(5).randrange(4, 320) for _ in range(PAGE_TOKENS + 2)]
START = PAGE_TOKENS - 3  # groups of 4 and of 128 close in the steps behind it

BOTH = {
    *("attend_scores", "attend_values", "gated", "index_scores", "index_topk", "joined"),
    *("mix_end", "mix_parts", "spread", "norm values", "rope values"),
}
LAUNCHED = {
    "v4": BOTH
    | {"pool", "put_raw", "norm rope fp8 row", "plain norm rope values", "rope hadamard fp4 grid"},
    "v41": BOTH | {"norm rope fp8-all row", "rope fp4 grid"},
}
"""Routing is left out: the kernel wants experts by 32, and these networks have 4 and 6."""


class Noting(Toolbox):
    """Notes which kernels are launched, by their entries; those of rows by what they do."""

    def __init__(self, tools: Toolbox) -> None:
        super().__init__(tools._builder, tools._launcher)
        self.launched: set[str] = set()

    def load(self, kernel: Kernel, threads: int, ring_bytes: int = 0) -> Launch:
        launch = super().load(kernel, threads, ring_bytes)
        entry = kernel.entry
        if entry == "row_op":
            entry = kernel.name.split(" to ")[1].rpartition(" ")[0]  # without the dtype

        def noted(grid: Grid, *arguments: Any) -> None:
            self.launched.add(entry)
            launch(grid, *arguments)

        return noted


@pytest.fixture(scope="module")
def noting(device: str, tmp_path_factory: pytest.TempPathFactory) -> Noting:
    return Noting(tools(device, tmp_path_factory.mktemp("ops")))


@pytest.fixture(scope="module")
def ops(noting: Noting) -> StepOps:
    return step_ops(noting, Selection(VARIANTS))


def tools(device: str, folder: Path) -> Toolbox:
    if device == "cpu":
        if shutil.which("g++") is None:
            pytest.skip("needs g++")
        return emulated("sm_80", folder)
    heard: list[str] = []
    there = supported(torch.device(device), heard.append)
    if not there.issuperset(ALL):
        pytest.fail(f"needs {', '.join(sorted(set(ALL) - there))}: {'; '.join(heard)}")
    return toolbox(torch.device(device), heard.append, folder)


def run(
    config: ModelConfig, weights: AnyWeights, numerics: Numerics, device: str
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    context = 2 * PAGE_TOKENS
    driver = Driver(config, weights, numerics, num_slots=2, context=context, device=device)
    driver.set_length(1, 0)
    given = driver.given(1, PROMPT[:START])
    made = torch.cat(
        [driver.made(1, PROMPT[START : START + 1]), driver.made(1, PROMPT[START + 1 :], 4)]
    )
    return given, made, driver.readable(1)


@pytest.mark.parametrize("name", ["v4", "v41"])
@pytest.mark.parametrize("numerics", [OFFICIAL, OFFICIAL_BF16], ids=["float32", "bf16"])
def test_a_step_by_kernels_is_near_the_step_by_definitions(
    ops: StepOps, noting: Noting, device: str, numerics: Numerics, name: str
) -> None:
    model = open_model(GOLDEN / name / "checkpoint")
    config, weights = model.config, load(model, torch.device(device))
    given, made, state = run(config, weights, numerics, device)
    noting.launched.clear()
    same_given, near_made, near_state = run(config, replace(weights, ops=ops), numerics, device)
    assert noting.launched == LAUNCHED[name]
    assert same_bits(given, same_given)
    assert (near_made - made).norm() <= 0.02 * made.norm()
    assert near_state.keys() == state.keys()
    for kind, rows in state.items():
        raw = "partial" in kind
        assert distance(near_state[kind], rows, raw=raw) <= 0.05, kind


def distance(found: Tensor, wanted: Tensor, *, raw: bool) -> float:
    """Of raw rows as a share of their norm, of packed bytes the share that differs."""
    if not wanted.numel():
        return 0.0
    if raw:
        found, wanted = (x.contiguous().view(torch.float32) for x in (found, wanted))
        return float((found - wanted).norm() / wanted.norm())
    return float((found != wanted).float().mean())
