"""The step benchmark on a processor, at a small size."""

import json
import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from relight.base.formats import float_row
from relight.base.official import V4_FLASH, V41_FLASH
from relight.base.tensors import backbone_tensors
from relight.cli.main import app
from relight.kernels import linear, store
from relight.kernels.codec import DenseWeight, Fp8Weight
from relight.kernels.experts import Experts
from relight.kernels.rows import Rows
from relight.lab import step_bench
from relight.lab.clock import Clock
from relight.lab.machine import device_name
from relight.lab.peer import layer_times
from relight.lab.random_model import cut, narrow, random_weights
from relight.lab.roof import Roof
from relight.lab.step import jobs, measure
from relight.lab.step_bench import (
    SMALL,
    Bench,
    Found,
    build,
    given_segment,
    made_segment,
    same_experts,
)
from relight.lab.step_calls import listening, moved_bytes

CPU = torch.device("cpu")


@pytest.mark.slow
def test_every_layer_and_op_of_both_models_is_timed(tmp_path: Path) -> None:
    out = tmp_path / "step.json"
    done = CliRunner().invoke(
        app, ["step", "--small", "--device", "cpu", "--out", str(out)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert found["finished"]
    assert found["roof"]["stream_bytes_per_s"] > 0
    assert (found["device"], found["torch"]) == (device_name(CPU), str(torch.__version__))
    assert found["rounds"] == SMALL.rounds
    assert found["command"].split()[0] == "relight"
    v4, v41 = found["models"]["v4-flash"], found["models"]["v4.1-flash"]
    assert {line["layer"] for line in v4["layers"]} == {"step", "draw", "csa", "hca"}
    same = [(line["layer"], line["rows"]) for line in v4["layers"] if "experts" in line]
    assert same == [("step", 2), ("draw", 2), ("csa", 2), ("hca", 2)]
    assert {line["layer"] for line in v41["layers"]} == {"step", "draw"}
    for model in (v4, v41):
        assert {line["rows"] for line in model["layers"]} == {1, 2}
        assert all(line["us"] > 0 and line["bytes"] >= 0 for line in model["ops"])
        assert {line["family"] for line in model["ops"]} == {"step", "prefill"}
        heard = {line["op"].split()[0].split(".")[0] for line in model["ops"]}
        assert {"linear", "experts", "attend", "index", "hyper", "norm", "rope", "store"} <= heard
        products = [line for line in model["ops"] if line["op"].startswith("linear [")]
        assert all("share_of_matrix" in line and "matmul_us" in line for line in products)
    assert "v4-flash, 4 of 43 layers, narrow" in done.output


def test_no_more_layers_are_made_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_bench, "free_bytes", lambda device: 0)
    told: Found = {}
    build("v4-flash", SMALL, Clock(CPU), Roof(1.0, 1.0, "", ""), math.inf, told)
    assert told["layers_here"] == 2


def test_what_there_is_no_time_for_is_named() -> None:
    told: list[bool] = []
    wanted = replace(SMALL, models=("v4-flash",), seconds=-1.0)
    found = measure(wanted, CPU, lambda found: told.append(found["finished"]))
    assert not found["finished"]
    assert found["models"]["v4-flash"]["left"][0] == "1 rows at 256"
    assert told == [False, False]


@pytest.fixture(scope="module")
def bench() -> Bench:
    wanted = replace(SMALL, first=(1, 2), widths=(1, 2, 3), contexts=(64, 256), chunks=(32, 64))
    return build("v4-flash", wanted, Clock(CPU), Roof(1.0, 1.0, "", ""), math.inf, {})


def test_lines_with_bars_come_first_and_ops_last(bench: Bench) -> None:
    real = replace(bench, wanted=replace(bench.wanted, small=False))
    assert [(job.key, job.what) for job in jobs(real)] == [
        ("layers", "1 rows at 256"),
        ("layers", "2 rows at 256"),
        ("layers", "2 rows on the same experts"),
        ("prefill", "a chunk of 32"),
        ("prefill", "a chunk of 64"),
        ("transformers", "transformers' layer"),
        ("layers", "3 rows at 256"),
        ("layers", "1 rows at 64"),
        ("layers", "2 rows at 64"),
        ("layers", "3 rows at 64"),
        ("ops", "ops of 1 rows at 256"),
        ("ops", "ops of 2 rows at 256"),
        ("ops", "ops of 3 rows at 256"),
        ("ops", "ops of 1 rows at 64"),
        ("ops", "ops of a chunk of 32"),
        ("ops", "ops of a chunk of 64"),
    ]


def test_each_line_is_told_when_it_is_there() -> None:
    wanted = replace(SMALL, models=("v4-flash",), widths=(1,), chunks=(), layers=2, peers=False)
    seen: list[int] = []

    def tell(found: Found) -> None:
        one = found["models"]["v4-flash"]
        seen.append(len(one["layers"]) + len(one["ops"]))

    measure(wanted, CPU, tell)
    assert seen[:-2] == list(range(1, seen[-1] + 1))


@pytest.mark.parametrize("family", ["step", "prefill"])
def test_all_products_of_a_step_are_heard_also_in_branches(bench: Bench, family: str) -> None:
    """Those of the indexer, too: rows see more entries than are selected."""
    runner = bench.runner
    segment = made_segment(runner, 2, 256) if family == "step" else given_segment(runner, 256)
    with torch.inference_mode(), listening() as heard:
        bench.network.forward(segment, runner.states)
    multiplied = {call.weight.data.data_ptr() for call in heard if call.weight is not None}
    layers = bench.network.weights.layers
    products = [w for layer in layers for w in weights_of(layer) if not isinstance(w, Experts)]
    assert {w.data.data_ptr() for w in products} <= multiplied
    kinds = [call.kind.split()[0] for call in heard]
    assert kinds.count("experts.experts_apart") == len(layers)


def weights_of(node: object) -> Iterator[Any]:
    if isinstance(node, DenseWeight | Fp8Weight | Experts):
        yield node
    elif is_dataclass(node):
        for one in fields(node):
            yield from weights_of(getattr(node, one.name))


def test_rows_on_the_same_experts_choose_alike_and_biases_come_back(bench: Bench) -> None:
    biases = [block.moe.weights.router.bias for block in bench.network.blocks]
    before = [bias.clone() for bias in biases]
    segment = made_segment(bench.runner, 3, 256)
    with torch.inference_mode(), same_experts(bench.network):
        with listening() as heard:
            bench.network.forward(segment, bench.runner.states)
        routed = [call.run()[0] for call in heard if call.kind.startswith("route")]
    assert len(routed) == len(biases)
    assert all(torch.equal(ids, ids[:1].expand_as(ids)) for ids in routed)
    assert all(torch.equal(bias, old) for bias, old in zip(biases, before, strict=True))


class OneLayer:
    """A millisecond faster with each step, without room for prompts of more than 100 tokens."""

    def __init__(self, *_: object) -> None:
        self.step_ms = 10.0

    def step(self) -> float:
        self.step_ms -= 1
        return self.step_ms

    def read(self, rows: int) -> float:
        if rows > 100:
            raise torch.OutOfMemoryError("no room")
        return 50.0


def test_the_peers_step_and_prompts_are_told_up_to_the_one_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relight.lab.peer.Peer", OneLayer)
    step, prompt, failed = layer_times(CPU, 256, (64, 128), 8, 3)
    assert (step["rows"], step["context"], step["us"]) == (1, 256, 6000.0)
    assert (prompt["rows"], prompt["context"], prompt["us"]) == (64, 0, 50_000.0)
    assert failed == {"why_not": "OutOfMemoryError: no room"}


@pytest.mark.parametrize("config", [V4_FLASH, V41_FLASH])
def test_random_weights_have_every_tensor_and_no_nan(config) -> None:
    small = cut(narrow(config), 2)
    weights = random_weights(small, CPU)
    stored = sum(t.nbytes for t in backbone_tensors(small))
    norms = sum(t.nbytes for t in backbone_tensors(small) if "norm" in t.name)
    assert stored <= weights.nbytes <= stored + norms + 10_000
    for layer in weights.layers:
        w = layer.attention.wq_b.decode()
        assert bool(w.isfinite().all())
        assert 0.2 < float(w.std()) * w.shape[1] ** 0.5 < 5


def test_calls_are_heard_once_with_their_arguments_and_nothing_stays_behind() -> None:
    before = linear.linear
    x, w = torch.randn(3, 64), DenseWeight(torch.randn(32, 64))
    rows = Rows.empty(float_row(64), 5, CPU)
    with listening() as heard:
        out = linear.linear(x, w, "step", False, torch.float32)
        store.put(rows, torch.arange(3), x)
    assert linear.linear is before
    product, put = heard
    assert product.kind == "linear [32, 64] float32"
    assert product.nbytes == x.nbytes + w.data.nbytes + out.nbytes
    assert torch.equal(product.run(), out)
    assert put.kind == "store.put []"


def test_a_choice_inside_of_candidates_reads_their_keys_only() -> None:
    """Blocks that rows of a sequence share count once; a row that sees no more than it may choose
    needs none; behind what is seen there is nothing to read."""
    tensors = {
        "places": torch.arange(200).view(2, 100),
        "visible": torch.tensor([98, 90, 9]),
        "candidates": torch.tensor([[0, 2, 12], [2, 3, -1], [0, 1, -1]]),
    }
    keys = Rows.empty(float_row(32), 200, CPU)
    named = {"keys": keys, "counts": [2, 1], **tensors, "k": 10, "size": 8}
    entries = 8 + 8 + 8 + 2  # blocks 0, 2, 3 and what is seen of 12; the third row chooses all
    given = sum(x.nbytes for x in tensors.values())
    assert moved_bytes(named) == given + entries * 32 * 4
    del named["candidates"]
    given -= tensors["candidates"].nbytes
    assert moved_bytes(named) == given + 200 * 32 * 4


def test_runs_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []
    runs = {name: lambda name=name: order.append(name) for name in "ab"}
    times = Clock(CPU).measure(runs, 3)
    assert "".join(order) == "ab" * 4
    assert all(0 <= one.least <= one.median <= one.most for one in times.values())


@pytest.mark.parametrize("text", ["", "0", "1,x"])
def test_widths_that_are_no_numbers_are_named(text: str) -> None:
    done = CliRunner().invoke(app, ["step", "--rows", text, "--device", "cpu"])
    assert "rows is" in str(done.exception)


def test_what_is_asked_for_counts_beside_small_too(tmp_path: Path) -> None:
    out = tmp_path / "step.json"
    asked = ["--rows", "3", "--context", "130", "--chunk", "0", "--layers", "2", "--no-peers"]
    done = CliRunner().invoke(
        app,
        ["step", "--small", "--model", "v4-flash", "--device", "cpu", "--out", str(out), *asked],
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    v4 = json.loads(out.read_text())["models"]["v4-flash"]
    assert {(line["rows"], line["context"]) for line in v4["layers"]} == {(3, 130)}
    assert (v4["layers_here"], v4["prefill"]) == (2, [])


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ([], "device is cpu, where as many layers of real size as fit"),
        (["--small", "--kernels", "fast"], "kernels is 'fast'"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_made(
    asked: list[str], found: str
) -> None:
    done = CliRunner().invoke(app, ["step", "--device", "cpu", *asked])
    assert found in str(done.exception)
