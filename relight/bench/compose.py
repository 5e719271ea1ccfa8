"""Puts a measured run together as a result, with its verdict. Knows no server and no terminal."""

import datetime
import os
import platform
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from relight import __version__
from relight.bench import about, figures, gate, inside, machine, redact, result, schema
from relight.bench.about import About
from relight.bench.load import Lag
from relight.bench.machine import Device
from relight.bench.metrics import Delta
from relight.bench.prompts import Prompt, prompts_hash
from relight.bench.record import Record
from relight.bench.result import Result
from relight.bench.scenario import Scenario, corpora
from relight.bench.schema import Host, Place, Protocol, Self, Server, Tool, Workload
from relight.bench.server import Model
from relight.bench.stats import summary
from relight.bench.watch import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that a run learned."""

    scenario: Scenario
    url: str
    before: Model
    after: Model | None
    alive: bool
    corpus_hash: str
    nonce: str
    calibrated: bool
    prompts: Sequence[Prompt]
    warmed: int
    records: Sequence[Record]
    lags: Sequence[Lag]
    dialect: str | None
    delta: Delta | None
    peaks: dict[str, float]
    load_before: float
    complete: bool
    about: About
    after_about: About
    points: Sequence[Point] = ()
    capacities: dict[str, float | None]
    uptime_s: float | None = None
    energy_j: float | None = None
    running_after: float | None = None
    devices: Sequence[Device] = ()
    devices_after: Sequence[Device] = ()
    place: Place | None = None
    trace_best_hits: float | None = None


def compose(m: Measured) -> Result:
    now = datetime.datetime.now(datetime.UTC)
    run_id = f"{m.scenario.name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    by_class = corpora(m.scenario)
    spec = inside.speculation(m.delta, m.records, by_class, m.points)
    told = figures.tokens(m.records, m.delta)
    series = result.rows(m.points) if m.points else None
    start, end = figures.window(m.records)
    made = Result(
        schema=result.SCHEMA,
        run_id=run_id,
        created_utc=f"{now:%Y-%m-%dT%H:%M:%SZ}",
        complete=m.complete,
        tool=Tool(version=__version__, sources=about.sources_hash(), commit=about.commit()),
        host=_host(m.load_before),
        server=_server(m),
        # What a body holds besides sampling may be a key of some gateway.
        scenario=msgspec.structs.replace(m.scenario, body=redact.settings(m.scenario.body)),
        workload=_workload(m),
        protocol=_protocol(m),
        canary_ok=[True, m.alive],
        counts=figures.counts(m.records),
        tokens=told,
        client=figures.client(m.records),
        engine=inside.engine(m.delta, m.peaks, m.records, spec, m.running_after),
        throughput=figures.throughput(m.records, m.scenario, len(m.devices)),
        spec=spec,
        cache=inside.cache(m.records, m.delta, m.scenario.cache, m.peaks, m.points, m.capacities),
        fairness=schema.Fairness(jain=figures.jain(m.records)),
        quality=figures.quality(m.records, m.delta.counters.get("corrupted") if m.delta else None),
        drift=figures.drift(m.records, m.scenario),
        itself=_itself(m),
        requests_ref=f"{run_id}.jsonl",
        requests_hash=result.rows_hash(result.rows(m.records)),
        devices=list(m.devices),
        devices_after=list(m.devices_after),
        resources=inside.resources(m.points, m.energy_j, end - start, told.out_usage),
        series_ref=f"{run_id}.series.jsonl" if series else None,
        series_hash=result.rows_hash(series) if series else None,
    )
    return msgspec.structs.replace(made, validity=gate.judge(made))


def _server(m: Measured) -> Server:
    return Server(
        url=m.url,
        model=m.before.id,
        dialect=m.dialect,
        max_model_len=m.before.max_model_len,
        fingerprint_before=_fingerprint(m.before, m.about),
        fingerprint_after=_fingerprint(m.after, m.after_about),
        version=m.about.version,
        revision=m.before.revision,
        argv=m.about.argv,
        settings=m.about.settings,
        settings_hash=m.about.settings_hash,
        uptime_s=m.uptime_s,
        config_hash=m.about.config_hash,
        weights_hash=m.about.weights_hash,
        tokenizer_hash=m.about.tokenizer_hash,
        template_hash=m.about.template_hash,
        overrides=m.about.overrides,
    )


def _fingerprint(model: Model | None, told: About) -> str:
    """Empty for a server that is gone. What a server tells of its state besides its settings would
    differ each time, so of those only the version counts."""
    if model is None:
        return ""
    known = f"{model.fingerprint} {told.version} {told.argv} {told.pid}"
    return result.rows_hash(known.encode())


def _workload(m: Measured) -> Workload:
    by_class = corpora(m.scenario)
    return Workload(
        corpus=" ".join(sorted({str(corpus) for corpus in by_class.values()})),
        corpus_hash=m.corpus_hash,
        nonce=m.nonce,
        prompts_hash=prompts_hash(m.prompts),
        classes=[figures.class_facts(m.records, one) for one in m.scenario.classes],
        planned=None if m.scenario.seconds or m.scenario.until else len(m.prompts),
        turns=figures.turns(m.records),
        trace_best_hits=m.trace_best_hits,
    )


def _protocol(m: Measured) -> Protocol:
    start, end = figures.window(m.records)
    return Protocol(
        warmup_requests=m.warmed,
        warmup_disjoint=m.scenario.cache == "cold",
        window_s=end - start,
        steady_s=figures.steady(m.records, m.scenario)[1],
        prompts_calibrated=m.calibrated,
        window_start=start,
        window_end=end,
        clients=len(m.lags),
        place=m.place,
    )


def _itself(m: Measured) -> Self:
    opened = {one.name for one in m.scenario.classes if not one.users}
    shares = [lag.cpu_s / lag.wall_s if lag.wall_s else 0.0 for lag in m.lags]
    return Self(
        loop_lag=summary([late for lag in m.lags for late in lag.late_s]),
        send_lag=summary(figures.known(r.send_lag for r in m.records if r.kind in opened)),
        cpu_share=max(shares, default=0.0),
        cpu_shares=shares,
    )


def _host(load_before: float) -> Host:
    return Host(
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        cores=machine.cores(),
        cpu=machine.cpu_name(),
        memory_bytes=machine.memory("MemTotal"),
        load_before=load_before,
        load_after=os.getloadavg()[0],
    )
