"""Whether a grammar compiles is found out in bounded time, by a process that may fall."""

import asyncio
import json
import sys
import threading
from typing import Any

import httpx
import pytest

from relight.base.errors import Overloaded, Unavailable
from relight.engine.replay import ReplayClient
from relight.session.checker import GAVE_UP_S, MAX_WAITING, Checker, GaveUp, InChild
from tests.serve.fakes import FOLDER, rig, tokens

GOOD, WRONG = 'start: "a"', "start: %%%"

# Plays the compiler: it falls over one grammar, never comes to an end with another, and counts.
FAKE = """
import json, os, sys, time
sys.stdin.readline()
print('""', flush=True)
for number, line in enumerate(sys.stdin):
    if "fall" in line:
        os.abort()
    while "for ever" in line:
        time.sleep(1)
    print(json.dumps(f"{os.getpid()} {number}"), flush=True)
"""


def fake(limit_s: float = 60.0) -> InChild:
    return InChild(FOLDER, limit_s, (sys.executable, "-c", FAKE))


def test_a_child_tells_what_is_wrong_with_a_grammar() -> None:
    child = InChild(FOLDER, 60.0)
    assert child.reason_against(GOOD) == ""
    assert "cannot be compiled" in child.reason_against(WRONG)
    assert child.reason_against('start: "é\\n" \ud800') != ""
    child.close()


@pytest.mark.parametrize(("grammar", "limit_s"), [("fall", 60.0), ("for ever", 0.2)])
def test_a_grammar_that_takes_too_much_is_refused_and_others_go_on(
    grammar: str, limit_s: float
) -> None:
    child = fake(60.0)
    first, _ = child.reason_against("x").split()
    child._limit_s = limit_s
    with pytest.raises(GaveUp, match="longer than"):
        child.reason_against(grammar)
    child._limit_s = 60.0
    second, number = child.reason_against("x").split()
    assert second != first
    assert number == "0"
    child.close()


def test_a_child_that_does_not_start_is_told() -> None:
    child = InChild(FOLDER, 60.0, (sys.executable, "-c", "raise SystemExit"))
    with pytest.raises(Unavailable):
        child.reason_against(GOOD)


class Held:
    """A compiler that waits until it is let go."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked: list[str] = []

    def reason_against(self, grammar: str) -> str:
        self.gate.wait()
        self.asked.append(grammar)
        return f"no {grammar}"


def test_while_one_compiles_the_loop_runs_and_what_is_known_is_told() -> None:
    held = Held()
    held.gate.set()

    async def run() -> None:
        checker = Checker(held)
        assert await checker.reason_against("known") == "no known"
        held.gate.clear()
        waiting = [asyncio.create_task(checker.reason_against(f"{i}")) for i in range(MAX_WAITING)]
        await asyncio.sleep(0)
        assert await checker.reason_against("known") == "no known"
        with pytest.raises(Overloaded):
            await checker.reason_against("one more")
        assert not any(task.done() for task in waiting)
        held.gate.set()
        assert await asyncio.gather(*waiting) == [f"no {i}" for i in range(MAX_WAITING)]
        assert held.asked.count("known") == 1

    asyncio.run(run())


class Busy:
    """A compiler that is given up once."""

    def __init__(self) -> None:
        self.num_asked = 0

    def reason_against(self, grammar: str) -> str:
        self.num_asked += 1
        if self.num_asked == 1:
            raise GaveUp("it takes too long")
        return ""


def test_that_a_grammar_was_given_up_is_not_remembered_for_ever() -> None:
    busy, now_s = Busy(), [0.0]

    async def run() -> None:
        checker = Checker(busy, lambda: now_s[0])
        for _ in range(2):  # who asks again at once is told the same
            assert await checker.reason_against("x") == "it takes too long"
        for now_s[0] in (GAVE_UP_S, 100 * GAVE_UP_S):
            assert await checker.reason_against("x") == ""
        assert busy.num_asked == 2, "that it compiles is remembered"

    asyncio.run(run())


def many(count: int) -> dict[str, Any]:
    """A schema that takes the square of its size to compile."""
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}}


@pytest.mark.parametrize(
    "schema",
    [
        many(8000),
        {"enum": [f"v{i * 7919}" for i in range(100_000)]},
        {"type": "integer", "multipleOf": 10**9 + 7},
        json.loads('{"items":' * 60 + "{}" + "}" * 60) | {"not": {}},
    ],
    ids=["many", "long", "fuel", "deep"],
)
def test_a_schema_that_is_too_much_is_a_400_that_names_the_field(schema: dict[str, Any]) -> None:
    child = InChild(FOLDER, 1.0)

    def ask(schema: dict[str, Any]) -> httpx.Response:
        server = rig(ReplayClient(lambda _: tokens("x")))
        server.session._constrainer._checker = Checker(child)
        return server.chat(guided_json=schema)

    response = ask(schema)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "guided_json"
    child._limit_s = 60.0
    assert ask({"type": "integer"}).status_code == 200
    child.close()
