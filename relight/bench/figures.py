"""Turns rows of requests and a server's counters into the figures of a result. Knows no server and
no clock: the same rows give the same figures."""

import hashlib
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from relight.bench import definitions
from relight.bench.metrics import Delta
from relight.bench.record import Record
from relight.bench.scenario import Class, Scenario
from relight.bench.schema import (
    ClassFacts,
    ClientFigures,
    Counts,
    NeedleCell,
    Quality,
    Throughput,
    Tokens,
    Turn,
)
from relight.bench.stats import Summary, summary

DRIFT_MIN = 8


def known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def good(records: Iterable[Record], kind: str | None = None) -> list[Record]:
    return [r for r in records if r.ok and kind in (None, r.kind)]


def counts(records: Sequence[Record]) -> Counts:
    failures = Counter[str](r.failure for r in records if r.failure)
    return Counts(sent=len(records), ok=len(good(records)), failures=dict(failures))


def window(records: Sequence[Record]) -> tuple[float, float]:
    """From when the first request was due to when the last one ended."""
    ends = known(r.t_end for r in records)
    start = min((r.t_sched for r in records), default=0.0)
    return start, max(ends, default=start)


def client(records: Sequence[Record]) -> ClientFigures:
    ok = good(records)
    gaps = [definitions.icl(r.chunks) for r in ok]
    inner = [definitions.itl(r.chunks) for r in ok]
    per_token = None if None in inner else summary([g for one in inner for g in one or ()])
    flat = [gap for one in gaps for gap in one]
    num_chunks = sum(len(r.chunks) for r in ok)
    return ClientFigures(
        ttft=summary(known(r.ttft for r in ok)),
        ttft_queue=summary(known(r.ttft_queue for r in ok)),
        ttfa=summary(known(r.ttfa for r in ok)),
        tpot=summary(known(r.tpot for r in ok)),
        icl=summary(flat),
        itl=per_token,
        e2e=summary(known(r.e2e for r in ok)),
        stall_max=max(flat, default=None),
        stalls=sum(definitions.stalls(one) for one in gaps),
        tokens_per_chunk=sum(r.n_out or 0 for r in ok) / num_chunks if num_chunks else None,
    )


def tokens(records: Sequence[Record], delta: Delta | None) -> Tokens:
    ok = good(records)
    fixed = all(r.n_wanted is not None for r in ok)
    counters = delta.counters if delta else {}
    return Tokens(
        in_usage=sum(r.n_in or 0 for r in ok),
        out_usage=sum(r.n_out or 0 for r in ok),
        out_expected=sum(r.n_wanted or 0 for r in ok) if fixed else None,
        cached=_sum_known(r.n_cached for r in ok),
        reasoning=_sum_known(r.n_reasoning for r in ok),
        in_server=counters.get("prompt_tokens"),
        out_server=counters.get("generation_tokens"),
    )


def _sum_known(values: Iterable[int | None]) -> int | None:
    found = [value for value in values if value is not None]
    return sum(found) if found else None


def throughput(records: Sequence[Record], scenario: Scenario, devices: int = 0) -> Throughput:
    ok = good(records)
    start, end = window(records)
    span = max(end - start, 1e-9)
    tpots = known(r.tpot for r in ok)
    mean_tpot = statistics.fmean(tpots) if tpots else None
    met = goodput(records, scenario)
    slots = scenario.expect.slots
    rate = sum(r.n_out or 0 for r in ok) / span
    whole = [r.n_out / r.e2e for r in ok if r.n_out and r.e2e]
    return Throughput(
        out_tok_s=rate,
        out_tok_s_steady=steady(records, scenario)[0],
        in_tok_s=sum(r.n_in or 0 for r in ok) / span,
        req_s=len(ok) / span,
        per_user=1 / mean_tpot if mean_tpot else None,
        per_request=statistics.fmean(whole) if whole else None,
        goodput_req_s=None if met is None else met / span,
        slo_attainment=None if met is None else met / max(len(records), 1),
        little_closure=closure(records, scenario),
        implied_running=sum(known(r.decode for r in ok)) / span if ok else None,
        slots=slots,
        slot_ceiling=definitions.slot_ceiling(slots, mean_tpot) if slots and mean_tpot else None,
        per_device=rate / devices if devices else None,
    )


def goodput(records: Sequence[Record], scenario: Scenario) -> int | None:
    """Requests that kept every objective of their class; None when no class has one."""
    wanted = {c.name: c for c in scenario.classes if c.slo_ttft_s or c.slo_tpot_s}
    if not wanted:
        return None
    return sum(r.kind in wanted and _kept(r, wanted[r.kind]) for r in good(records))


def _kept(record: Record, one: Class) -> bool:
    first, each = record.ttft_queue, record.tpot
    quick = one.slo_ttft_s is None or (first is not None and first <= one.slo_ttft_s)
    return quick and (one.slo_tpot_s is None or each is None or each <= one.slo_tpot_s)


def closure(records: Sequence[Record], scenario: Scenario) -> float | None:
    """Time in requests over time of users: X E2E / (N C), summed over classes. None where users do
    not ask all the time: open arrivals, think time."""
    if any(not c.users or c.think_s or _waits(c) for c in scenario.classes):
        return None
    busy = users = 0.0
    for one in scenario.classes:
        own = [r for r in records if r.kind == one.name]
        start, end = window(own)
        busy += sum(r.t_end - r.t_sched for r in own if r.t_end is not None)
        users += one.users * (end - start)
    return busy / users if users > 0 else None


def _waits(one: Class) -> bool:
    return one.sessions is not None and bool(
        one.sessions.tool_delay_s or one.sessions.human_delay_s
    )


def steady(records: Sequence[Record], scenario: Scenario) -> tuple[float | None, float]:
    """(tokens a second, length) of the time between the last user's first token and the first
    user's end: without ramp and drain. Told for one closed class with two requests a user."""
    one, ok = scenario.classes[0], good(records)
    if len(scenario.classes) > 1 or not one.users or len(ok) < 2 * one.users:
        return None, 0.0
    begins = sorted(known(r.t_first_any for r in ok))
    ends = sorted(known(r.t_last for r in ok))
    start, end = begins[one.users - 1], ends[-one.users]
    if end <= start:
        return None, 0.0
    return sum(_tokens_within(r, start, end) for r in ok) / (end - start), end - start


def _tokens_within(record: Record, start: float, end: float) -> float:
    told = sum(count for _, count in record.chunks)
    if told == record.n_out:
        return sum(count for moment, count in record.chunks if start < moment <= end)
    within = sum(start < moment <= end for moment, _ in record.chunks)
    return within * (record.n_out or 0) / len(record.chunks)


def drift(records: Sequence[Record], scenario: Scenario) -> float | None:
    """Relative change of time per token from the first to the second half of the largest class. Of
    conversations, turn with turn: their prompts grow. A trace has another load all the time."""
    traced = {one.name for one in scenario.classes if one.trace is not None}
    told = [r for r in good(records) if r.tpot is not None and r.kind not in traced]
    kinds = Counter(r.kind for r in told)
    largest = kinds.most_common(1)[0][0] if kinds else None
    early: list[float] = []
    late: list[float] = []
    for turn in {r.turn for r in told if r.kind == largest}:
        own = sorted((r.t_sched, r.tpot) for r in told if r.kind == largest and r.turn == turn)
        values = known(value for _, value in own)
        half = len(values) // 2
        early, late = [*early, *values[:half]], [*late, *values[len(values) - half :]]
    if len(early) < DRIFT_MIN // 2 or statistics.fmean(early) <= 0:
        return None
    return statistics.fmean(late) / statistics.fmean(early) - 1


def jain(records: Sequence[Record]) -> float | None:
    rates = [r.n_out / r.e2e for r in good(records) if r.n_out and r.e2e]
    if not rates:
        return None
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates))


def class_facts(records: Sequence[Record], one: Class) -> ClassFacts:
    ok = good(records, one.name)
    lengths = [r.n_in for r in ok if r.n_in is not None]
    gaps = [gap for r in ok for gap in definitions.icl(r.chunks)]
    ratios = [r.n_in / r.n_in_wanted for r in ok if r.n_in is not None and r.n_in_wanted]
    start, end = window([r for r in records if r.kind == one.name])
    return ClassFacts(
        name=one.name,
        sent=sum(r.kind == one.name for r in records),
        ok=len(ok),
        input_target=one.input_tokens,
        input_mean=statistics.fmean(lengths) if lengths else None,
        input_min=min(lengths, default=None),
        input_max=max(lengths, default=None),
        input_ratio=statistics.fmean(ratios) if ratios else None,
        output_target=one.output_tokens,
        output_fixed=one.fixed,
        ttft=summary(known(r.ttft for r in ok)),
        tpot=summary(known(r.tpot for r in ok)),
        stall_max=max(gaps, default=None),
        ttfa=summary(known(r.ttfa for r in ok)),
        icl=summary(gaps),
        out_tok_s=sum(r.n_out or 0 for r in ok) / (end - start) if end > start else None,
    )


def turns(records: Sequence[Record]) -> list[Turn]:
    """Of conversations: how each turn fared, and how much of it came from a cache."""
    found = []
    for turn in sorted({r.turn for r in records if r.turn is not None}):
        own = [r for r in good(records) if r.turn == turn]
        cached, asked = _sum_known(r.n_cached for r in own), sum(r.n_in or 0 for r in own)
        found.append(
            Turn(
                turn=turn,
                n=len(own),
                input_mean=asked / len(own) if own else None,
                hit_share=cached / asked if cached is not None and asked else None,
                ttft=summary(known(r.ttft for r in own)),
            )
        )
    return found


def quality(records: Sequence[Record], corrupted: float | None = None) -> Quality:
    """The hash is over the answers in the order of their ids: equal prompts and equal answers give
    equal hashes, whatever the order of arrival."""
    ok = sorted(good(records), key=lambda r: r.id)
    needles = [r for r in ok if r.needle is not None]
    joined = "".join(f"{r.id}:{r.output_hash};" for r in ok)
    scores = known(r.needle_score for r in needles)
    return Quality(
        output_hash=hashlib.sha256(joined.encode()).hexdigest()[:16],
        looping=sum(r.looping for r in ok),
        needles=len(needles),
        needles_found=sum(bool(r.needle) for r in needles),
        needle_score=statistics.fmean(scores) if scores else None,
        cells=needle_cells(needles),
        corrupted=corrupted,
    )


def needle_cells(needles: Sequence[Record]) -> list[NeedleCell]:
    """Scores by class, kind and depth; depths that are drawn have cells of tenths."""
    found: dict[tuple[str, str, float], list[Record]] = {}
    for r in needles:
        depth = round(r.needle_depth or 0.0, 1)
        found.setdefault((r.kind, r.needle_kind or "", depth), []).append(r)
    return [
        NeedleCell(
            kind=kind,
            class_name=name,
            length=statistics.fmean(known(r.n_in for r in own) or [0.0]),
            depth=depth,
            asked=len(own),
            score=statistics.fmean(known(r.needle_score for r in own) or [0.0]),
        )
        for (name, kind, depth), own in sorted(found.items())
    ]


def middle(told: Summary | None) -> float | None:
    return told.mean if told else None
