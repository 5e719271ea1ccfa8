"""Shows a run while it goes on, its figures and its verdict. Judges nothing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.live import Live
from rich.text import Text

from relight.bench.arms import Blocks
from relight.bench.figures import middle
from relight.bench.result import Result
from relight.bench.run import Progress
from relight.bench.schema import Validity
from relight.bench.stats import Summary, mean_halfwidth
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
                    number(one.input_mean, 0),
                    number(middle(one.ttft)),
                    number(middle(one.tpot)),
                    number(one.stall_max),
                )
                for one in result.workload.classes
            ],
            numbers=("ok", "tokens in", "TTFT mean", "TPOT mean", "longest gap"),
        )
    if result.workload.turns:
        print_turns(result)
    if result.validity is not None:
        print_validity(result.validity)


def _row(name: str, told: Summary | None) -> Sequence[str]:
    if told is None:
        return (name, *["–"] * 7)
    values = (told.mean, told.p50, told.p90, told.p95, told.p99, told.max)
    return (name, str(told.n), *(number(value) for value in values))


def number(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _figures(result: Result) -> Iterator[tuple[str, str]]:
    rate, engine = result.throughput, result.engine
    yield "requests answered", f"{result.counts.ok} of {result.counts.sent}"
    yield "output tokens a second", number(rate.out_tok_s, 1)
    yield "… without ramp and drain", number(rate.out_tok_s_steady, 1)
    yield "… of one user while decoding", number(rate.per_user, 1)
    yield "… of one request, prompt included", number(rate.per_request, 1)
    yield "input tokens a second", number(rate.in_tok_s, 1)
    yield "requests within their objectives", number(rate.slo_attainment, 3)
    yield "Little's closure", number(rate.little_closure, 3)
    yield "slots implied", number(rate.implied_running, 2)
    yield "cache hits, share of prompt", number(result.cache.hit_fraction, 4)
    if engine is not None:
        yield "engine TTFT, mean s", number(engine.ttft)
        yield "engine queue, mean s", number(engine.queue)
        if engine.advance_closure is not None:
            yield "advance over step and time per token", number(engine.advance_closure, 3)
    if (spec := result.spec) is not None:
        yield "tokens a verification", number(spec.al_pooled, 3)
        yield "… mean over requests", number(spec.al_mean_req, 3)
        yield "… on text that is", "synthetic, not for decisions" if spec.synthetic else "real"
        yield "accepted by position", " ".join(f"{at:.2f}" for at in spec.per_pos_uncond) or "–"
        for one in spec.slices if len(spec.slices) > 1 else ():
            yield f"tokens a verification, {one.corpus}", number(one.al_pooled, 3)
    for group in result.cache.groups:
        yield f"memory in use at most, {group.name}", number(group.peak_share, 3)
    if result.workload.trace_best_hits is not None:
        yield "… hits of a cache without bounds", number(result.workload.trace_best_hits, 4)
    if result.quality.needle_score is not None:
        yield "found of what was hidden", number(result.quality.needle_score, 3)
    if (own := result.resources) is not None:
        yield "server's memory at most, MB", number((own.resident_max or 0) / 1e6, 0)
        if own.j_per_token is not None:
            yield "joules a token", number(own.j_per_token, 2)
    yield "answers that repeat themselves", str(result.quality.looping)
    yield "own share of one core", " ".join(f"{share:.3f}" for share in result.itself.cpu_shares)
    for name in result.server.overrides:
        yield "variable like a test switch", name


def print_cells(results: Sequence[Result]) -> None:
    """A line for each of several runs."""
    columns = ("cell", "verdict", "tok/s", "TTFT s", "TPOT s", "closure", "slots", "hits")
    rows = [
        (
            _short(told.protocol.place.cell if told.protocol.place else ""),
            told.validity.status if told.validity else "",
            number(told.throughput.out_tok_s, 1),
            number(middle(told.client.ttft), 3),
            number(middle(told.client.tpot)),
            number(told.throughput.little_closure, 3),
            number(told.throughput.implied_running, 2),
            number(told.cache.hit_fraction, 3),
        )
        for told in results
    ]
    show.table("Cells", columns, rows, numbers=columns[2:])
    if any(told.spec for told in results):
        print_drafts(results)
    for line in _repeated(results):
        show.line(line)
    for told in results:
        for reason in told.validity.reasons if told.validity else ():
            show.line(f"  {told.run_id}: {reason}")


def print_drafts(results: Sequence[Result]) -> None:
    """Acceptance of each cell; advance over the step is what decides, and TPOT tells that."""
    columns = ("cell", "tokens a verification", "by request", "rate", "TPOT s", "by position")
    rows = [
        (
            _short(told.protocol.place.cell if told.protocol.place else ""),
            number(told.spec.al_pooled, 3),
            number(told.spec.al_mean_req, 3),
            number(told.spec.rate, 3),
            number(middle(told.client.tpot)),
            " ".join(f"{at:.2f}" for at in told.spec.per_pos_uncond) or "–",
        )
        for told in results
        if told.spec is not None
    ]
    show.table("Speculation", columns, rows, numbers=columns[1:-1])


def _repeated(results: Sequence[Result]) -> Iterator[str]:
    """The interval of the mean over runs of one cell: the unit of repetition is a run."""
    cells: dict[str, list[Result]] = {}
    for told in results:
        cells.setdefault(told.protocol.place.cell if told.protocol.place else "", []).append(told)
    for cell, own in cells.items():
        rates = [told.throughput.out_tok_s for told in own]
        if len(rates) > 1:
            half, mean = mean_halfwidth(rates), sum(rates) / len(rates)
            share = f", {half / mean:.1%}" if mean else ""
            yield f"{_short(cell) or 'all'}: {len(own)} runs, {mean:.1f} ± {half:.1f} tok/s{share}"


def _short(cell: str, most: int = 28) -> str:
    return cell if len(cell) <= most else cell[: most - 1] + "…"


def print_turns(result: Result) -> None:
    columns = ("turn", "n", "tokens in", "of them cached", "TTFT mean")
    rows = [
        (
            str(one.turn + 1),
            str(one.n),
            number(one.input_mean, 0),
            number(one.hit_share, 3),
            number(middle(one.ttft)),
        )
        for one in result.workload.turns
    ]
    show.table("Turns", columns, rows, numbers=columns[1:])


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
        rows.append((name, number(old), number(new), ratio))
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
    for name, tail in blocks.tails.items():
        only = ", told and not decided upon" if tail.report_only else ""
        show.line(f"  {name}: {tail.ratio:.3f}, {tail.low:.3f} to {tail.high:.3f}{only}")
    for metric, tell in blocks.tells.items():
        show.line(f"  {metric}: {tell}")
    for fault in blocks.faults:
        show.line(f"  {fault}")
