"""The result file, schema v1: one JSON beside one JSONL row for each request and, where a server
tells its metrics, one for each second. Knows no server.

Later versions add fields and keep the meaning of these; a reader refuses a schema it does not
know. Figures that could not be had are null, never 0.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from relight.base.errors import BadSetting
from relight.bench.machine import Device
from relight.bench.record import Record
from relight.bench.scenario import Scenario
from relight.bench.schema import (
    Cache,
    ClientFigures,
    Counts,
    EngineFigures,
    Fairness,
    Host,
    Protocol,
    Quality,
    Resources,
    Self,
    Server,
    Speculation,
    Throughput,
    Tokens,
    Tool,
    Validity,
    Workload,
)
from relight.bench.watch import Point

SCHEMA = "relight.bench/1"


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
    devices: list[Device] = []
    devices_after: list[Device] = []
    resources: Resources | None = None
    series_ref: str | None = None
    series_hash: str | None = None


def rows(records: Iterable[Record | Point]) -> bytes:
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def write(
    folder: Path,
    result: Result,
    records: Sequence[Record],
    secret: str,
    series: Sequence[Point] = (),
) -> Path:
    """All files; the JSON last, so that it never tells of rows that are not there. A secret can
    only be here by a bug, and is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode(result), indent=1)
    lines, seconds = rows(records), rows(series)
    assert not secret or secret.encode() not in data + lines + seconds, "a secret in a result"
    (folder / result.requests_ref).write_bytes(lines)
    if result.series_ref is not None:
        (folder / result.series_ref).write_bytes(seconds)
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


def series_hash(path: Path, result: Result) -> str | None:
    """Of the seconds as they lie there; None where there are none."""
    if result.series_ref is None:
        return None
    return rows_hash(rows(read_series(path, result)))


def read_series(path: Path, result: Result) -> list[Point]:
    """The seconds of a window beside the result at `path`; empty where there are none. Raises
    BadSetting."""
    name = result.series_ref
    if name is None:
        return []
    if Path(name).name != name:
        raise BadSetting(f"{path}: series_ref is {name!r}; wanted a file name")
    try:
        return msgspec.json.Decoder(Point).decode_lines((path.parent / name).read_bytes())
    except OSError as problem:
        raise BadSetting(f"{name} cannot be read: {problem}") from problem
    except (msgspec.DecodeError, msgspec.ValidationError) as problem:
        raise BadSetting(f"{name} is no series: {problem}") from problem
