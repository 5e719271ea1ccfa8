"""Builds, checks and times the step kernels on a CUDA device, in one call of some minutes.

    python -m tools.step_kernels --file FILE [--cache DIR] [--minutes 8] [--quick]

Writes the file as it goes, to be committed as docs/gpu/step_kernels.json: device, versions, the
hash of the sources, registers and spills, the error of every trial and whether rows keep their bits
(those of Volta's form: tools/volta.py), and for each shape the time with its share of a read-only
stream measured in the same run. Weights rotate through more than a cache holds; experts are drawn
anew for each launch. Products of given rows are shares of the rate at which torch multiplies bf16,
beside torch with decoded weights. Exits with 1 if a check failed.

A kernel that takes the device down ends what its process can do, so the program then begins anew
behind it.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from relight.kernels.build import build_all, builder
from relight.kernels.canary import Trial, relative_error
from relight.kernels.catalogue import kernels
from relight.kernels.codec import DenseWeight, Fp8Weight, StackedFp4
from relight.kernels.cuda_tools import toolbox
from relight.kernels.device import answers, architecture
from relight.kernels.experts.cuda import V4_WIDTHS, V41_WIDTHS
from relight.kernels.experts.step import StepExperts
from relight.kernels.forms import form_of
from relight.kernels.launch import Long
from relight.kernels.linear.step import StepLinear
from relight.kernels.small import stream_read
from relight.kernels.testing import same_bits
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials import fp4_stack, fp8_weight, tokens, trials
from tools import given_experts, given_products
from tools.small_kernels import Pair, given_pairs, pairs
from tools.small_kernels_v41 import pairs_v41
from tools.sources import sources_hash
from tools.step_sparse import GIVEN_ROWS, cases, given_cases

BF16 = torch.bfloat16
WIDTHS = (1, 6, 8, 16)
ROTATION_BYTES = 768 * 2**20
SHAPES = (
    ("wq_a", 1024, 4096, 128),
    ("wkv", 512, 4096, 128),
    ("shared w1", 2048, 4096, 128),
    ("shared w2", 4096, 2048, 128),
    ("wq_b", 32768, 1024, 128),
    ("wo_b", 4096, 8192, 128),
    ("index wq_b", 8192, 1024, 128),
)
SHAPES_V41 = (
    ("V4.1 wq_a", 1280, 5120, 32),
    ("V4.1 wkv", 512, 5120, 32),
    ("V4.1 shared w1", 2304, 5120, 32),
    ("V4.1 shared w2", 5120, 2304, 32),
    ("V4.1 wq_b", 32768, 1280, 32),
    ("V4.1 wo_b", 5120, 8192, 32),
    ("V4.1 index wq_b", 4096, 1280, 32),
    ("V4.1 n-grams", 25600, 6144, 32),
    ("V4.1 draft's main_proj", 5120, 15360, 32),
)
"""Name, outputs, inner and block of scales."""

DENSE = (
    ("router, index compressor", 256, 4096, torch.float32),
    ("compressor", 1024, 4096, torch.float32),
    ("HCA compressor", 512, 4096, torch.float32),
    ("weights_proj", 64, 4096, BF16),
    ("head", 129_280, 4096, torch.float32),
)
DENSE_V41 = (
    ("V4.1 router", 384, 5120, torch.float32),
    ("V4.1 compressor", 512, 5120, torch.float32),
    ("V4.1 index keys", 128, 512, BF16),
    ("V4.1 weights_proj", 32, 5120, BF16),
    ("V4.1 head", 129_280, 5120, torch.float32),
)
"""Of bf16 weights; the last is what comes out."""

WIDTHS_V41 = (1, 8, 16)
ROWS_ALIKE = 6
"""Of which each chooses the same experts."""
GROUPS, SLOTS = 8, 6


@dataclass(frozen=True)
class Bench:
    device: torch.device
    tools: Toolbox
    stream_rate: float  # bytes a second

    def share(self, nbytes: float, us: float) -> float:
        return round(nbytes / self.stream_rate * 1e6 / us, 3)


def say(text: str) -> None:
    print(text, flush=True)


def graph_us(launches: Sequence[Callable[[], object]], replays: int = 9) -> float:
    """Median microseconds of one of the launches, all of them in one replayed graph."""
    torch.cuda.synchronize()  # what was made for it may still be made, and would be timed beside it
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for launch in launches[:3]:
            launch()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()  # torch.cuda.graph collects garbage first, which takes longest of all
        try:
            for launch in launches:
                launch()
        finally:
            graph.capture_end()
        graph.replay()
        stream.synchronize()
        found: list[float] = []
        for _ in range(replays):
            begun, ended = (event() for _ in range(2))
            begun.record(stream)
            graph.replay()
            ended.record(stream)
            ended.synchronize()
            found.append(begun.elapsed_time(ended) * 1e3 / len(launches))
    return statistics.median(found)


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


Line = dict[str, object]


def checked(some: Iterable[Trial], what: str) -> Iterator[Line]:
    """Errors of some trials, and rows in company, place and alone. One that cannot be run at all is
    a line, too."""
    for trial in some:
        variant = trial.variant
        line: Line = {"form": what, "op": variant.op, "family": variant.family}
        line["shape"] = trial.shape
        try:
            x = trial.inputs()
            error = relative_error(trial.kernel(x), trial.reference(x))
            keeps = rows_keep_bits(trial)
        except Exception as problem:  # whatever a kernel can fail by must not end the others
            line.update(failed=f"{type(problem).__name__}: {problem}", good=False)
        else:
            line.update(error=error, tolerance=trial.tolerance, rows_keep_bits=keeps)
            line["good"] = error <= trial.tolerance and keeps
        say(f"check {line}")
        yield line


def rows_keep_bits(trial: Trial) -> bool:
    whole = trial.inputs()
    found = trial.kernel(whole)
    for at in (0, len(whole) // 2, len(whole) - 1):
        if not same_bits(trial.kernel(whole[at : at + 1]), found[at : at + 1]):
            return False
    x = trial.some(16)
    alone = torch.cat([trial.kernel(x[at : at + 1]) for at in range(16)])
    for count in range(1, 17):
        for order in (torch.arange(16).roll(count), torch.randperm(16)):
            chosen = order[:count].to(x.device)
            if not same_bits(trial.kernel(x[chosen]), alone[chosen]):
                return False
    return True


def stream_us(tools: Toolbox, device: torch.device, nbytes: int, copies: int = 0) -> float:
    """Of a kernel that only reads so many bytes, `copies` of them one after another."""
    copies = copies or max(1, min(200, ROTATION_BYTES // nbytes))
    data = torch.zeros(copies, nbytes // 16 * 16, dtype=torch.uint8, device=device)
    out = torch.zeros(512, dtype=torch.int32, device=device)
    launch = tools.load(stream_read(tools.form), 512)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    times = []
    for blocks in (2, 4, 8):
        grid = (processors * blocks, 1)
        runs = [partial(launch, grid, part, out, Long(part.nbytes // 16)) for part in data]
        times.append(graph_us(runs))
    return min(times)


def linears(bench: Bench) -> Iterator[Line]:
    yield from _linears(bench, SHAPES, WIDTHS)


def _linears(
    bench: Bench, shapes: Sequence[tuple[str, int, int, int]], widths: Sequence[int]
) -> Iterator[Line]:
    fast = StepLinear(bench.tools)
    for name, outputs, inner, block in shapes:
        copies = max(2, min(200, ROTATION_BYTES // (outputs * inner)))
        some = [fp8_weight(outputs, inner, bench.device, block) for _ in range(copies)]
        nbytes = outputs * inner
        read = stream_us(bench.tools, bench.device, nbytes)
        for rows in widths:
            x = tokens(rows, inner, bench.device, BF16)
            rounded = fast.rounded(x, some[0])
            us = graph_us([partial(fast.multiply, *rounded, w, BF16) for w in some])
            whole = graph_us([partial(fast.linear, x, w, BF16) for w in some])
            yield line_of(bench, name, rows, nbytes, us, read, with_quantisation_us=whole)


def grouped(bench: Bench) -> Iterator[Line]:
    fast, outputs = StepLinear(bench.tools), GROUPS * 1024
    some = [fp8_weight(outputs, 4096, bench.device) for _ in range(ROTATION_BYTES // 2**25)]
    read = stream_us(bench.tools, bench.device, outputs * 4096)
    for rows in WIDTHS:
        x = tokens(rows, GROUPS * 4096, bench.device, BF16).view(rows, GROUPS, 4096)
        us = graph_us([partial(fast.grouped, x, w, BF16) for w in some])
        yield line_of(bench, "wo_a", rows, outputs * 4096, us, read)


def dense(bench: Bench) -> Iterator[Line]:
    yield from _dense(bench, DENSE, WIDTHS)


def _dense(
    bench: Bench, shapes: Sequence[tuple[str, int, int, torch.dtype]], widths: Sequence[int]
) -> Iterator[Line]:
    fast = StepLinear(bench.tools)
    for name, outputs, inner, boundary in shapes:
        nbytes = 2 * outputs * inner
        values = torch.randn(outputs, inner, device=bench.device).to(BF16)
        copies = max(2, min(200, ROTATION_BYTES // nbytes))
        some = [DenseWeight(values.clone()) for _ in range(copies)]
        read = stream_us(bench.tools, bench.device, nbytes)
        for rows in widths:
            x = tokens(rows, inner, bench.device, BF16)
            us = graph_us([partial(fast.linear, x, w, boundary) for w in some])
            peer = graph_us([partial(torch.matmul, x, w.data.T) for w in some])
            yield line_of(bench, name, rows, nbytes, us, read, cublas_us=peer)


def routed(bench: Bench) -> Iterator[Line]:
    """All launches of a layer's experts."""
    yield from _routed(bench, "experts", 256, V4_WIDTHS, 128, WIDTHS)


def newer(bench: Bench) -> Iterator[Line]:
    """V4.1's."""
    yield from _linears(bench, SHAPES_V41, WIDTHS_V41)
    yield from _routed(bench, "V4.1 experts", 384, V41_WIDTHS, 32, WIDTHS_V41)
    yield from _dense(bench, DENSE_V41, WIDTHS_V41)
    for rows in WIDTHS_V41:
        yield from _small(bench, pairs_v41(bench.tools, bench.device, rows), rows)


def _routed(
    bench: Bench,
    name: str,
    experts: int,
    sizes: tuple[int, int],
    block: int,
    widths: Sequence[int],
) -> Iterator[Line]:
    width, inner = sizes
    shapes = ((inner, width), (inner, width), (width, inner))
    w1, w3, w2 = (fp4_stack(experts, n, k, bench.device, block) for n, k in shapes)
    alike = f"{name}, all rows on the same ones"
    for what, rows in (*((name, rows) for rows in widths), (alike, ROWS_ALIKE)):
        count, own = (48, 1) if what == alike or rows == 1 else (12, rows)
        draws = [drawn(own, experts, bench.device).repeat(rows // own, 1) for _ in range(count)]
        distinct = statistics.mean(len(set(ids.flatten().tolist())) for ids in draws)
        nbytes = distinct * sum(bytes_of(w) / experts for w in (w1, w3, w2))
        x, route = tokens(rows, width, bench.device, BF16), torch.rand(rows, SLOTS).to(bench.device)
        fast = StepExperts(bench.tools)
        runs = [partial(fast.experts, x, ids, route, w1, w3, w2, 10.0, BF16) for ids in draws]
        us = graph_us(runs)
        yield line_of(bench, what, rows, nbytes, us, None, distinct=distinct)


def small(bench: Bench) -> Iterator[Line]:
    """Launches without much to read: what counts is how few there are."""
    for rows in WIDTHS:
        yield from _small(bench, pairs(bench.tools, bench.device, rows), rows)


def _small(bench: Bench, some: Sequence[Pair], rows: int) -> Iterator[Line]:
    for pair in some:
        us = graph_us([pair.kernel] * 16)
        definition = definition_us(pair, 2)
        more = {"launches": pair.launches, "definition_us": definition}
        yield line_of(bench, pair.name, rows, 0, us, None, **more)


def definition_us(pair: Pair, count: int, replays: int = 9) -> float:
    """No number where it cannot be recorded, as one that looks at a value."""
    try:
        return graph_us([pair.definition] * count, replays)
    except RuntimeError as problem:
        say(f"the definition of {pair.name} is not timed: {problem}")
        return float("nan")


def sparse(bench: Bench) -> Iterator[Line]:
    """Attention and indexer."""
    for case in cases(bench.tools, bench.device):
        read = stream_us(bench.tools, bench.device, case.nbytes)
        us = graph_us(case.runs)
        yield line_of(bench, case.name, case.rows, case.nbytes, us, read)


def given_between(bench: Bench) -> Iterator[Line]:
    """What lies between products of a chunk of one prompt, also as a share of one of its rows."""
    for case in given_cases(bench.tools, bench.device):
        us = graph_us(case.runs, replays=5)
        more = {"ns_a_row": 1e3 * us / case.rows}
        yield line_of(bench, case.name, case.rows, case.nbytes, us, None, **more)
    for pair in given_pairs(bench.tools, bench.device, GIVEN_ROWS):
        us, definition = graph_us([pair.kernel] * 4), definition_us(pair, 1, replays=3)
        more = {"ns_a_row": 1e3 * us / GIVEN_ROWS, "definition_us": definition}
        yield line_of(bench, f"given {pair.name}", GIVEN_ROWS, 0, us, None, **more)


def given(bench: Bench) -> Iterator[Line]:
    """Products of given rows."""
    run, flop = given_products.rate_run(bench.device)
    rate = flop / graph_us([run] * 4)  # in a microsecond
    say(f"torch multiplies bf16 at {rate / 1e6:.0f} TFLOP/s")
    yield {"name": "torch bf16", "tflops": round(rate / 1e6, 1)}
    for cases_of in (given_products.cases, given_products.tried):
        for case in cases_of(bench.tools, bench.device):
            us = graph_us(case.runs)
            line: Line = {
                "name": f"given {case.name}",
                "rows": case.rows,
                "us": round(us, 2),
                "tflops": round(case.flop / us / 1e6, 1),
                "share_of_rate": round(case.flop / us / rate, 3),
            }
            if case.peers:
                line["peer_us"] = round(graph_us(case.peers), 2)
            if case.rounding:
                line["with_quantisation_us"] = round(graph_us(case.rounding), 2)
            say(f"time {line}")
            yield line


def given_routed(bench: Bench) -> Iterator[Line]:
    """The routed experts of given rows, whole and launch by launch."""
    run, flop = given_products.rate_run(bench.device)
    rate = flop / graph_us([run] * 4)  # in a microsecond
    for case in given_experts.cases(bench.tools, bench.device):
        us = graph_us(case.runs, replays=5)
        more = {"us_a_row": us / case.rows, "share_of_rate": case.flop / us / rate}
        if case.peers:
            more["peer_us"] = graph_us(case.peers, replays=3)
        name = f"given {case.name}"
        yield line_of(bench, name, case.rows, case.nbytes, us, None, **more)


def drawn(rows: int, experts: int, device: torch.device) -> Tensor:
    some = [torch.randperm(experts)[:SLOTS].sort().values for _ in range(rows)]
    return torch.stack(some).to(device)


def bytes_of(w: Fp8Weight | StackedFp4) -> int:
    return w.data.nbytes + w.scale.nbytes


def line_of(
    bench: Bench,
    name: str,
    rows: int,
    nbytes: float,
    us: float,
    read: float | None,
    **more: float,
) -> dict[str, object]:
    line = {"name": name, "rows": rows, "bytes": round(nbytes), "us": round(us, 2)}
    found: dict[str, object] = {
        **line,
        "share_of_stream": bench.share(nbytes, us),
        "read_us": read and round(read, 2),
        **{key: round(value, 2) for key, value in more.items()},
    }
    say(f"time {found}")
    return found


PARTS = (sparse, given, given_routed, given_between, linears, grouped, dense, routed, newer, small)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--quick", action="store_true", help="build and check, no times")
    parser.add_argument("--go-on", action="store_true", help="behind what the file has")
    args = parser.parse_args()
    run = Run(args, time.monotonic() + 60 * args.minutes)
    device = torch.device("cuda", torch.cuda.current_device())
    cache, arch = args.cache, architecture(device)
    if args.go_on:
        run.result = json.loads(args.file.read_text())
    else:
        begun = time.monotonic()
        built = list(build_all([(builder(arch, say, cache), kernel) for kernel in kernels(arch)]))
        run.result = {
            "sources": sources_hash(),
            "device": torch.cuda.get_device_name(device),
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "command": "python -m tools.step_kernels --file FILE",
            "build_s": round(time.monotonic() - begun, 1),
            "kernels": {k.name: msgspec.structs.asdict(cubin.usage) for _, k, cubin in built},
            "checks": [],
            "begun": [],  # parts that are timed
            "times": [],
        }
        run.write()
    tools = toolbox(device, say, cache)
    run.check(tools, device, arch)
    if not args.quick and form_of(arch).bf16:
        run.time(tools, device)
    run.write()
    sys.exit(0 if all(line["good"] for line in run.result["checks"]) else 1)


class Run:
    """One call: what it has found, and its end."""

    def __init__(self, args: argparse.Namespace, deadline_s: float) -> None:
        self.args = args
        self.deadline_s = deadline_s
        self.result: dict[str, Any] = {}

    def write(self) -> None:
        self.args.file.write_text(json.dumps(self.result, indent=1) + "\n")

    def check(self, tools: Toolbox, device: torch.device, form: str) -> None:
        checks = self.result["checks"]
        for line in checked(trials(tools, device)[len(checks) :], form):
            checks.append(line)
            self.write()
            if "failed" in line:
                self._go_on_if_lost(device)

    def time(self, tools: Toolbox, device: torch.device) -> None:
        result, times = self.result, self.result["times"]
        if "stream_bytes_per_s" not in result:
            result["stream_bytes_per_s"] = 2**30 / stream_us(tools, device, 2**30, 1) * 1e6
        bench = Bench(device, tools, result["stream_bytes_per_s"])
        left = [part for part in PARTS if part.__name__ not in result["begun"]]
        for number, part in enumerate(left):
            begun_s = time.monotonic()
            if begun_s > self.deadline_s:
                say(f"no time was left for {part.__name__}")
                continue
            # An equal share of what is left: some of each is worth more than all of some.
            until_s = begun_s + (self.deadline_s - begun_s) / (len(left) - number)
            result["begun"].append(part.__name__)
            try:
                for line in part(bench):
                    times.append(line)
                    self.write()
                    if time.monotonic() > until_s:
                        say(f"no time was left for the rest of {part.__name__}")
                        break
            except Exception as problem:  # the other parts can be timed all the same
                times.append({"name": part.__name__, "failed": f"{problem}"})
                say(f"{part.__name__} failed: {problem}")
                self.write()
                self._go_on_if_lost(device)
            self.write()

    def _go_on_if_lost(self, device: torch.device) -> None:
        """In a new process, if the device computes no more for this one."""
        if answers(device):
            return
        left = max(0.1, (self.deadline_s - time.monotonic()) / 60)
        say("the device computes no more; going on in a new process")
        given = [*sys.argv[1:], "--go-on", "--minutes", str(left)]
        os.execv(sys.executable, [sys.executable, "-m", "tools.step_kernels", *given])


if __name__ == "__main__":
    main()
