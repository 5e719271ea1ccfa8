"""Puts a measured run together as a result, with its verdict. Knows no server and no terminal."""

import datetime
import os
import platform
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from relight import __version__
from relight.bench import figures, gate, result
from relight.bench.client import Prompt
from relight.bench.load import Lag
from relight.bench.metrics import Delta
from relight.bench.prompts import prompts_hash
from relight.bench.record import Record
from relight.bench.result import Host, Protocol, Result, Self, Server, Tool, Workload
from relight.bench.scenario import Scenario
from relight.bench.server import Model
from relight.bench.stats import summary


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
    lag: Lag
    dialect: str | None
    delta: Delta | None
    peaks: dict[str, float]
    load_before: float
    complete: bool


def compose(m: Measured) -> Result:
    now = datetime.datetime.now(datetime.UTC)
    run_id = f"{m.scenario.name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    made = Result(
        schema=result.SCHEMA,
        run_id=run_id,
        created_utc=f"{now:%Y-%m-%dT%H:%M:%SZ}",
        complete=m.complete,
        tool=Tool(version=__version__),
        host=_host(m.load_before),
        server=_server(m),
        scenario=m.scenario,
        workload=_workload(m),
        protocol=_protocol(m),
        canary_ok=[True, m.alive],
        counts=figures.counts(m.records),
        tokens=figures.tokens(m.records, m.delta),
        client=figures.client(m.records),
        engine=figures.engine(m.delta, m.peaks),
        throughput=figures.throughput(m.records, m.scenario),
        spec=figures.speculation(m.delta, m.scenario.corpus),
        cache=figures.cache(m.records, m.delta, m.scenario.cache, m.peaks),
        fairness=result.Fairness(jain=figures.jain(m.records)),
        quality=figures.quality(m.records),
        drift=figures.drift(m.records, m.scenario),
        itself=_itself(m),
        requests_ref=f"{run_id}.jsonl",
        requests_hash=result.rows_hash(result.rows(m.records)),
    )
    return msgspec.structs.replace(made, validity=gate.judge(made))


def _server(m: Measured) -> Server:
    return Server(
        url=m.url,
        model=m.before.id,
        dialect=m.dialect,
        max_model_len=m.before.max_model_len,
        fingerprint_before=m.before.fingerprint,
        fingerprint_after=m.after.fingerprint if m.after else "",
    )


def _workload(m: Measured) -> Workload:
    return Workload(
        corpus=m.scenario.corpus,
        corpus_hash=m.corpus_hash,
        nonce=m.nonce,
        prompts_hash=prompts_hash(m.prompts),
        classes=[figures.class_facts(m.records, one) for one in m.scenario.classes],
    )


def _protocol(m: Measured) -> Protocol:
    start, end = figures.window(m.records)
    return Protocol(
        warmup_requests=m.warmed,
        warmup_disjoint=m.scenario.cache == "cold",
        window_s=end - start,
        steady_s=figures.steady(m.records, m.scenario)[1],
        prompts_calibrated=m.calibrated,
    )


def _itself(m: Measured) -> Self:
    opened = {one.name for one in m.scenario.classes if one.rate}
    return Self(
        loop_lag=summary(m.lag.late_s),
        send_lag=summary(figures.known(r.send_lag for r in m.records if r.kind in opened)),
        cpu_share=m.lag.cpu_s / m.lag.wall_s if m.lag.wall_s else 0.0,
    )


def _host(load_before: float) -> Host:
    return Host(
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        cores=os.cpu_count() or 1,
        load_before=load_before,
        load_after=os.getloadavg()[0],
    )
