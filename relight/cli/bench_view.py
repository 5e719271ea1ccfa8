"""Shows a run while it goes on, its figures and its verdict. Judges nothing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.live import Live
from rich.text import Text

from relight.bench.arms import Blocks
from relight.bench.figures import middle
from relight.bench.ladder import Ladder
from relight.bench.result import Result
from relight.bench.run import Progress
from relight.bench.schema import Validity
from relight.bench.stats import Summary
from relight.cli import show


@contextmanager
def live() -> Iterator[Callable[[Progress, str], None]]:
    """A line that is redrawn; on something that is no terminal, nothing."""
    console = show.console(stderr=True)
    with Live(console=console, transient=True, refresh_per_second=4) as view:

        def update(progress: Progress, label: str) -> None:
            view.update(Text(label + _line(progress)), refresh=False)

        yield update


def _line(progress: Progress) -> str:
    line = f"{progress.stage}: {progress.done} of {progress.total} requests"
    if progress.failed:
        line += f", {progress.failed} failed"
    if progress.done:
        line += f", {progress.out_tokens:,} tokens out"
    if progress.last_ttft is not None:
        line += f", last TTFT {progress.last_ttft:.3f} s"
    return line


def print_result(result: Result) -> None:
    client = result.client
    show.table(
        f"{result.scenario.name} on {result.server.model} at {result.server.url}",
        ("seconds", "n", "mean", "p50", "p90", "p95", "p99", "max"),
        [
            _row("TTFT", client.ttft),
            _row("TTFT since due", client.ttft_queue),
            _row("to the answer", client.ttfa),
            _row("TPOT", client.tpot),
            _row("between chunks", client.icl),
            _row("between tokens", client.itl),
            _row("whole answer", client.e2e),
        ],
        numbers=("n", "mean", "p50", "p90", "p95", "p99", "max"),
    )
    show.table("Figures", ("what", "value"), _figures(result), numbers=("value",))
    if len(result.workload.classes) > 1:
        show.table(
            "Classes",
            ("class", "ok", "tokens in", "TTFT mean", "TPOT mean", "longest gap"),
            [
                (
                    one.name,
                    f"{one.ok} of {one.sent}",
                    _number(one.input_mean, 0),
                    _number(middle(one.ttft)),
                    _number(middle(one.tpot)),
                    _number(one.stall_max),
                )
                for one in result.workload.classes
            ],
            numbers=("ok", "tokens in", "TTFT mean", "TPOT mean", "longest gap"),
        )
    if result.validity is not None:
        print_validity(result.validity)


def _row(name: str, told: Summary | None) -> Sequence[str]:
    if told is None:
        return (name, *["–"] * 7)
    values = (told.mean, told.p50, told.p90, told.p95, told.p99, told.max)
    return (name, str(told.n), *(_number(value) for value in values))


def _number(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _figures(result: Result) -> Iterator[tuple[str, str]]:
    rate, engine = result.throughput, result.engine
    yield "requests answered", f"{result.counts.ok} of {result.counts.sent}"
    yield "output tokens a second", _number(rate.out_tok_s, 1)
    yield "… without ramp and drain", _number(rate.out_tok_s_steady, 1)
    yield "… of one user while decoding", _number(rate.per_user, 1)
    yield "… of one request, prompt included", _number(rate.per_request, 1)
    yield "input tokens a second", _number(rate.in_tok_s, 1)
    yield "requests within their objectives", _number(rate.slo_attainment, 3)
    yield "Little's closure", _number(rate.little_closure, 3)
    yield "slots implied", _number(rate.implied_running, 2)
    yield "cache hits, share of prompt", _number(result.cache.hit_fraction, 4)
    if engine is not None:
        yield "engine TTFT, mean s", _number(engine.ttft)
        yield "engine queue, mean s", _number(engine.queue)
    if (spec := result.spec) is not None:
        yield "tokens a verification", _number(spec.al_pooled, 3)
        yield "… on text that is", "synthetic, not for decisions" if spec.synthetic else "real"
    yield "answers that repeat themselves", str(result.quality.looping)
    yield "own share of one core", _number(result.itself.cpu_share, 3)


def print_validity(validity: Validity) -> None:
    unchecked = sorted({check.id for check in validity.checks if check.ok is None})
    show.line(f"{validity.status}: {len(validity.checks) - len(unchecked)} checks were made")
    for reason in validity.reasons:
        show.line(f"  {reason}")
    if unchecked:
        show.line(f"  unchecked here: {', '.join(unchecked)}")


def print_comparison(a: Result, b: Result) -> None:
    rows = []
    for name, old, new in _pairs(a, b):
        ratio = f"{new / old:.3f}" if old and new is not None else "–"
        rows.append((name, _number(old), _number(new), ratio))
    columns = ("figure", a.run_id, b.run_id, "ratio")
    show.table("Comparison", columns, rows, numbers=columns[1:])
    show.line("One run each tells no difference from noise.")


def _pairs(a: Result, b: Result) -> Iterator[tuple[str, float | None, float | None]]:
    for name in ("ttft", "ttfa", "tpot", "icl", "e2e"):
        yield f"{name}, mean s", middle(getattr(a.client, name)), middle(getattr(b.client, name))
    for name in ("out_tok_s", "out_tok_s_steady", "in_tok_s", "per_user", "implied_running"):
        yield name, getattr(a.throughput, name), getattr(b.throughput, name)


def print_blocks(blocks: Blocks) -> None:
    columns = ("metric", "verdict", "ratio", "95 %", "p", "needed", "floor")
    rows = [
        (
            metric,
            told.word,
            f"{told.ratio:.3f}",
            f"{told.low:.3f}–{told.high:.3f}",
            f"{blocks.adjusted_p[metric]:.2f}",
            str(told.blocks_needed or "–"),
            f"{blocks.floor.get(metric, 0.0):.1%}",
        )
        for metric, told in blocks.verdicts.items()
    ]
    arms = "B over A" if blocks.kind == "ab" else "A over A"
    show.table(f"{arms}, {len(blocks.runs)} blocks", columns, rows, numbers=columns[2:])
    show.line("needed: blocks that would likely decide; floor: the difference of equal arms")
    for metric, tell in blocks.tells.items():
        show.line(f"  {metric}: {tell}")
    for fault in blocks.faults:
        show.line(f"  {fault}")


def print_ladder(ladder: Ladder) -> None:
    columns = ("asked", "tokens", "TTFT s", "prefill tok/s", "TPOT s", "needles", "went")
    rows = [
        (
            f"{rung.asked:,}",
            _number(rung.actual, 0),
            _number(rung.ttft, 3),
            _number(rung.prefill_tok_s, 1),
            _number(rung.tpot),
            "–" if rung.needles is None else f"{rung.needles[0]} of {rung.needles[1]}",
            "yes" if rung.ok else "no",
        )
        for rung in ladder.rungs
    ]
    show.table("Ladder", columns, rows, numbers=columns[:-1])
    for rung in ladder.rungs:
        for reason in rung.reasons:
            show.line(f"  {rung.asked:,}: {reason}")
    if ladder.cliff:
        show.line(f"The limit is between {ladder.cliff[0]:,} and {ladder.cliff[1]:,} tokens.")
    for length in ladder.implausible:
        show.line(f"{length:,} tokens cost more than longer prompts do: measure it again.")
