"""Branches of a layer beside others: whose turn it is, and that no bit hangs on it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.numerics import OFFICIAL
from relight.kernels.row_ops import Branch, Ops, RowOps
from relight.kernels.streams import side_stream
from relight.model.network import AnyWeights, load
from tests.model.harness import GOLDEN, Driver, same_bits


class Side:
    """Stands for a side stream: what it is given runs at once, or when it is waited for."""

    def __init__(self, *, first: bool) -> None:
        self.first = first
        self.forks = self.joins = 0

    def begin(self, work: Callable[[], Any]) -> "Begun":
        self.forks += 1
        return Begun(self, work)


class Begun:
    def __init__(self, side: Side, work: Callable[[], Any]) -> None:
        self._side = side
        self._work: Callable[[], Any] | None = work
        self._found = None
        if side.first:
            self._run()

    def _run(self) -> None:
        if self._work:
            self._found, self._work = self._work(), None
            self._side.joins += 1

    def join(self) -> Any:
        self._run()
        return self._found


def run(
    weights: AnyWeights, config: Any, device: str = "cpu"
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    driver = Driver(config, weights, OFFICIAL, num_slots=1, context=256, device=device)
    driver.set_length(0, 0)
    given = driver.given(0, list(range(5, 90)))
    made = torch.cat([driver.made(0, [7]), driver.made(0, [8, 9, 10, 11], 4)])
    return given, made, driver.readable(0)


FORKS = {
    "v4": {"shared": 4, "keys": 4, "index keys": 2, "index weights": 2, "queries": 2, "balance": 4},
    "v41": {
        "shared": 7,
        "keys": 7,
        "index keys": 0,
        "index weights": 3,
        "queries": 3,
        "balance": 7,
    },
}
"""Of a step, by branch: of "queries" those of layers that select."""

EVERY: tuple[Branch, ...] = ("keys", "index keys", "index weights", "queries", "balance", "shared")


@pytest.mark.parametrize("name", ["v4", "v41"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("beside", [("keys",), ("queries",), EVERY], ids="-".join)
def test_made_rows_have_branches_beside_and_given_rows_do_not(
    name: str, first: bool, beside: tuple[Branch, ...]
) -> None:
    model = open_model(GOLDEN / name / "checkpoint")
    config, weights = model.config, load(model, torch.device("cpu"))
    wanted = run(weights, config)
    sides = {branch: Side(first=first) for branch in beside}
    ops = Ops(step=RowOps(streams=sides))  # type: ignore[arg-type]
    given, made, state = run(replace(weights, ops=ops), config)
    for branch, side in sides.items():
        assert side.forks == side.joins == 2 * FORKS[name][branch], "two steps"
    assert same_bits(given, wanted[0])
    assert same_bits(made, wanted[1])
    assert all(same_bits(rows, wanted[2][kind]) for kind, rows in state.items())


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["v4", "v41"])
def test_a_stream_of_its_own_changes_no_bit(name: str) -> None:
    device = torch.accelerator.current_accelerator()
    assert device is not None
    model = open_model(GOLDEN / name / "checkpoint")
    weights = load(model, device)
    wanted = run(weights, model.config, device.type)
    streams = {branch: side_stream(device) for branch in EVERY}
    ops = Ops(step=RowOps(streams=streams))  # type: ignore[arg-type]
    given, made, state = run(replace(weights, ops=ops), model.config, device.type)
    assert same_bits(given, wanted[0])
    assert same_bits(made, wanted[1])
    assert all(same_bits(rows, wanted[2][kind]) for kind, rows in state.items())
