"""Turns rows of requests and a server's counters into the figures of a result. Knows no server and
no clock: the same rows give the same figures."""

import hashlib
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from relight.bench import definitions
from relight.bench.metrics import Delta
from relight.bench.record import Record
from relight.bench.result import (
    Cache,
    ClassFacts,
    ClientFigures,
    Counts,
    EngineFigures,
    HitSource,
    Quality,
    Speculation,
    Throughput,
    Tokens,
)
from relight.bench.scenario import CacheMode, Class, Scenario
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


def throughput(records: Sequence[Record], scenario: Scenario) -> Throughput:
    ok = good(records)
    start, end = window(records)
    span = max(end - start, 1e-9)
    tpots = known(r.tpot for r in ok)
    mean_tpot = statistics.fmean(tpots) if tpots else None
    met = goodput(records, scenario)
    slots = scenario.expect.slots
    whole = [r.n_out / r.e2e for r in ok if r.n_out and r.e2e]
    return Throughput(
        out_tok_s=sum(r.n_out or 0 for r in ok) / span,
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
    if any(not c.users or c.think_s for c in scenario.classes):
        return None
    busy = users = 0.0
    for one in scenario.classes:
        own = [r for r in records if r.kind == one.name]
        start, end = window(own)
        busy += sum(r.t_end - r.t_sched for r in own if r.t_end is not None)
        users += one.users * (end - start)
    return busy / users if users > 0 else None


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
    """Relative change of time per token from the first to the second half of the largest class."""
    kinds = Counter(r.kind for r in good(records) if r.tpot is not None)
    if not kinds:
        return None
    own = sorted(good(records, kinds.most_common(1)[0][0]), key=lambda r: r.t_sched)
    values = known(r.tpot for r in own)
    if len(values) < DRIFT_MIN:
        return None
    half = len(values) // 2
    early, late = statistics.fmean(values[:half]), statistics.fmean(values[-half:])
    return late / early - 1 if early > 0 else None


def jain(records: Sequence[Record]) -> float | None:
    rates = [r.n_out / r.e2e for r in good(records) if r.n_out and r.e2e]
    if not rates:
        return None
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates))


def class_facts(records: Sequence[Record], one: Class) -> ClassFacts:
    ok = good(records, one.name)
    lengths = [r.n_in for r in ok if r.n_in is not None]
    gaps = [gap for r in ok for gap in definitions.icl(r.chunks)]
    return ClassFacts(
        name=one.name,
        sent=sum(r.kind == one.name for r in records),
        ok=len(ok),
        input_target=one.input_tokens,
        input_mean=statistics.fmean(lengths) if lengths else None,
        input_min=min(lengths, default=None),
        input_max=max(lengths, default=None),
        output_target=one.output_tokens,
        output_fixed=one.fixed,
        ttft=summary(known(r.ttft for r in ok)),
        tpot=summary(known(r.tpot for r in ok)),
        stall_max=max(gaps, default=None),
    )


def engine(delta: Delta | None, peaks: dict[str, float]) -> EngineFigures | None:
    if delta is None:
        return None
    ttft = delta.histograms.get("ttft")
    return EngineFigures(
        requests=ttft.count if ttft else None,
        ttft=delta.mean("ttft"),
        queue=delta.mean("queue"),
        prefill=delta.mean("prefill"),
        tpot=delta.mean("tpot"),
        gap=delta.mean("gap"),
        e2e=delta.mean("e2e"),
        steps=delta.counters.get("steps"),
        running_max=peaks.get("running"),
        waiting_max=peaks.get("waiting"),
        resets=delta.resets,
    )


def speculation(delta: Delta | None, corpus: str) -> Speculation | None:
    drafts = delta.counters.get("drafts", 0.0) if delta else 0.0
    if delta is None or drafts <= 0:
        return None
    drafted, accepted = delta.counters.get("drafted", 0.0), delta.counters.get("accepted", 0.0)
    positions = [at / drafts for at in delta.per_position]
    return Speculation(
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        al_pooled=1 + accepted / drafts,
        rate=accepted / drafted if drafted else None,
        per_pos_uncond=positions,
        cond=definitions.conditional(positions),
        synthetic=corpus == "random",
    )


def cache(
    records: Sequence[Record], delta: Delta | None, mode: CacheMode, peaks: dict[str, float]
) -> Cache:
    """The hit fraction is by the server's counters, else by usage where that tells."""
    fraction = delta.hit_fraction if delta else None
    source: HitSource | None = None if fraction is None else "metrics"
    told = tokens(records, None)
    if fraction is None and told.cached is not None and told.in_usage:
        fraction, source = told.cached / told.in_usage, "usage"
    return Cache(
        mode=mode,
        hit_fraction=fraction,
        source=source,
        preemptions=delta.counters.get("preemptions") if delta else None,
        usage_peak=peaks.get("kv_usage"),
    )


def quality(records: Sequence[Record]) -> Quality:
    """The hash is over the answers in the order of their ids: equal prompts and equal answers give
    equal hashes, whatever the order of arrival."""
    ok = sorted(good(records), key=lambda r: r.id)
    needles = [r for r in ok if r.needle is not None]
    joined = "".join(f"{r.id}:{r.output_hash};" for r in ok)
    return Quality(
        output_hash=hashlib.sha256(joined.encode()).hexdigest()[:16],
        looping=sum(r.looping for r in ok),
        needles=len(needles),
        needles_found=sum(bool(r.needle) for r in needles),
    )


def middle(told: Summary | None) -> float | None:
    return told.mean if told else None
