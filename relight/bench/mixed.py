"""What a long prompt does to short ones beside it, and they to it. Knows no terminal.

Three runs: the short ones alone, the long one alone, all together; a line of one-token probes goes
with the first and the last. Of the short ones only those count as beside that were under way
while a long one was.
"""

import re
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from relight.base.errors import BadSetting
from relight.bench import definitions
from relight.bench.figures import good, known, middle
from relight.bench.record import Record
from relight.bench.result import Result
from relight.bench.scenario import Class, Scenario
from relight.bench.stats import Summary, summary

SCHEMA = "relight.bench.mixed/1"
MORE = 25
"""So many times the rounds that are asked for can be had while a long prompt takes its time."""
PROBE_TEXT = "Say yes."
Part = Literal["short", "long", "mixed"]
Measure = Callable[[Part, Scenario], tuple[Result, list[Record]]]


class Shape(msgspec.Struct, frozen=True):
    """`31x1024/512`: users, tokens in, tokens out."""

    users: int
    input_tokens: int
    output_tokens: int


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of requests of one class."""

    requests: int
    ttft: Summary | None
    tpot: Summary | None
    gap_max: float | None
    prefill_tok_s: float | None


class Mixed(msgspec.Struct, frozen=True, kw_only=True):
    """`…_ratio` is beside over alone: of mean TTFT and of the longest gap for the short ones, of
    prompt tokens a second for the long one. Jain's index is over the short ones beside."""

    schema: str
    runs: dict[Part, str]
    short_alone: Side
    short_beside: Side
    probe_alone: Side
    probe_beside: Side
    long_alone: Side
    long_beside: Side
    short_ttft_ratio: float | None
    short_p95_ratio: float | None
    short_gap_ratio: float | None
    long_prefill_ratio: float | None
    jain: float | None
    faults: list[str]


def shape(text: str) -> Shape:
    found = re.fullmatch(r"(\d+)x(\d+)(K?)/(\d+)", text)
    if not found or not int(found[1]):
        raise BadSetting(f"shape is {text!r}; wanted users x tokens in / out, such as 31x1024/512")
    tokens = int(found[2]) * (1024 if found[3] else 1)
    return Shape(int(found[1]), tokens, int(found[4]))


def probe_rate(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(/s)?", text)
    if not found:
        raise BadSetting(f"probe is {text!r}; wanted a rate such as 2/s, or 0 for none")
    return float(found[1])


def scenarios(
    base: Scenario, short: Shape, long: Shape, probe: float, rounds: int, after_s: float
) -> dict[Part, Scenario]:
    few = Class(
        name="short",
        users=short.users,
        requests=short.users * rounds,
        input_tokens=short.input_tokens,
        output_tokens=short.output_tokens,
    )
    one = Class(
        name="long",
        users=long.users,
        requests=long.users,
        input_tokens=long.input_tokens,
        output_tokens=long.output_tokens,
    )
    many = msgspec.structs.replace(few, requests=few.requests * MORE)
    late = msgspec.structs.replace(one, start_s=after_s, requests=2 * long.users)
    probes = []
    if probe:
        probes = [Class(name="probe", rate=probe, requests=2000, text=PROBE_TEXT, output_tokens=2)]
    change = msgspec.structs.replace
    # What is left of one class when another ends is no fault: closure has no meaning here.
    loose = change(base.limits, closure_low=0.0, drift=1e9)
    return {
        "short": change(base, name="short", classes=[few, *probes], until="short", limits=loose),
        "long": change(base, name="long", classes=[one], warm_up=1),
        "mixed": change(
            base, name="mixed", classes=[many, late, *probes], until="long", limits=loose
        ),
    }


def measure_all(wanted: dict[Part, Scenario], measure: Measure) -> Mixed:
    told = {part: measure(part, scenario) for part, scenario in wanted.items()}
    return judge(
        {part: result for part, (result, _) in told.items()},
        told["short"][1],
        told["long"][1],
        told["mixed"][1],
    )


def judge(
    results: dict[Part, Result],
    short: Sequence[Record],
    long: Sequence[Record],
    mixed: Sequence[Record],
) -> Mixed:
    long_ones = good(mixed, "long")
    beside = [r for r in mixed if r.kind != "long" and _overlaps(r, long_ones)]
    alone, near = side(good(short, "short")), side(good(beside, "short"))
    before, after = side(good(long, "long")), side(long_ones)
    rates = [r.n_out / r.e2e for r in good(beside, "short") if r.n_out and r.e2e]
    return Mixed(
        schema=SCHEMA,
        runs={part: result.run_id for part, result in results.items()},
        short_alone=alone,
        short_beside=near,
        probe_alone=side(good(short, "probe")),
        probe_beside=side(good(beside, "probe")),
        long_alone=before,
        long_beside=after,
        short_ttft_ratio=_ratio(middle(near.ttft), middle(alone.ttft)),
        short_p95_ratio=_ratio(
            near.ttft.p95 if near.ttft else None, alone.ttft.p95 if alone.ttft else None
        ),
        short_gap_ratio=_ratio(near.gap_max, alone.gap_max),
        long_prefill_ratio=_ratio(after.prefill_tok_s, before.prefill_tok_s),
        jain=sum(rates) ** 2 / (len(rates) * sum(r * r for r in rates)) if rates else None,
        faults=[
            f"{result.run_id}: {reason}"
            for result in results.values()
            for reason in (result.validity.reasons if result.validity else ["not judged"])
        ],
    )


def _overlaps(record: Record, long_ones: Sequence[Record]) -> bool:
    begin, end = record.t_sched, record.t_end
    return any(
        end is not None
        and r.t_send is not None
        and r.t_end is not None
        and begin < r.t_end
        and r.t_send < end
        for r in long_ones
    )


def side(records: Sequence[Record]) -> Side:
    gaps = [gap for r in records for gap in definitions.icl(r.chunks)]
    speeds = [r.n_in / r.ttft for r in records if r.n_in and r.ttft]
    return Side(
        requests=len(records),
        ttft=summary(known(r.ttft for r in records)),
        tpot=summary(known(r.tpot for r in records)),
        gap_max=max(gaps, default=None),
        prefill_tok_s=sum(speeds) / len(speeds) if speeds else None,
    )


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
