"""Runs one scenario against one script, with limits that a busy machine keeps. Knows no trap."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from relight.bench.http import target
from relight.bench.record import Record
from relight.bench.result import Result
from relight.bench.run import Run
from relight.bench.scenario import Class, Expect, Limits, Scenario
from relight.bench.selftest.script import Asked, Reply, Script
from relight.bench.selftest.server import ScriptedServer
from relight.bench.watch import Point

Expected = Literal["accepted", "rejected", "recovered"]
TOLERANCE_S = 0.05
"""How far a client's time may be from the server's own record of the same moment. Both run on one
loop, so this is what a preempted process loses between a write and the read of it."""
LIMITS = Limits(
    ttft_s=0.1,
    closure_low=0.5,
    lag_s=0.5,
    input_tokens=0.2,
    drift=1e9,
    silence_s=2.0,
    total_s=10.0,
    canary_s=2.0,
)


class Failed(Exception):
    """The measuring did not do what a case demands of it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A trap by its id, what the measuring must do with it, and how that is tried. `run` returns
    what it found, or raises Failed."""

    id: str
    title: str
    expected: Expected
    run: Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Outcome:
    result: Result
    records: list[Record]
    server: ScriptedServer
    series: list[Point]

    @property
    def rejected_by(self) -> set[str]:
        validity = self.result.validity
        assert validity is not None
        return {check.id for check in validity.checks if check.ok is False}

    @property
    def reasons(self) -> str:
        validity = self.result.validity
        assert validity is not None
        return "; ".join(validity.reasons)

    def must_be_rejected_by(self, *ids: str) -> str:
        missed = set(ids) - self.rejected_by
        if missed:
            raise Failed(f"not rejected by {sorted(missed)}; found: {self.reasons or 'valid'}")
        return self.reasons

    def must_be_accepted(self) -> None:
        if self.rejected_by:
            raise Failed(f"a sound result was rejected: {self.reasons}")


def scenario(*, limits: dict[str, float] | None = None, **changes: Any) -> Scenario:
    """Four users with eight requests of eight tokens; fields of the class by name, others of the
    scenario."""
    shape: dict[str, Any] = {
        "name": "one",
        "users": 4,
        "requests": 8,
        "input_tokens": 150,
        "output_tokens": 8,
    }
    fields = Class.__struct_fields__
    shape |= {name: changes.pop(name) for name in tuple(changes) if name in fields}
    if shape.get("rate"):
        shape["users"] = 0
    kept = msgspec.structs.replace(LIMITS, **(limits or {}))
    classes = changes.pop("classes", [Class(**shape)])
    expect = Expect(**changes.pop("expect", {}))
    return Scenario(
        name="selftest", classes=classes, warm_up=1, limits=kept, expect=expect, **changes
    )


async def measure(script: Script, wanted: Scenario | None = None, **run: Any) -> Outcome:
    wanted = wanted or scenario()
    script.measured_tokens = wanted.classes[0].output_tokens
    script.warm_ups = wanted.warm_up if wanted.cache == "cold" else 0
    async with ScriptedServer(script) as server:
        measuring = Run(target(server.url), wanted, **run)
        result, records = await measuring.measure()
    return Outcome(result, records, server, measuring.points)


def replying(**fields: Any) -> Script:
    """A script that answers every measured request so, and all others plainly."""
    return Script(reply=lambda asked: Reply(**fields) if asked.measured else Reply())


def one_replying(number: int, **fields: Any) -> Script:
    """Only the measured request of that number is answered so."""

    def reply(asked: Asked) -> Reply:
        return Reply(**fields) if asked.measured and asked.number == number else Reply()

    return Script(reply=reply)


def near(what: str, got: float | None, wanted: float, tolerance: float = TOLERANCE_S) -> str:
    if got is None or abs(got - wanted) > tolerance:
        shown = "nothing" if got is None else f"{got:.4g}"
        raise Failed(f"{what} is {shown}; scripted {wanted:.4g} within {tolerance:.4g}")
    return f"{what} {got:.4g} (scripted {wanted:.4g})"


def demand(truth: bool, otherwise: str) -> None:
    if not truth:
        raise Failed(otherwise)


async def run_case(case: Case) -> tuple[bool, str]:
    """(passed, what was found). A case has a minute; the slowest needs six on a free machine."""
    try:
        async with asyncio.timeout(60):
            return True, await case.run()
    except Failed as problem:
        return False, str(problem)
    except TimeoutError:
        return False, "did not end within a minute"
