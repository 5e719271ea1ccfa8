"""Kernels inside the network, on a device or lane by lane on a processor: rows of either family
leave what the definitions leave, those of the other are not touched, and given rows leave the same
bits however they are cut."""

import random
import shutil
from collections.abc import Sequence
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
from relight.kernels.row_ops import DEFINITIONS, Ops, RowOps, chosen_ops
from relight.kernels.select import Selection
from relight.kernels.toolbox import Toolbox
from relight.model.network import AnyWeights, load
from tests.model.harness import GOLDEN, Driver, differing, same_bits
from tools.emulate import emulated

pytestmark = pytest.mark.slow

PROMPT = [random.Random(5).randrange(4, 320) for _ in range(PAGE_TOKENS + 2)]
START = PAGE_TOKENS - 3  # groups of 4 and of 128 close in the steps behind it

LONG = [random.Random(6).randrange(4, 320) for _ in range(PAGE_TOKENS + 22)]
"""More tokens than a ring has rows."""
CUTS = (3, 64, 131, 132)

BOTH = {
    *("attend_scores", "attend_values", "gated", "index_scores", "index_topk", "joined"),
    *("mix_end", "mix_parts", "spread", "norm values", "rope values"),
}
LAUNCHED = {
    "v4": BOTH
    | {"pool", "put_raw", "norm rope fp8 row", "plain norm rope values", "rope hadamard fp4 grid"},
    "v41": BOTH
    | {"norm rope fp8-all row", "norm rope fp4 row", "rope fp4-fine row", "rope fp4 grid"}
    | {"pool", "put_raw", "read_streams", "table_rows", "gather", "gate"},
}
GIVEN = {"copy_rows"}
"""Besides, of given rows: they read what a scratch holds, not a ring."""
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
def ops(noting: Noting) -> Ops:
    given = tuple(replace(one, family="prefill") for one in VARIANTS)
    return chosen_ops(noting, Selection((*VARIANTS, *given)))


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
    ops: Ops, noting: Noting, device: str, numerics: Numerics, name: str
) -> None:
    model = open_model(GOLDEN / name / "checkpoint")
    config, weights = model.config, load(model, torch.device(device))
    given, made, state = run(config, weights, numerics, device)
    noting.launched.clear()
    fast = replace(weights, ops=replace(ops, prefill=DEFINITIONS))
    same_given, near_made, near_state = run(config, fast, numerics, device)
    assert noting.launched == LAUNCHED[name]
    assert same_bits(given, same_given)
    assert_near(near_made, made, near_state, state)


@pytest.mark.parametrize(
    ("name", "numerics"),
    [("v4", OFFICIAL), ("v4", OFFICIAL_BF16), ("v41", OFFICIAL_BF16)],
    ids=["v4-float32", "v4-bf16", "v41-bf16"],
)
def test_given_rows_by_kernels_are_near_the_definitions_however_they_are_cut(
    ops: Ops, noting: Noting, device: str, numerics: Numerics, name: str
) -> None:
    """mHC's projection and the products of attention have sums of their own: as between the two
    families of definitions, a few of a long prompt's values fall on other sides of their steps, and
    what follows from them. All else leaves what the definitions leave."""
    model = open_model(GOLDEN / name / "checkpoint")
    config, weights = model.config, load(model, torch.device(device))

    def read_by(kernels: RowOps, cuts: Sequence[int] = ()) -> tuple[Tensor, dict[str, Tensor]]:
        some = replace(weights, ops=Ops(prefill=kernels))
        return read(config, some, numerics, device, cuts)

    wanted, state = read_by(DEFINITIONS)
    found, near_state = read_by(replace(ops.prefill, hyper=None, attend=None))
    assert_near(found, wanted, near_state, state)

    noting.launched.clear()
    found, near_state = read_by(ops.prefill)
    assert noting.launched == LAUNCHED[name] | GIVEN
    assert (found - wanted).norm() <= 0.1 * wanted.norm()
    cut, cut_state = read_by(ops.prefill, CUTS)
    assert same_bits(cut, found)
    assert not differing(cut_state, near_state)


def read(
    config: ModelConfig,
    weights: AnyWeights,
    numerics: Numerics,
    device: str,
    cuts: Sequence[int] = (),
) -> tuple[Tensor, dict[str, Tensor]]:
    context = 2 * PAGE_TOKENS
    driver = Driver(config, weights, numerics, num_slots=2, context=context, device=device)
    driver.set_length(1, 0)
    return driver.given(1, LONG, cuts), driver.readable(1)


def assert_near(
    found: Tensor, wanted: Tensor, found_state: dict[str, Tensor], state: dict[str, Tensor]
) -> None:
    assert (found - wanted).norm() <= 0.02 * wanted.norm()
    assert found_state.keys() == state.keys()
    for kind, rows in state.items():
        assert distance(found_state[kind], rows, raw="partial" in kind) <= 0.05, kind


def distance(found: Tensor, wanted: Tensor, *, raw: bool) -> float:
    """Of raw rows as a share of their norm, of packed bytes the share that differs."""
    if not wanted.numel():
        return 0.0
    if raw:
        found, wanted = (x.contiguous().view(torch.float32) for x in (found, wanted))
        return float((found - wanted).norm() / wanted.norm())
    return float((found != wanted).float().mean())
