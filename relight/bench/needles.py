"""What is found in long texts, by length, kind and depth, with its speed beside it. Knows no
terminal."""

from collections.abc import Callable, Sequence

import msgspec

from relight.base.errors import BadSetting, Unavailable
from relight.bench.figures import middle
from relight.bench.needle import KINDS, Kind
from relight.bench.result import Result
from relight.bench.scenario import Class, Scenario
from relight.bench.schema import NeedleCell

SCHEMA = "relight.bench.needles/1"
Measure = Callable[[Scenario], Result]


class Length(msgspec.Struct, frozen=True, kw_only=True):
    """One length of prompts: its run, its verdict but for the needles, its speed and its scores."""

    asked: int
    run: str | None
    reasons: list[str]
    ttft: float | None = None
    cells: list[NeedleCell] = []

    def score(self, kind: str) -> float | None:
        own = [cell for cell in self.cells if cell.kind == kind]
        asked = sum(cell.asked for cell in own)
        return sum(cell.score * cell.asked for cell in own) / asked if asked else None


class Needles(msgspec.Struct, frozen=True, kw_only=True):
    """`score` is over all; a length that could not be measured counts as 0."""

    schema: str
    kinds: list[Kind]
    depths: list[float]
    lengths: list[Length]
    score: float
    least: float
    faults: list[str]
    complete: bool = True


def kinds_of(text: str) -> list[Kind]:
    found: list[Kind] = []
    for name in filter(None, text.split(",")):
        known = next((kind for kind in KINDS if kind == name.strip()), None)
        if known is None:
            raise BadSetting(f"kinds names {name!r}; wanted some of: {', '.join(KINDS)}")
        found.append(known)
    return found or list(KINDS)


def depths_of(count: int) -> list[float]:
    """Evenly from the beginning to the end."""
    return [0.5] if count == 1 else [round(i / (count - 1), 4) for i in range(count)]


def scenario_of(
    base: Scenario,
    length: int,
    kinds: Sequence[Kind],
    depths: Sequence[float],
    repeat: int,
    output: int,
) -> Scenario:
    """One user; answers end by themselves. The score is judged over all lengths, so none decides
    here."""
    one = Class(
        name=f"at-{length}",
        users=1,
        requests=len(depths) * len(kinds) * repeat,
        input_tokens=length,
        output_tokens=output,
        fixed=False,
        needle=list(kinds),
        depths=list(depths),
    )
    limits = msgspec.structs.replace(
        base.limits, tuned_context=True, needle=0.0, closure_low=0.0, drift=1e9
    )
    return msgspec.structs.replace(base, classes=[one], warm_up=1, limits=limits)


def search(
    lengths: Sequence[int],
    scenario: Callable[[int], Scenario],
    measure: Measure,
    *,
    kinds: Sequence[Kind],
    depths: Sequence[float],
    least: float,
) -> Needles:
    """Lengths from below; a server that cannot be measured any more ends it."""
    found: list[Length] = []
    complete = True
    for asked in sorted(set(lengths)):
        try:
            told = measure(scenario(asked))
        except Unavailable as problem:
            found.append(Length(asked=asked, run=None, reasons=[problem.message]))
            break
        assert told.validity is not None
        found.append(
            Length(
                asked=asked,
                run=told.run_id,
                reasons=told.validity.reasons,
                ttft=middle(told.client.ttft),
                cells=told.quality.cells,
            )
        )
        if not told.complete:
            complete = False
            break
    scores = [s for length in found for kind in kinds for s in [length.score(kind) or 0.0]]
    score = sum(scores) / len(scores) if scores else 0.0
    faults = [f"{length.asked:,}: {reason}" for length in found for reason in length.reasons]
    if score < least:
        faults.append(f"{score:.1%} of what was hidden was found; wanted {least:.1%}")
    return Needles(
        schema=SCHEMA,
        kinds=list(kinds),
        depths=list(depths),
        lengths=found,
        score=score,
        least=least,
        faults=faults,
        complete=complete,
    )
