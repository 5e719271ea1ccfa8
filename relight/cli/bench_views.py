"""Shows summaries of several runs: ladders, mixtures, soaks, needles. Judges nothing."""

from relight.bench.figures import middle
from relight.bench.ladder import Ladder
from relight.bench.mixed import Mixed, Side
from relight.bench.needles import Needles
from relight.bench.soak import Soak, Trend
from relight.cli import show
from relight.cli.bench_view import number


def print_ladder(ladder: Ladder) -> None:
    columns = ("asked", "tokens", "TTFT s", "prefill tok/s", "TPOT s", "needles", "went")
    rows = [
        (
            f"{rung.asked:,}",
            number(rung.actual, 0),
            number(rung.ttft, 3),
            number(rung.prefill_tok_s, 1),
            number(rung.tpot),
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


def print_mixed(mixed: Mixed) -> None:
    columns = ("requests", "n", "TTFT mean", "p95", "TPOT mean", "longest gap", "prefill tok/s")
    sides = (
        ("short, alone", mixed.short_alone),
        ("short, beside", mixed.short_beside),
        ("probes, alone", mixed.probe_alone),
        ("probes, beside", mixed.probe_beside),
        ("long, alone", mixed.long_alone),
        ("long, beside", mixed.long_beside),
    )
    rows = [_side(name, side) for name, side in sides if side.requests]
    show.table("A long prompt beside short ones", columns, rows, numbers=columns[1:])
    ratios = (
        ("TTFT of the short ones", mixed.short_ttft_ratio),
        ("… its p95", mixed.short_p95_ratio),
        ("longest gap of the short ones", mixed.short_gap_ratio),
        ("prompt tokens a second of the long one", mixed.long_prefill_ratio),
    )
    for name, ratio in ratios:
        show.line(f"{name}, beside over alone: {number(ratio, 2)}")
    show.line(f"Jain's index of the short ones beside: {number(mixed.jain, 3)}")
    for fault in mixed.faults:
        show.line(f"  {fault}")


def _side(name: str, side: Side) -> tuple[str, ...]:
    return (
        name,
        str(side.requests),
        number(middle(side.ttft)),
        number(side.ttft.p95 if side.ttft else None),
        number(middle(side.tpot)),
        number(side.gap_max),
        number(side.prefill_tok_s, 1),
    )


def print_soak(soak: Soak) -> None:
    columns = ("min", "verdict", "sent", "failed", "tok/s", "TTFT s", "TPOT s", "MB")
    rows = [
        (
            number(one.at_s / 60, 1),
            one.status,
            str(one.sent),
            str(one.failed),
            number(one.out_tok_s, 1),
            number(one.ttft, 3),
            number(one.tpot),
            number(one.resident / 1e6 if one.resident else None, 0),
        )
        for one in soak.windows
    ]
    show.table(f"Soak of {soak.seconds / 60:.1f} minutes", columns, rows, numbers=columns[2:])
    show.line(f"sentinel, time per token: {_trend(soak.sentinel_tpot)}")
    show.line(f"sentinel, TTFT: {_trend(soak.sentinel_ttft)}")
    show.line(f"server's memory: {_trend(soak.resident)}")
    for fault in soak.faults:
        show.line(f"  {fault}")


def _trend(trend: Trend | None) -> str:
    if trend is None:
        return "–"
    known = trend.low is not None and trend.high is not None
    within = f" ({trend.low:+.1%} to {trend.high:+.1%})" if known else ""
    return f"{trend.change:+.1%} from the first to the last{within}"


def print_needles(needles: Needles) -> None:
    columns = ("tokens", *needles.kinds, "TTFT s")
    rows = [
        (
            f"{length.asked:,}",
            *(number(length.score(kind), 2) for kind in needles.kinds),
            number(length.ttft, 3),
        )
        for length in needles.lengths
    ]
    show.table("Share found, by length and kind", columns, rows, numbers=columns[1:])
    depths = sorted({c.depth for length in needles.lengths for c in length.cells})
    names = ("tokens", *(f"at {depth:.1f}" for depth in depths))
    table = []
    for length in needles.lengths:
        scores = []
        for depth in depths:
            own = [c for c in length.cells if c.depth == depth and c.kind != "words"]
            asked = sum(c.asked for c in own)
            scores.append(sum(c.score * c.asked for c in own) / asked if asked else None)
        table.append((f"{length.asked:,}", *(number(score, 2) for score in scores)))
    show.table("Share found, by length and depth", names, table, numbers=names[1:])
    show.line(f"found in all: {needles.score:.1%}; wanted {needles.least:.1%}")
    for fault in needles.faults:
        show.line(f"  {fault}")
