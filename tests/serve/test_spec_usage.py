"""What became of guesses at the tokens of an answer is told beside its usage, if asked for."""

from typing import Any

import msgspec
import pytest

from relight.base.types import Guessed
from tests.serve.fakes import Rig, events, rig, script

ZERO = {
    "num_spec_steps": 0,
    "num_draft_tokens": 0,
    "num_accepted_tokens": 0,
    "acceptance_histogram": [],
}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def guessing(text: str, **guessed: Guessed) -> Rig:
    """Of the choice `c<number>` so much was guessed."""
    rig_ = rig(script(text))
    generate = rig_.client.generate

    async def told(request: Any) -> Any:
        found = guessed.get(f"c{request.sampling.choice}")
        async for delta in generate(request):
            yield msgspec.structs.replace(delta, guessed=found)

    rig_.client.generate = told  # type: ignore[method-assign]
    return rig_


def test_an_answer_tells_of_its_guesses_if_it_is_asked_to() -> None:
    rig_ = guessing("Hello", c0=Guessed(12, (1, 0, 2)))
    wanted = {
        "num_spec_steps": 3,
        "num_draft_tokens": 12,
        "num_accepted_tokens": 4,
        "acceptance_histogram": [1, 0, 2],
    }
    whole = rig_.chat(include_speculation=True).json()["usage"]
    assert whole["speculation"] == wanted
    assert rig_.complete("a", include_speculation=True).json()["usage"]["speculation"] == wanted
    streamed = events(rig_.chat(include_speculation=True, **USAGE))[-2]["usage"]
    assert streamed["speculation"] == wanted
    assert "speculation" not in rig_.chat().json()["usage"]
    assert "speculation" not in events(rig_.chat(**USAGE))[-2]["usage"]


def test_guesses_of_all_choices_count_together() -> None:
    rig_ = guessing("Hello", c0=Guessed(5, (0, 1)), c1=Guessed(10, (1, 0, 0, 1)))
    usage = rig_.chat(include_speculation=True, n=3).json()["usage"]
    assert usage["speculation"] == {
        "num_spec_steps": 3,
        "num_draft_tokens": 15,
        "num_accepted_tokens": 4,
        "acceptance_histogram": [1, 1, 0, 1],
    }


def test_an_engine_that_does_not_guess_says_so() -> None:
    assert guessing("Hello").chat(include_speculation=True).json()["usage"]["speculation"] == ZERO


@pytest.mark.parametrize("route", ["chat", "complete"])
def test_a_stream_without_usage_says_that_it_cannot_tell(route: str) -> None:
    rig_ = guessing("Hello")
    fields = {"include_speculation": True, "stream": True}
    response = rig_.chat(**fields) if route == "chat" else rig_.complete("a", **fields)
    assert response.headers["x-relight-ignored"] == "include_speculation"
