"""Kernels inside the network, on a device or lane by lane on a processor: rows of either family
leave what the definitions leave, those of the other are not touched, and given rows leave the same
bits however they are cut."""

import random
import shutil
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.config import ModelConfig
from relight.base.numerics import OFFICIAL, OFFICIAL_BF16, Numerics
from relight.cache.layout import PAGE_TOKENS
from relight.engine.plan import Rows
from relight.kernels.build import Kernel
from relight.kernels.cuda_tools import ALL, VARIANTS, supported, toolbox
from relight.kernels.launch import Grid, Launch
from relight.kernels.row_ops import DEFINITIONS, NO_KERNELS, Ops, RowOps, chosen_ops
from relight.kernels.select import Selection
from relight.kernels.toolbox import Toolbox
from relight.model.attention import addresses
from relight.model.network import AnyWeights, load, network
from tests.model.harness import GOLDEN, Driver, differing, same_bits
from tools.emulate import emulated

pytestmark = pytest.mark.slow

PROMPT = [random.Random(5).randrange(4, 320) for _ in range(PAGE_TOKENS + 2)]
START = PAGE_TOKENS - 3  # groups of 4 and of 128 close in the steps behind it

MORE = [random.Random(6).randrange(4, 320) for _ in range(START + 20)]
CUTS = (3, 4, 9)
"""Of what is given behind START."""

BOTH = {
    *("attend_scores", "attend_values", "gated", "index_scores", "index_topk"),
    *("balance", "mix_end", "mix_parts", "spread", "spread_parts", "norm values"),
}
LAUNCHED = {
    "v4": BOTH
    | {"pool", "put_raw", "norm rope fp8 row", "plain norm rope values", "rope hadamard fp4 grid"},
    "v41": BOTH
    | {"norm rope fp8-all row", "norm rope fp4 row", "rope fp4-fine row", "rope fp4 grid"}
    | {"turn"}
    | {"pool", "put_raw", "read_streams", "table_rows", "gather", "gate"},
}
"""Routing is left out: the kernel wants experts by 32, and these networks have 4 and 6."""

ATTEND = {"attend_scores", "attend_values"}
"""Two kernels of a step, for which given rows have one where the matrix unit multiplies bf16."""

PROJECTED = {"given_linear", "split_weights"}
"""Of given streams that are whole tiles, as V4's are here. V4's head has a step's kernels."""


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
    return chosen_ops(noting, Selection(VARIANTS))


def tools(device: str, folder: Path) -> Toolbox:
    if device == "cpu":
        if shutil.which("g++") is None:
            pytest.skip("needs g++")
        return emulated("sm_90", folder)
    heard: list[str] = []
    there = supported(torch.device(device), heard.append)
    if not there.issuperset(ALL):
        pytest.fail(f"needs {', '.join(sorted(set(ALL) - there))}: {'; '.join(heard)}")
    return toolbox(torch.device(device), heard.append)


def golden(name: str, device: str) -> tuple[ModelConfig, AnyWeights]:
    """Tensors begin where a device's do: on a processor they are mapped, and lie anywhere."""
    model = open_model(GOLDEN / name / "checkpoint")
    return model.config, apart(load(model, torch.device(device)))


def apart(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.clone()
    if isinstance(tree, tuple | list):
        return type(tree)(apart(part) for part in tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        parts = {one.name: apart(getattr(tree, one.name)) for one in fields(tree) if one.init}
        return replace(tree, **parts)
    return tree


def run(
    config: ModelConfig, weights: AnyWeights, numerics: Numerics, device: str
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    driver = driver_of(config, weights, numerics, device)
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
    config, weights = golden(name, device)
    given, made, state = run(config, weights, numerics, device)
    noting.launched.clear()
    fast = replace(weights, ops=replace(ops, prefill=DEFINITIONS))
    same_given, near_made, near_state = run(config, fast, numerics, device)
    assert noting.launched == LAUNCHED[name]
    assert same_bits(given, same_given)
    assert_near(near_made, made, near_state, state)


@pytest.mark.parametrize("name", ["v4", "v41"])
def test_given_rows_by_kernels_are_near_the_definitions_however_they_are_cut(
    ops: Ops, noting: Noting, device: str, name: str
) -> None:
    """mHC's projection and the products of attention have sums of their own: as between the two
    families of definitions, a few of a long prompt's values fall on other sides of their steps, and
    what follows from them. All else leaves what the definitions leave."""
    config, weights = golden(name, device)

    def read_by(kernels: RowOps, cuts: Sequence[int] = ()) -> tuple[Tensor, dict[str, Tensor]]:
        driver = driver_of(config, weights, OFFICIAL_BF16, device)
        driver.given(1, MORE[:START])
        fast = replace(weights, ops=Ops(prefill=kernels))
        driver.runner.model = network(config, fast, OFFICIAL_BF16)
        return driver.given(1, MORE[START:], cuts), driver.readable(1)

    wanted, state = read_by(DEFINITIONS)
    found, near_state = read_by(replace(ops.prefill, hyper=None, attend=None))
    assert_near(found, wanted, near_state, state)

    noting.launched.clear()
    found, near_state = read_by(ops.prefill)
    wanted_launches = LAUNCHED[name] | {"copy_rows"}
    wanted_launches -= {"spread_parts"}
    if noting.form.bf16:
        wanted_launches = (wanted_launches - ATTEND) | {"attend_groups", "turn"}
        wanted_launches |= PROJECTED if name == "v4" else set()
    assert noting.launched == wanted_launches
    assert (found - wanted).norm() <= 0.1 * wanted.norm()
    cut, cut_state = read_by(ops.prefill, CUTS)
    assert same_bits(cut, found)
    assert not differing(cut_state, near_state)


def test_compressors_take_more_rows_than_a_ring_has(ops: Ops, noting: Noting, device: str) -> None:
    """Behind some that were given before: groups of both chunks, and what is kept of the last."""
    config, weights = golden("v4", device)
    generator = torch.Generator().manual_seed(7)
    chunks = [torch.randn(n, config.hidden_size, generator=generator) for n in (10, 150)]

    def stored(fast: Ops) -> dict[str, Tensor]:
        driver = driver_of(config, replace(weights, ops=fast), OFFICIAL, device)
        for x in chunks:
            rows = Rows(1, driver.length(1), (5,) * len(x), sample=False)
            segment = driver.runner.batch.segment("prefill", [rows])
            where = addresses(config, segment)
            for layer in (1, 2):
                attention = driver.runner.model.blocks[layer].attention
                state, ratio = driver.runner.states[layer], config.layers[layer].ratio
                given = (x.to(device), segment)
                rings, entries = where.partial_rings[ratio], where.entries[ratio]
                last = (attention.frequencies, attention.boundary)
                places = (state.partial, rings, entries, state.compressed)
                attention.compressor.store(*given, *places, *last)
                if attention.index_compressor is not None:
                    places = (state.index_partial, rings, entries, state.keys)
                    attention.index_compressor.store(*given, *places, *last, turned=True)
            driver.set_length(1, driver.length(1) + len(x))
        names = ("partial", "index_partial", "compressed", "index_keys")
        found = driver.readable(1)
        return {n: found[n] for n in found if n.startswith(names) and n[-1] in "12"}

    noting.launched.clear()
    found, wanted = stored(ops), stored(NO_KERNELS)
    assert noting.launched == {"pool", "put_raw"}
    assert len(found) == 8
    for kind, rows in wanted.items():
        assert distance(found[kind], rows, raw="partial" in kind) <= 0.001, kind


def driver_of(config: ModelConfig, weights: AnyWeights, numerics: Numerics, device: str) -> Driver:
    context = 2 * PAGE_TOKENS
    driver = Driver(config, weights, numerics, num_slots=2, context=context, device=device)
    driver.set_length(1, 0)
    return driver


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
