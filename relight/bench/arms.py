"""Runs two arms block by block, and decides whether they differ. Knows no terminal."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from relight.base.errors import BadSetting
from relight.bench import stats
from relight.bench.compare import changed_text
from relight.bench.figures import middle
from relight.bench.result import Result
from relight.bench.scenario import Scenario
from relight.bench.verdict import Verdict, abba, decide, noise_floor

SCHEMA = "relight.bench.blocks/1"
Metric = Literal["tpot", "ttft", "e2e", "out_tok_s"]
METRICS: dict[Metric, bool] = {"tpot": True, "ttft": True, "e2e": True, "out_tok_s": False}
"""Whether lower is better."""
TAILS = {"ttft p95": ("ttft", "p95"), "ttft p99": ("ttft", "p99"), "icl p99": ("icl", "p99")}
TAIL_RUNS = 30
"""Under so many blocks a tail is told and decides nothing."""
Arm = Literal["A", "B"]
Measure = Callable[[Arm, int], Result]
"""One run of an arm in the block of that number."""


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """B over A of a percentile, with its interval by bootstrap over blocks."""

    ratio: float
    low: float
    high: float
    blocks: int
    report_only: bool


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """What an A/B or A/A run found. `pairs` are (A, B) of each block; `adjusted_p` is by Holm over
    all metrics. `faults` make it invalid: a run that is not valid, answers that changed. `sentinel`
    is the time per token of one small cell on A before the first block and after each; `tells`
    are signs that a difference is the machine's. `complete` is false after a Ctrl-C."""

    schema: str
    kind: Literal["ab", "aa"]
    order: list[tuple[str, str]]
    runs: list[tuple[str, str]]
    pairs: dict[Metric, list[tuple[float, float]]]
    verdicts: dict[Metric, Verdict]
    adjusted_p: dict[Metric, float]
    floor: dict[Metric, float]
    delta: float
    faults: list[str]
    sentinel: list[float] = []
    tells: dict[Metric, str] = {}
    tails: dict[str, Tail] = {}
    complete: bool = True


def run_blocks(
    measure: Measure,
    blocks: int,
    *,
    kind: Literal["ab", "aa"],
    delta: float,
    floor: Mapping[Metric, float],
    sentinel: Callable[[], Result] | None = None,
) -> Blocks:
    """Two or more blocks in the order AB, BA …; each arm runs once in each. A run that was stopped
    ends it, and its block does not count."""
    done: list[tuple[Result, Result]] = []
    order = abba(blocks)
    seen = [sentinel()] if sentinel else []
    for number, block in enumerate(order):
        told: dict[str, Result] = {}
        for arm in block:
            told[arm] = measure("A" if arm == "A" else "B", number)
            if not told[arm].complete:
                break
        if not all(one.complete for one in told.values()):
            break
        done.append((told["A"], told["B"]))
        seen += [sentinel()] if sentinel else []
    found = judge(done, order, kind=kind, delta=delta, floor=floor)
    watched = [v for v in (value(result, "tpot") for result in seen) if v is not None]
    return msgspec.structs.replace(
        found,
        sentinel=watched,
        tells=drift_tells(watched, found.verdicts),
        complete=len(done) == blocks,
    )


def sentinel_of(scenario: Scenario) -> Scenario:
    """One user with four requests of the first class: small, and the same all the time."""
    one = msgspec.structs.replace(
        scenario.classes[0],
        name="sentinel",
        users=1,
        rate=0.0,
        requests=4,
        start_s=0.0,
        sessions=None,
        trace=None,
    )
    return msgspec.structs.replace(
        scenario,
        name="sentinel",
        classes=[one],
        warm_up=1,
        seconds=0.0,
        until="",
        cache="cold",
    )


def drift_tells(sentinel: Sequence[float], verdicts: Mapping[Metric, Verdict]) -> dict[Metric, str]:
    """For a difference that is less than twice what the sentinel itself went apart."""
    apart = max(sentinel) / min(sentinel) - 1 if len(sentinel) > 1 else 0.0
    return {
        metric: f"the sentinel cell went {apart:.1%} apart, over half of the difference"
        for metric, told in verdicts.items()
        if told.word in ("faster", "slower") and apart > abs(told.ratio - 1) / 2
    }


def judge(
    done: Sequence[tuple[Result, Result]],
    order: list[tuple[str, str]],
    *,
    kind: Literal["ab", "aa"],
    delta: float,
    floor: Mapping[Metric, float],
) -> Blocks:
    pairs: dict[Metric, list[tuple[float, float]]] = {}
    for metric in METRICS:
        values = [(value(a, metric), value(b, metric)) for a, b in done]
        known = [(a, b) for a, b in values if a is not None and b is not None]
        if len(known) == len(done) > 1:
            pairs[metric] = known
    verdicts = {
        metric: decide(
            told,
            lower_is_better=METRICS[metric],
            delta=delta,
            floor=floor.get(metric, 0.0),
        )
        for metric, told in pairs.items()
    }
    adjusted = stats.holm([verdict.p for verdict in verdicts.values()])
    return Blocks(
        schema=SCHEMA,
        kind=kind,
        order=order,
        runs=[(a.run_id, b.run_id) for a, b in done],
        pairs=pairs,
        verdicts=verdicts,
        adjusted_p=dict(zip(verdicts, adjusted, strict=True)),
        floor={metric: noise_floor(told) for metric, told in pairs.items()}
        if kind == "aa"
        else dict(floor),
        delta=delta,
        faults=[fault for a, b in done for fault in _faults(a, b)],
        tails=tails(done),
    )


def tails(done: Sequence[tuple[Result, Result]]) -> dict[str, Tail]:
    """Only of percentiles that every run has samples for."""
    found = {}
    for name, (figure, percentile) in TAILS.items():
        pairs = [
            (one, other)
            for a, b in done
            if (one := getattr(getattr(a.client, figure), percentile, None))
            and (other := getattr(getattr(b.client, figure), percentile, None))
        ]
        if len(pairs) == len(done) > 1:
            low, high = stats.bootstrap(pairs)
            ratio = sum(b for _, b in pairs) / sum(a for a, _ in pairs)
            found[name] = Tail(
                ratio=ratio,
                low=low,
                high=high,
                blocks=len(pairs),
                report_only=len(pairs) < TAIL_RUNS,
            )
    return found


def _faults(a: Result, b: Result) -> list[str]:
    found = [
        f"{result.run_id} is {result.validity.status if result.validity else 'not judged'}"
        for result in (a, b)
        if result.validity is None or result.validity.status != "valid"
    ]
    return found + changed_text(a, b)


def value(result: Result, metric: Metric) -> float | None:
    """The run's one value of a metric; None of what was not measured or has no logarithm."""
    if metric == "out_tok_s":
        found: float | None = result.throughput.out_tok_s
    else:
        found = middle(getattr(result.client, metric))
    return found if found is not None and found > 0 and math.isfinite(found) else None


def write(folder: Path, blocks: Blocks, session: str) -> Path:
    path = folder / f"{blocks.kind}-{session}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(blocks), indent=1) + b"\n")
    return path


def read(path: Path) -> Blocks:
    """Raises BadSetting for what is no such file."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Blocks)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as problem:
        raise BadSetting(f"{path} is no result of blocks: {problem}") from problem
    if found.schema != SCHEMA:
        raise BadSetting(f"{path} has schema {found.schema!r}; this version reads {SCHEMA!r}")
    return found
