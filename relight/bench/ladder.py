"""Climbs prompt lengths, and finds the one that fails between two. Knows no terminal."""

from collections.abc import Callable, Sequence

import msgspec

from relight.base.errors import BadSetting, Unavailable
from relight.bench.definitions import implausible
from relight.bench.figures import middle
from relight.bench.needle import Kind as NeedleKind
from relight.bench.result import Result
from relight.bench.run import WarmUpFailed
from relight.bench.scenario import Class, Scenario

SCHEMA = "relight.bench.ladder/1"
BISECTIONS = 3


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One length: what was asked, what it became, and how it went."""

    asked: int
    ok: bool
    reasons: list[str]
    actual: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    needles: tuple[int, int] | None = None
    gone: bool = False  # the server answers no more: nothing after this tells anything
    stopped: bool = False

    @property
    def prefill_tok_s(self) -> float | None:
        return self.actual / self.ttft if self.actual and self.ttft else None


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """Rungs by length. `cliff` is (longest that went, shortest that did not)."""

    rungs: list[Rung]
    cliff: tuple[int, int] | None
    implausible: list[int]
    complete: bool = True
    schema: str = SCHEMA


def rung_scenario(
    base: Scenario, length: int, repeat: int, output: int, needle: NeedleKind | None
) -> Scenario:
    """One user, cold, and prompts that are not repeated."""
    one = Class(
        name=f"at-{length}",
        users=1,
        requests=repeat,
        input_tokens=length,
        output_tokens=output,
        needle=needle or [],
    )
    limits = msgspec.structs.replace(base.limits, tuned_context=True)
    return msgspec.structs.replace(base, classes=[one], warm_up=1, limits=limits)


def climb(lengths: Sequence[int], measure: Callable[[int], Result], *, bisect: bool) -> Ladder:
    """Lengths from below; stops at the first that fails, then halves the gap three times."""
    rungs: dict[int, Rung] = {}
    good, bad = 0, 0
    for length in sorted(set(lengths)):
        rungs[length] = _rung(length, measure)
        if rungs[length].stopped:
            break
        if not rungs[length].ok:
            bad = length
            break
        good = length
    for _ in range(BISECTIONS if bisect and good and bad else 0):
        middle_length = (good + bad) // 2
        if middle_length in (good, bad) or any(r.gone or r.stopped for r in rungs.values()):
            break
        rungs[middle_length] = _rung(middle_length, measure)
        if rungs[middle_length].ok:
            good = middle_length
        else:
            bad = middle_length
    ordered = [rungs[length] for length in sorted(rungs)]
    points = [(r.asked, r.ttft) for r in ordered if r.ok and r.ttft]
    return Ladder(
        rungs=ordered,
        cliff=(good, bad) if bad else None,
        implausible=implausible(points),
        complete=not any(rung.stopped for rung in ordered),
    )


def _rung(length: int, measure: Callable[[int], Result]) -> Rung:
    """A length fails when its result is not valid, or when the server can no longer be measured."""
    try:
        told = measure(length)
    except Unavailable as problem:
        gone = not isinstance(problem, WarmUpFailed)
        return Rung(asked=length, ok=False, reasons=[problem.message], gone=gone)
    validity, quality = told.validity, told.quality
    assert validity is not None
    return Rung(
        asked=length,
        ok=validity.status == "valid",
        stopped=not told.complete,
        reasons=validity.reasons or ([] if told.complete else ["the run was stopped"]),
        actual=told.workload.classes[0].input_mean,
        ttft=middle(told.client.ttft),
        tpot=middle(told.client.tpot),
        needles=(quality.needles_found, quality.needles) if quality.needles else None,
    )


def lengths_between(low: int, high: int) -> list[int]:
    """Doublings of `low` up to `high`, which is the last one."""
    found = []
    while low < high:
        found.append(low)
        low *= 2
    return [*found, high]


def size(text: str) -> int:
    """`8K` is 8,192. Raises BadSetting."""
    digits, unit = (text[:-1], 1024) if text[-1:] in ("K", "k") else (text, 1)
    if not digits.isdecimal() or int(digits) == 0:
        raise BadSetting(f"length is {text!r}; wanted a number of tokens such as 8192 or 8K")
    return int(digits) * unit
