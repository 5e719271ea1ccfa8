"""The step benchmark: one step of networks of real size, whole, layer by layer and op by op, beside
what the device can read and multiply in the same run. Knows no checkpoint.

Weights are random and as many layers as asked for or as fit, so that each call brings its own from
memory. Ops are heard in a step and run again alone with the same arguments; rows choose experts
anew in each layer. All that is compared runs in turn.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.base.types import SamplingParams
from relight.engine.plan import Draw
from relight.engine.sampler import sample_params
from relight.kernels.sample import sample
from relight.lab.clock import Clock, Times
from relight.lab.machine import device_name
from relight.lab.peer import layer_times
from relight.lab.roof import measure_roof
from relight.lab.step_bench import (
    PEER_BYTES,
    Bench,
    Found,
    Wanted,
    build,
    given_segment,
    made_segment,
    same_experts,
)
from relight.lab.step_calls import Call, listening
from relight.model.attention import addresses
from relight.model.inputs import Segment
from relight.model.network import Network
from relight.model.streams import Streams
from relight.model.transformer import Transformer

Tell = Callable[[Found], None]
Measured = Callable[[Bench, Segment, int], list[Found]]


def measure(wanted: Wanted, device: torch.device, tell: Tell, command: str = "") -> Found:
    """All of it; `tell` gets what there is whenever there is more. `command` is what asked."""
    deadline_s = time.monotonic() + wanted.seconds
    clock = Clock(device)
    roof = measure_roof(clock, small=wanted.small)
    models: Found = {}
    found: Found = {
        "command": command,
        "device": device_name(device),
        "torch": str(torch.__version__),
        "rounds": wanted.rounds,
        "roof": roof.told(),
        "recorded": clock.records,
        "models": models,
        "finished": False,
    }
    for name in wanted.models:
        told: Found = {}
        models[name] = told
        bench = build(name, wanted, clock, roof, deadline_s, told)
        _measure(bench, told, lambda: tell(found))
        told["left"] = bench.left
        del bench
        tell(found)
    found["finished"] = not any(told["left"] for told in models.values())
    tell(found)
    return found


def _measure(bench: Bench, told: Found, tell: Callable[[], None]) -> None:
    for job in jobs(bench):
        if bench.in_time(job.what):
            for line in job.lines():
                told[job.key].append(line)
                tell()


@dataclass(frozen=True, slots=True)
class Job:
    """Some lines, and the list that they belong to."""

    what: str
    key: str
    lines: Callable[[], Iterable[Found]]


def jobs(bench: Bench) -> Iterator[Job]:
    """What is asked for most comes first, since time may end: few rows and prompts of the usual
    lengths, the peer, other widths and contexts, ops."""
    wanted, usual = bench.wanted, bench.wanted.context
    contexts = sorted(wanted.contexts, key=lambda one: one != usual)
    cases = [(rows, context) for context in contexts for rows in wanted.widths]
    first = [(rows, usual) for rows in wanted.first if (rows, usual) in cases]
    for rows, context in first:
        yield Job(f"{rows} rows at {context}", "layers", partial(_made, bench, rows, context))
    if first and first[-1][0] == wanted.first[-1]:
        rows = wanted.first[-1]
        yield Job(f"{rows} rows on the same experts", "layers", partial(_made_on_same, bench, rows))
    for rows in wanted.chunks:
        yield Job(f"a chunk of {rows}", "prefill", partial(_given, bench, rows))
    if bench.config.generation == "v4" and wanted.peers and not wanted.small:
        given = (bench.clock.device, usual, wanted.chunks, bench.config.num_experts, wanted.rounds)
        yield Job("transformers' layer", "transformers", partial(layer_times, *given))
    for rows, context in cases:
        if (rows, context) not in first:
            yield Job(f"{rows} rows at {context}", "layers", partial(_made, bench, rows, context))
    for rows, context in cases:
        if context == usual or rows == min(wanted.widths):
            what = f"ops of {rows} rows at {context}"
            yield Job(what, "ops", partial(_made, bench, rows, context, ops))
    for rows in wanted.chunks:
        yield Job(f"ops of a chunk of {rows}", "ops", partial(_given, bench, rows, ops))


@dataclass(frozen=True, slots=True)
class Part:
    """Some layers of a step, run one after the other."""

    name: str
    run: Callable[[], object]
    count: int


def parts(bench: Bench, segment: Segment) -> list[Part]:
    """The whole step, head included, what is drawn behind it, and the layers of each kind where
    none reads from another."""
    net, states = bench.network, bench.runner.states
    found = [Part("step", lambda: net.forward(segment, states), 1)]
    if segment.family == "step":
        found.append(draw(net, segment.num_rows))
    if not isinstance(net, Transformer):
        return found
    where = addresses(net.config, segment)
    streams = net.embed(segment.token_ids)
    for kind in dict.fromkeys(layer.attention for layer in net.config.layers):
        mine = [i for i, layer in enumerate(net.config.layers) if layer.attention == kind]

        def run(mine: Sequence[int] = mine) -> Tensor:
            out: Streams = streams
            for index in mine:
                out = net.blocks[index].forward(out, segment, where, states[index])
            return net.mhc.whole(out)

        found.append(Part(kind, run, len(mine)))
    return found


def draw(net: Network, rows: int) -> Part:
    """A sampled token for each row, which comes behind a step."""
    device = net.weights.embed.device
    draws = [Draw(row, 0, SamplingParams(seed=row, max_tokens=1)) for row in range(rows)]
    params = sample_params(draws, device)
    logits = torch.randn((rows, net.config.vocab_size), device=device)
    return Part("draw", lambda: sample(logits, params, fast=net.weights.ops.sample), 1)


def layers(bench: Bench, segment: Segment, context: int) -> list[Found]:
    """Times of a step and of a layer of each kind."""
    with torch.inference_mode():
        some = parts(bench, segment)
        nbytes = {part.name: sum(call.nbytes for call in _hear(part)) for part in some}
        runs = {part.name: _prepared(bench, segment, part.run) for part in some}
        times = bench.clock.measure(runs, bench.wanted.rounds)
    return [
        _line(
            bench,
            segment.family,
            {"layer": part.name, "rows": segment.num_rows, "context": context},
            times[part.name].shared(part.count),
            nbytes[part.name] / part.count,
        )
        for part in some
    ]


def _made(bench: Bench, rows: int, context: int, of: Measured = layers) -> list[Found]:
    return of(bench, made_segment(bench.runner, rows, context), context)


def _made_on_same(bench: Bench, rows: int) -> list[Found]:
    with same_experts(bench.network):
        return [{**one, "experts": "same"} for one in _made(bench, rows, bench.wanted.context)]


def _given(bench: Bench, rows: int, of: Measured = layers) -> list[Found]:
    return of(bench, given_segment(bench.runner, rows), 0)


def _hear(part: Part) -> list[Call]:
    with listening() as heard:
        part.run()
    return heard


def ops(bench: Bench, segment: Segment, context: int) -> list[Found]:
    """Times of every op of a step, alone, and of peers."""
    with torch.inference_mode():
        kinds: dict[str, list[Call]] = {}
        for call in _hear(parts(bench, segment)[0]):
            kinds.setdefault(call.kind, []).append(call)
        peers: dict[str, Callable[[], None]] = {}
        if bench.wanted.peers:
            peers = dict(_peers(kinds))
        work = {kind: _all(call.run for call in calls) for kind, calls in kinds.items()}
        runs = {name: _prepared(bench, segment, run) for name, run in (work | peers).items()}
        times = bench.clock.measure(runs, bench.wanted.rounds)
    lines = []
    for kind, calls in kinds.items():
        count = len(calls)
        what: Found = {"op": kind, "rows": segment.num_rows, "context": context, "calls": count}
        nbytes = sum(call.nbytes for call in calls) / count
        flops = sum(_flops(call) for call in calls) / count
        line = _line(bench, segment.family, what, times[kind].shared(count), nbytes, flops)
        line["rotation_bytes"] = sum(call.nbytes for call in calls)
        peer = times.get(f"{kind} by matmul")
        if peer is not None:
            line["matmul_us"] = round(peer.shared(count).median, 2)
        lines.append(line)
    return lines


def _prepared(bench: Bench, segment: Segment, run: Callable[[], object]) -> Callable[[], object]:
    """Given rows are many, so the host keeps ahead of the device: they are not recorded."""
    return bench.clock.prepare(run, record=segment.family == "step")


def _all(runs: Iterable[Callable[[], object]]) -> Callable[[], None]:
    listed = list(runs)

    def run() -> None:
        for one in listed:
            one()

    return run


def _flops(call: Call) -> float:
    if call.weight is None or call.x is None:
        return 0.0
    outputs, inner = call.weight.shape
    return float(2 * outputs * inner * call.x.shape[0])  # of groups, each row meets its own part


def _peers(kinds: dict[str, list[Call]]) -> Iterator[tuple[str, Callable[[], None]]]:
    """torch's product with weights that were unpacked before: bf16 where the device has it."""
    room = PEER_BYTES
    for kind, calls in kinds.items():
        if calls[0].weight is None or calls[0].x is None or calls[0].x.dim() != 2:
            continue
        x = calls[0].x
        dtype = torch.float32 if x.device.type == "cpu" else torch.bfloat16
        room -= sum(call.weight.shape[0] * call.weight.shape[1] * dtype.itemsize for call in calls)
        if room < 0:
            return
        weights = [call.weight.decode().to(dtype).t() for call in calls]
        plain = x.to(dtype)
        yield f"{kind} by matmul", _all(_product(plain, w) for w in weights)


def _product(x: Tensor, w: Tensor) -> Callable[[], Tensor]:
    return lambda: x @ w


def _line(
    bench: Bench, family: Family, what: Found, times: Times, nbytes: float, flops: float = 0.0
) -> Found:
    found = {
        **what,
        "family": family,
        "us": round(times.median, 2),
        "least_us": round(times.least, 2),
        "most_us": round(times.most, 2),
        "bytes": round(nbytes),
        "share_of_stream": bench.roof.of_stream(nbytes, times.median),
    }
    if flops:
        found["share_of_matrix"] = bench.roof.of_matrix(flops, times.median)
    return found
