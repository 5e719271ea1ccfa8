"""The result file, schema v1: one JSON beside one JSONL row for each request. Knows no server.

Later versions add fields and keep the meaning of these; a reader refuses a schema it does not
know. Figures that could not be had are null, never 0.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from relight.base.errors import BadSetting
from relight.bench.record import Record
from relight.bench.scenario import CacheMode, Scenario
from relight.bench.stats import Summary

SCHEMA = "relight.bench/1"
HitSource = Literal["metrics", "usage"]
Status = Literal["valid", "invalid", "incomplete"]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    name: str = "relight bench"
    version: str


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that measured, which need not be the server's."""

    system: str
    python: str
    cores: int
    load_before: float
    load_after: float


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says of itself. `fingerprint` is of its model list: unlike before and after
    means another server answered."""

    url: str
    model: str
    dialect: str | None
    max_model_len: int | None
    fingerprint_before: str
    fingerprint_after: str


class ClassFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of a class and what it became. Lengths in tokens as the server counted."""

    name: str
    sent: int
    ok: int
    input_target: int
    input_mean: float | None
    input_min: int | None
    input_max: int | None
    output_target: int
    output_fixed: bool
    ttft: Summary | None
    tpot: Summary | None
    stall_max: float | None


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    corpus: str
    corpus_hash: str
    nonce: str
    prompts_hash: str
    classes: list[ClassFacts]


class Protocol(msgspec.Struct, frozen=True, kw_only=True):
    warmup_requests: int
    warmup_disjoint: bool = True
    window_s: float
    steady_s: float
    prompts_calibrated: bool


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """`ok` is null where the server offers nothing to check by: unchecked, which is not passed."""

    id: str
    ok: bool | None
    value: float | str | None
    limit: str
    why: str


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    status: Status
    reasons: list[str]
    checks: list[Check]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    sent: int
    ok: int
    failures: dict[str, int]


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """`in_server` and `out_server` are of the server's counters, the others of usage."""

    in_usage: int
    out_usage: int
    out_expected: int | None
    cached: int | None
    reasoning: int | None
    in_server: float | None
    out_server: float | None


class ClientFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, as seen from outside. `itl` only where the server tells the tokens of a chunk."""

    ttft: Summary | None
    ttft_queue: Summary | None
    ttfa: Summary | None
    tpot: Summary | None
    icl: Summary | None
    itl: Summary | None
    e2e: Summary | None
    stall_max: float | None
    stalls: int
    tokens_per_chunk: float | None


class EngineFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the window in seconds, from the server's own histograms. `gap` is between tokens
    at SGLang and between outputs (steps, under speculation) at vLLM."""

    requests: float | None
    ttft: float | None
    queue: float | None
    prefill: float | None
    tpot: float | None
    gap: float | None
    e2e: float | None
    steps: float | None
    running_max: float | None
    waiting_max: float | None
    resets: list[str]


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """`out_tok_s_steady` is between the moments when the last user began and the first one left.
    `per_user` is 1 / mean TPOT; `per_request` output over whole time, prompt included."""

    out_tok_s: float
    out_tok_s_steady: float | None
    in_tok_s: float
    req_s: float
    per_user: float | None
    per_request: float | None
    goodput_req_s: float | None
    slo_attainment: float | None
    little_closure: float | None
    implied_running: float | None
    slots: int | None
    slot_ceiling: float | None


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """Pooled over the window. `synthetic`: on random words, which says nothing about real use."""

    drafts: float
    drafted: float
    accepted: float
    al_pooled: float
    rate: float | None
    per_pos_uncond: list[float]
    cond: list[float]
    synthetic: bool


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    mode: CacheMode
    hit_fraction: float | None
    source: HitSource | None
    preemptions: float | None
    usage_peak: float | None


class Fairness(msgspec.Struct, frozen=True, kw_only=True):
    """Jain's index over the tokens a second of each request: 1 is equal."""

    jain: float | None


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    output_hash: str
    looping: int
    needles: int
    needles_found: int


class Self(msgspec.Struct, frozen=True, kw_only=True):
    """The measuring itself: how late its own loop ran, and its share of one core."""

    loop_lag: Summary | None
    send_lag: Summary | None
    cpu_share: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    run_id: str
    created_utc: str
    complete: bool
    tool: Tool
    host: Host
    server: Server
    scenario: Scenario
    workload: Workload
    protocol: Protocol
    canary_ok: list[bool]
    counts: Counts
    tokens: Tokens
    client: ClientFigures
    engine: EngineFigures | None
    throughput: Throughput
    spec: Speculation | None
    cache: Cache
    fairness: Fairness
    quality: Quality
    drift: float | None
    itself: Self
    requests_ref: str
    requests_hash: str
    validity: Validity | None = None


def rows(records: Iterable[Record]) -> bytes:
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def write(folder: Path, result: Result, records: Sequence[Record], secret: str) -> Path:
    """Both files; the JSON last, so that it never tells of rows that are not there. A secret can
    only be here by a bug, and is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode(result), indent=1)
    lines = rows(records)
    assert not secret or secret.encode() not in data + lines, "a secret in a result"
    (folder / result.requests_ref).write_bytes(lines)
    path = folder / f"{result.run_id}.json"
    path.write_bytes(data + b"\n")
    return path


def rows_hash(lines: bytes) -> str:
    return hashlib.sha256(lines).hexdigest()[:16]


def read(path: Path) -> tuple[Result, list[Record], str]:
    """The result, its rows, and the hash of the rows as they lie there. Raises BadSetting for a
    file that is no whole result of this schema."""
    try:
        data = path.read_bytes()
        told = msgspec.json.decode(data)
        found = told.get("schema") if isinstance(told, dict) else None
        if found != SCHEMA:
            raise BadSetting(f"{path} has schema {found!r}; this version reads {SCHEMA!r}")
        result = msgspec.json.decode(data, type=Result)
        if Path(result.requests_ref).name != result.requests_ref:
            raise BadSetting(f"{path}: requests_ref is {result.requests_ref!r}; wanted a file name")
        lines = (path.parent / result.requests_ref).read_bytes()
        records = msgspec.json.Decoder(Record).decode_lines(lines)
    except OSError as problem:
        raise BadSetting(f"{path} cannot be read: {problem}") from problem
    except (msgspec.DecodeError, msgspec.ValidationError) as problem:
        raise BadSetting(f"{path} is no result: {problem}") from problem
    return result, records, rows_hash(lines)
