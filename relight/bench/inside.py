"""Figures that a server tells of itself: its times, its speculation, its cache, its machine. Knows
no clock; what is not told is null."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from relight.bench import definitions
from relight.bench.corpus import Mix
from relight.bench.figures import good, known, tokens
from relight.bench.machine import Device
from relight.bench.metrics import Delta
from relight.bench.record import Drafts, Record, ServerTimes
from relight.bench.scenario import CacheMode
from relight.bench.schema import (
    Cache,
    EngineFigures,
    GroupFacts,
    HitSource,
    Resources,
    Slice,
    Speculation,
)
from relight.bench.watch import Point


def engine(
    delta: Delta | None,
    peaks: Mapping[str, float],
    records: Sequence[Record],
    spec: Speculation | None,
    running_after: float | None = None,
) -> EngineFigures | None:
    if delta is None or not delta.histograms:
        return _engine_told(delta, peaks, records)
    ttft, steps = delta.histograms.get("ttft"), delta.histograms.get("step_tokens")
    tpot, gap = _tpot(delta), delta.mean("gap")
    advance = spec.al_pooled if spec else None
    return EngineFigures(
        requests=ttft.count if ttft else None,
        ttft=delta.mean("ttft"),
        queue=delta.mean("queue"),
        prefill=delta.mean("prefill"),
        tpot=tpot,
        gap=gap,
        e2e=delta.mean("e2e"),
        steps=delta.counters.get("steps", steps.count if steps else None),
        running_max=peaks.get("running"),
        waiting_max=peaks.get("waiting"),
        resets=delta.resets,
        # SGLang's gap is divided by the tokens of a step already.
        step_interval=gap if delta.dialect == "vllm" else None,
        tokens_per_step=steps.mean if steps else None,
        running_after=running_after,
        advance_closure=tpot * advance / gap if tpot and gap and advance else None,
    )


def _tpot(delta: Delta) -> float | None:
    """From its own histogram, else from the time after first tokens over the tokens after them."""
    decode = delta.histograms.get("decode")
    told = delta.mean("tpot")
    if told is not None or decode is None:
        return told
    rest = delta.counters.get("generation_tokens", 0.0) - decode.count
    return decode.sum / rest if rest > 0 else None


def _engine_told(
    delta: Delta | None, peaks: Mapping[str, float], records: Sequence[Record]
) -> EngineFigures | None:
    """Of a server without histograms: from what it told beside each answer."""
    told = [r.server for r in good(records) if r.server is not None]
    if delta is None and not told:
        return None

    def mean(of: Callable[[ServerTimes], float | None]) -> float | None:
        values = known(of(times) for times in told)
        return statistics.fmean(values) if values else None

    return EngineFigures(
        requests=None,
        ttft=mean(lambda times: times.ttft),
        queue=mean(lambda times: times.queue),
        prefill=mean(lambda times: times.prefill),
        tpot=None,
        gap=None,
        e2e=None,
        steps=delta.counters.get("steps") if delta else None,
        running_max=peaks.get("running"),
        waiting_max=peaks.get("waiting"),
        resets=delta.resets if delta else [],
        source="response" if told else "metrics",
    )


def speculation(
    delta: Delta | None,
    records: Sequence[Record],
    corpora: Mapping[str, Mix],
    points: Sequence[Point] = (),
) -> Speculation | None:
    """From counters; else from a gauge that was polled; else from the answers."""
    told = {r.id: r.drafts for r in good(records) if r.drafts is not None}
    slices = _slices(records, corpora)
    synthetic = "random" in corpora.values()
    own = _Pooled(list(told.values()))
    drafts = delta.counters.get("drafts", 0.0) if delta else 0.0
    accepted = delta.counters.get("accepted") if delta else None
    if delta is not None and drafts > 0 and accepted is not None:
        return _counted(delta, drafts, accepted, own, slices, synthetic)
    gauge = [p.gauges["accept_length"] for p in points if p.gauges.get("accept_length", 0.0) > 0]
    if not gauge and own.al_pooled is None:
        return None
    return Speculation(
        drafts=drafts or own.steps,
        drafted=own.drafted,
        accepted=own.accepted,
        al_pooled=own.al_pooled if own.al_pooled is not None else statistics.fmean(gauge),
        rate=own.rate,
        per_pos_uncond=own.positions,
        cond=definitions.conditional(own.positions),
        synthetic=synthetic,
        al_mean_req=own.al_mean,
        slices=slices,
        source="gauge" if own.al_pooled is None else "response",
    )


def _counted(
    delta: Delta,
    drafts: float,
    accepted: float,
    own: "_Pooled",
    slices: list[Slice],
    synthetic: bool,
) -> Speculation:
    drafted = delta.counters.get("drafted", 0.0)
    positions = [at / drafts for at in delta.per_position]
    pairs = zip(delta.per_position, delta.drafted_at, strict=False)
    return Speculation(
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        al_pooled=1 + accepted / drafts,
        rate=accepted / drafted if drafted else None,
        per_pos_uncond=positions,
        cond=definitions.conditional(positions),
        synthetic=synthetic,
        per_pos_given_drafted=[at / tried if tried else 0.0 for at, tried in pairs],
        al_mean_req=own.al_mean,
        depth=drafted / drafts if drafted else None,
        accepted_per_verified=(accepted + drafts) / (drafted + drafts),
        slices=slices,
    )


class _Pooled:
    """Drafts of several answers, by verification and by request."""

    def __init__(self, told: Sequence[Drafts]) -> None:
        counted = [d for d in told if d.steps and d.accepted is not None]
        self.steps = float(sum(d.steps or 0 for d in counted)) or None
        # llama.cpp tells no verifications, and still what was drafted and accepted.
        self.drafted = float(sum(d.drafted or 0 for d in told)) or None
        self.accepted = float(sum(d.accepted or 0 for d in told)) if told else None
        accepted = sum(d.accepted or 0 for d in counted)
        self.al_pooled = 1 + accepted / self.steps if self.steps else None
        means = known(d.advance for d in counted)
        self.al_mean = statistics.fmean(means) if means else None
        self.rate = (
            self.accepted / self.drafted if self.drafted and self.accepted is not None else None
        )
        self.positions = _positions([d.histogram for d in counted if d.histogram])


def _positions(histograms: Sequence[Sequence[int]]) -> list[float]:
    """Acceptance at each position over all verifications: who accepted i drafts accepted the
    first, …, the i-th."""
    steps = sum(map(sum, histograms))
    depth = max((len(one) - 1 for one in histograms), default=0)
    return [
        sum(sum(one[position:]) for one in histograms) / steps for position in range(1, depth + 1)
    ]


def _slices(records: Sequence[Record], corpora: Mapping[str, Mix]) -> list[Slice]:
    by_corpus: dict[str, list[Drafts]] = {}
    for r in good(records):
        if r.drafts is not None:
            by_corpus.setdefault(str(corpora.get(r.kind, "")), []).append(r.drafts)
    return [
        Slice(
            corpus=corpus,
            requests=len(told),
            al_pooled=(own := _Pooled(told)).al_pooled,
            al_mean_req=own.al_mean,
            rate=own.rate,
            per_pos_uncond=own.positions,
        )
        for corpus, told in sorted(by_corpus.items())
    ]


def cache(
    records: Sequence[Record],
    delta: Delta | None,
    mode: CacheMode,
    peaks: Mapping[str, float],
    points: Sequence[Point] = (),
    capacities: Mapping[str, float | None] | None = None,
) -> Cache:
    """The hit fraction is by the server's counters, else by usage where that tells."""
    fraction = delta.hit_fraction if delta else None
    source: HitSource | None = None if fraction is None else "metrics"
    told = tokens(records, None)
    if fraction is None and told.cached is not None and told.in_usage:
        fraction, source = told.cached / told.in_usage, "usage"
    names = dict.fromkeys(name for point in points for name in point.groups)
    return Cache(
        mode=mode,
        hit_fraction=fraction,
        source=source,
        preemptions=delta.counters.get("preemptions") if delta else None,
        usage_peak=peaks.get("kv_usage"),
        groups=[
            GroupFacts(
                name=name,
                capacity=(capacities or {}).get(name),
                peak_share=max(p.groups[name] for p in points if name in p.groups),
            )
            for name in names
        ],
    )


def resources(
    points: Sequence[Point], cpu_j: float | None, seconds: float, out_tokens: int
) -> Resources | None:
    """None when the server's machine is not this one."""
    own = [p for p in points if p.resident is not None]
    looks = [p.devices for p in points if p.devices]
    if not own and not looks:
        return None
    draws = [sum(known(device.power_w for device in look)) for look in looks]
    device_j = statistics.fmean(draws) * seconds if any(draws) else None
    joules = None if cpu_j is None and device_j is None else (cpu_j or 0.0) + (device_j or 0.0)
    every: list[Device] = [device for look in looks for device in look]
    return Resources(
        resident_max=max((p.resident for p in own if p.resident is not None), default=None),
        swap_max=max((p.swapped for p in own if p.swapped is not None), default=None),
        mem_available_min=min(
            (p.mem_available for p in own if p.mem_available is not None), default=None
        ),
        zombies_max=max((p.zombies for p in own if p.zombies is not None), default=None),
        device_free_min=min(known(device.free_bytes for device in every), default=None),
        temperature_max=max(known(device.temperature_c for device in every), default=None),
        cpu_j=cpu_j,
        device_j=device_j,
        j_per_token=joules / out_tokens if joules is not None and out_tokens else None,
    )
