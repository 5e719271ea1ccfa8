"""What lies in a folder of results, ready to be drawn. Knows no picture."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from relight.base.errors import BadSetting
from relight.bench import arms, mixed, needles, result, soak
from relight.bench.arms import Blocks
from relight.bench.figures import window
from relight.bench.ladder import Ladder
from relight.bench.mixed import Mixed
from relight.bench.needles import Needles
from relight.bench.record import Record
from relight.bench.result import Result
from relight.bench.soak import Soak
from relight.bench.watch import Point

T = TypeVar("T")

SENTINEL = "sentinel"
RECORD_TIMES = (
    "t_sched",
    "t_send",
    "t_headers",
    "t_first_any",
    "t_first_answer",
    "t_last",
    "t_end",
)


@dataclass(frozen=True, slots=True)
class Run:
    """One result with its rows and its seconds."""

    result: Result
    records: list[Record]
    points: list[Point]

    @property
    def valid(self) -> bool:
        validity = self.result.validity
        return validity is not None and validity.status == "valid"

    @property
    def users(self) -> int | None:
        """How many ask at once; None where requests come by a rate or a trace."""
        classes = self.result.scenario.classes
        return sum(c.users for c in classes) if all(c.users for c in classes) else None

    @property
    def series(self) -> str:
        """Runs of one series differ in their load only."""
        told = self.result
        place = told.protocol.place
        arm = f", arm {place.arm}" if place and place.arm else ""
        return f"{told.scenario.name} on {told.server.model}{arm}"


@dataclass(slots=True)
class Gathered:
    """Results by their kind; those that are no single run by the name of their file. `skipped`
    tells of files that are none of these."""

    runs: list[Run] = field(default_factory=list)
    blocks: dict[str, Blocks] = field(default_factory=dict)
    ladders: dict[str, Ladder] = field(default_factory=dict)
    mixtures: dict[str, Mixed] = field(default_factory=dict)
    soaks: dict[str, Soak] = field(default_factory=dict)
    needles: dict[str, Needles] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        several = (self.blocks, self.ladders, self.mixtures, self.soaks, self.needles)
        return not self.runs and not any(several)

    @property
    def loads(self) -> list[Run]:
        """Without the small cells that only watch a machine."""
        return [run for run in self.runs if run.result.scenario.name != SENTINEL]

    def by_series(self) -> dict[str, list[Run]]:
        found: dict[str, list[Run]] = {}
        for run in self.loads:
            found.setdefault(run.series, []).append(run)
        return found


def from_zero(run: Run) -> Run:
    """The same run with its times since its load began, instead of since the client did."""
    begin, _ = window(run.records)
    records = [
        msgspec.structs.replace(
            record,
            chunks=tuple((time - begin, count) for time, count in record.chunks),
            **{
                name: time - begin
                for name in RECORD_TIMES
                if (time := getattr(record, name)) is not None
            },
        )
        for record in run.records
    ]
    points = [msgspec.structs.replace(point, t=point.t - begin) for point in run.points]
    return Run(run.result, records, points)


def gather(paths: Iterable[Path]) -> Gathered:
    """All results of files and folders, by the time of their making. Raises BadSetting when there
    is none."""
    found = Gathered()
    for file in _files(paths):
        try:
            _add(found, file)
        except BadSetting as problem:
            found.skipped.append(problem.message)
    if found.empty:
        why = f": {found.skipped[0]}" if found.skipped else ""
        raise BadSetting(f"there is no result to draw{why}; give files or folders of `bench run`")
    found.runs.sort(key=lambda run: (run.result.created_utc, run.result.run_id))
    return found


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.glob("*.json"))
        else:
            yield path


def _add(found: Gathered, file: Path) -> None:
    try:
        told = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError) as problem:
        raise BadSetting(f"{file} cannot be read: {problem}") from problem
    schema = told.get("schema") if isinstance(told, dict) else None
    if schema == result.SCHEMA:
        one, records, _ = result.read(file)
        found.runs.append(Run(one, records, result.read_series(file, one)))
    elif schema == arms.SCHEMA:
        found.blocks[file.stem] = _read(file, told, Blocks)
    elif schema == mixed.SCHEMA:
        found.mixtures[file.stem] = _read(file, told, Mixed)
    elif schema == soak.SCHEMA:
        found.soaks[file.stem] = _read(file, told, Soak)
    elif schema == needles.SCHEMA:
        found.needles[file.stem] = _read(file, told, Needles)
    elif isinstance(told, dict) and "rungs" in told:
        found.ladders[file.stem] = _read(file, told, Ladder)
    else:
        raise BadSetting(f"{file} has schema {schema!r}, which is not drawn")


def _read(file: Path, told: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError as problem:
        raise BadSetting(f"{file} is damaged: {problem}") from problem


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
