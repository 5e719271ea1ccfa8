"""One HTML page about a set of results: what was measured, whether it may be believed, pictures.
Knows no file."""

from collections.abc import Iterator, Sequence
from typing import Any

from relight.bench import report_parts as parts
from relight.bench.arms import Blocks
from relight.bench.figures import middle
from relight.bench.ladder import Ladder
from relight.bench.mixed import Mixed
from relight.bench.needles import Needles
from relight.bench.plot_data import Gathered, Run
from relight.bench.plots import Picture
from relight.bench.report_parts import number
from relight.bench.soak import Soak
from relight.bench.stats import Summary

RUN_COLUMNS = (
    "run",
    "verdict",
    "#users",
    "#requests",
    "#TTFT s",
    "#TPOT ms",
    "#tok/s out",
    "#tok/s user",
    "#cached",
)


def report(data: Gathered, pictures: Sequence[Picture]) -> str:
    names = dict.fromkeys(run.result.server.model for run in data.runs)
    title = f"Measured: {', '.join(names)}" if names else "Measured"
    return parts.page(title, _body(title, data, pictures))


def _body(title: str, data: Gathered, pictures: Sequence[Picture]) -> Iterator[str]:
    yield parts.heading(1, title)
    yield parts.paragraph(_outline(data), "dim")
    yield from _not_believed(data)
    if data.runs:
        yield parts.heading(2, "Runs")
        yield parts.table(RUN_COLUMNS, [_row(run) for run in data.runs])
        yield parts.paragraph(
            "Means. tok/s user is 1 / TPOT; cached: the share of prompt tokens that a cache knew.",
            "dim",
        )
    for picture in pictures:
        if not picture.about:
            yield parts.picture(picture.svg, picture.caption)
    for name, blocks in data.blocks.items():
        yield from _blocks(name, blocks, pictures)
    for name, ladder in data.ladders.items():
        yield from _ladder(name, ladder, pictures)
    others: list[tuple[str, dict[str, Any]]] = [
        ("Hours of load", data.soaks),
        ("Short beside long", data.mixtures),
        ("Hidden and found", data.needles),
    ]
    for title, several in others:
        for name, told in several.items():
            yield from _other(f"{title}: {name}", name, told, pictures)
    drawn = {picture.about for picture in pictures}
    for run in data.runs:
        name = run.result.run_id
        if name in drawn:
            yield parts.heading(2, name, name)
            yield from _run(run, pictures)
        else:
            yield parts.folded(name, "\n".join(_run(run, pictures)), name)
    if data.skipped:
        yield parts.heading(2, "Files that were passed over")
        yield parts.bullets(data.skipped)


def _outline(data: Gathered) -> str:
    found = (
        ("run", data.runs),
        ("decision", data.blocks),
        ("ladder", data.ladders),
        ("soak", data.soaks),
        ("mixture", data.mixtures),
        ("search for needles", data.needles),
    )
    words = [f"{name}: {len(several)}" for name, several in found if several]
    times = sorted(run.result.created_utc for run in data.runs)
    when = f", {' to '.join(dict.fromkeys((times[0], times[-1])))}" if times else ""
    return ", ".join(words) + when + ". Hollow marks are of runs that are not valid."


def _not_believed(data: Gathered) -> Iterator[str]:
    bad = [run for run in data.runs if not run.valid]
    if not data.runs:
        return
    if not bad:
        yield parts.paragraph("Every run is valid.", "valid")
        return
    yield parts.paragraph(f"{len(bad)} of {len(data.runs)} runs are not valid:", "invalid")
    yield parts.bullets([f"{run.result.run_id}: {_why(run)}" for run in bad])


def _why(run: Run) -> str:
    validity = run.result.validity
    if validity is None:
        return "it was never judged"
    return "; ".join(validity.reasons) or "it was stopped before its end"


def _verdict(run: Run) -> str:
    validity = run.result.validity
    return validity.status if validity else "incomplete"


def _row(run: Run) -> Sequence[str]:
    told = run.result
    tpot = middle(told.client.tpot)
    hits = told.cache.hit_fraction
    return (
        parts.link(told.run_id, told.run_id),
        parts.status(_verdict(run)),
        "–" if run.users is None else str(run.users),
        f"{told.counts.ok} / {told.counts.sent}",
        number(middle(told.client.ttft)),
        number(None if tpot is None else 1000 * tpot, 2),
        number(told.throughput.out_tok_s, 1),
        number(told.throughput.per_user, 1),
        "–" if hits is None else f"{hits:.1%}",
    )


def _blocks(name: str, blocks: Blocks, pictures: Sequence[Picture]) -> Iterator[str]:
    kind = "The same server twice" if blocks.kind == "aa" else "B against A"
    yield parts.heading(2, f"{kind}: {name}", name)
    if blocks.faults:
        yield parts.paragraph("Not valid:", "invalid")
        yield parts.bullets(blocks.faults)
    yield from _pictures(name, pictures)
    rows = [
        (
            parts.text(metric),
            parts.text(told.word),
            number(told.ratio),
            f"{told.low:.3f} to {told.high:.3f}",
            number(blocks.adjusted_p[metric]),
            str(told.blocks_needed or "–"),
            parts.text(blocks.tells.get(metric, "")),
        )
        for metric, told in blocks.verdicts.items()
    ]
    columns = ("metric", "verdict", "#ratio", "#95 %", "#p", "#blocks needed", "but")
    yield parts.table(columns, rows)


def _ladder(name: str, ladder: Ladder, pictures: Sequence[Picture]) -> Iterator[str]:
    yield parts.heading(2, f"Growing prompts: {name}", name)
    if ladder.cliff:
        low, high = ladder.cliff
        yield parts.paragraph(f"The limit lies between {low:,} and {high:,} tokens.", "invalid")
    yield from _pictures(name, pictures)
    rows = [
        (
            f"{rung.asked:,}",
            number(rung.actual, 0),
            number(rung.ttft),
            number(rung.prefill_tok_s, 1),
            "–" if rung.needles is None else f"{rung.needles[0]} / {rung.needles[1]}",
            parts.status("valid" if rung.ok else "invalid"),
            parts.text("; ".join(rung.reasons)),
        )
        for rung in ladder.rungs
    ]
    columns = ("#asked", "#tokens", "#TTFT s", "#tok/s read", "#needles", "verdict", "why")
    yield parts.table(columns, rows)


def _other(
    title: str, name: str, told: Soak | Mixed | Needles, pictures: Sequence[Picture]
) -> Iterator[str]:
    yield parts.heading(2, title, name)
    if told.faults:
        yield parts.paragraph("Not valid:", "invalid")
        yield parts.bullets(told.faults)
    yield from _pictures(name, pictures)
    if isinstance(told, Needles):
        yield parts.paragraph(f"{told.score:.1%} was found; wanted {told.least:.1%}.")
    if isinstance(told, Mixed):
        ratios = [
            ("time to first token of the short ones, beside over alone", told.short_ttft_ratio),
            ("… 95th percentile", told.short_p95_ratio),
            ("their longest gap, beside over alone", told.short_gap_ratio),
            ("reading of the long prompt, beside over alone", told.long_prefill_ratio),
            ("Jain's fairness of the short ones", told.jain),
        ]
        yield parts.facts((words, _known(value)) for words, value in ratios)


def _run(run: Run, pictures: Sequence[Picture]) -> Iterator[str]:
    told = run.result
    if not run.valid:
        yield parts.paragraph(f"{_verdict(run)}: {_why(run)}", "invalid")
    yield from _pictures(told.run_id, pictures)
    yield parts.table(
        ("seconds", "#n", "#mean", "#p50", "#p90", "#p95", "#p99", "#max"), _summaries(run)
    )
    yield parts.folded("Figures", parts.facts(_figures(run)))
    if told.validity is not None:
        checks = [
            (
                parts.text(check.id),
                parts.status({True: "valid", False: "no", None: "unchecked"}[check.ok]),
                parts.text("" if check.value is None else _shown(check.value)),
                parts.text(check.limit),
                parts.text(check.why),
            )
            for check in told.validity.checks
        ]
        inner = parts.table(("trap", "kept", "#value", "limit", "why"), checks)
        yield parts.folded(f"{len(checks)} checks", inner)
    yield parts.folded("Server, machine, load", parts.facts(_environment(run)))


def _pictures(about: str, pictures: Sequence[Picture]) -> Iterator[str]:
    for picture in pictures:
        if picture.about == about:
            yield parts.picture(picture.svg, picture.caption)


def _summaries(run: Run) -> Iterator[Sequence[str]]:
    client = run.result.client
    named: list[tuple[str, Summary | None]] = [
        ("time to first token", client.ttft),
        ("… since it was due", client.ttft_queue),
        ("time to the answer", client.ttfa),
        ("time per output token", client.tpot),
        ("gap between chunks", client.icl),
        ("whole answer", client.e2e),
    ]
    for name, one in named:
        if one is not None:
            values = (one.mean, one.p50, one.p90, one.p95, one.p99, one.max)
            yield (name, str(one.n), *(number(value, 4) for value in values))


def _figures(run: Run) -> Iterator[tuple[str, object]]:
    told = run.result
    rate, engine = told.throughput, told.engine
    yield "requests answered", f"{told.counts.ok} of {told.counts.sent}"
    for name, count in told.counts.failures.items():
        yield f"failed: {name}", count
    yield "output tokens a second", number(rate.out_tok_s, 1)
    yield "… without ramp and drain", _known(rate.out_tok_s_steady, 1)
    yield "input tokens a second", number(rate.in_tok_s, 1)
    yield "requests within their objectives", _known(rate.slo_attainment)
    yield "Little's closure", _known(rate.little_closure)
    yield "slots implied", _known(rate.implied_running, 2)
    yield "slots configured", rate.slots
    if engine is not None:
        yield "engine: time to first token, mean s", _known(engine.ttft)
        yield "engine: queue, mean s", _known(engine.queue, 4)
        yield "engine: step, mean ms", _known(engine.step_interval and 1e3 * engine.step_interval)
    if told.spec is not None:
        yield "tokens a verification", number(told.spec.al_pooled)
    yield "Jain's fairness", _known(told.fairness.jain)
    yield "needles found", f"{told.quality.needles_found} of {told.quality.needles}"
    yield "answers that repeat themselves", told.quality.looping
    yield "drift of time per token", None if told.drift is None else f"{told.drift:+.1%}"
    yield "own share of one core", number(told.itself.cpu_share)


def _environment(run: Run) -> Iterator[tuple[str, object]]:
    told = run.result
    server, host = told.server, told.host
    yield "address", server.url
    yield "model", server.model
    yield "version", server.version
    yield "command line", " ".join(server.argv)
    yield "longest context", server.max_model_len
    yield "weights", server.weights_hash
    yield "measured on", f"{host.system}, {host.cores} cores, {host.cpu}"
    yield "load of that machine", f"{host.load_before:.2f} before, {host.load_after:.2f} after"
    for device in told.devices:
        yield "device", f"{device.name}, driver {device.driver}"
    yield "scenario", told.scenario.name
    yield "", told.scenario.description
    for one in told.workload.classes:
        mean = number(one.input_mean, 0)
        yield f"class {one.name}", f"{one.sent} sent, {mean} tokens in, {one.output_target} out"
    yield "cache", told.cache.mode
    yield "corpus", f"{told.workload.corpus} ({told.workload.corpus_hash})"
    yield "measured with", f"{told.tool.name} {told.tool.version}"
    yield "made", told.created_utc


def _known(value: float | None, digits: int = 3) -> str | None:
    return None if value is None else number(value, digits)


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
