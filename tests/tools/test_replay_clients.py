"""Conversations in the forms of clients find what was computed, or the log says why they do not."""

import json
from itertools import pairwise
from typing import Any

import pytest

from relight.cache.layout import PAGE_TOKENS
from relight.text.dialect import Encoding
from tools.replay import clients
from tools.replay.play import Turn, play
from tools.replay.script import SAID


class OtherNames(clients.OpenCode):
    """The other name of reasoning, keys in another order, JSON in JSON."""

    name = "other names"

    def hear(self, reply: str) -> None:
        reasoning, content, calls = clients.chat_message(reply)

        def write(value: dict[str, Any]) -> str:
            return json.dumps(json.dumps(dict(reversed(value.items()))))

        message: dict[str, Any] = {"content": content or None, "reasoning": reasoning}
        if calls:
            message = {"tool_calls": clients.chat_calls(calls, write)} | message
        self.history += [message | {"role": "assistant"}, *clients.chat_results(calls)]


def before_answer(turn: Turn) -> int:
    """The last boundary of a prompt without the marker that opens its answer."""
    return (turn.prompt - 1) // PAGE_TOKENS * PAGE_TOKENS


@pytest.mark.parametrize("encoding", ["v4", "v4.1"])
@pytest.mark.parametrize(
    "client",
    [
        clients.OpenCode,
        clients.Codex,
        clients.ClaudeCode,
        clients.LangChainPlain,
        OtherNames,
    ],
)
def test_a_faithful_client_reuses_all_to_the_last_boundary(
    client: type[clients.Client], encoding: Encoding
) -> None:
    turns = play(client(), encoding)
    assert len(turns) == len(SAID)
    assert all(turn.reusable for turn in turns[1:])
    assert [turn.cached for turn in turns] == [turn.reusable for turn in turns]
    assert not any(turn.broken for turn in turns)
    forgetful = play(client(), encoding, remembers=False)
    assert sum(turn.cached for turn in forgetful) < sum(turn.cached for turn in turns)


def test_without_tools_the_template_drops_reasoning_and_nothing_else_is_lost() -> None:
    turns = play(clients.Cline())
    assert [turn.cached for turn in turns[1:]] == [before_answer(turn) for turn in turns[:-1]]
    assert not any(turn.broken for turn in turns)


def test_a_client_that_drops_reasoning_loses_the_answers_and_is_named() -> None:
    turns = play(clients.LangChain())
    for before, turn in pairwise(turns):
        assert before_answer(before) <= turn.cached <= before.prompt
    places = [2, 4, 7, 9, 11]
    assert [turn.broken for turn in turns[1:]] == [
        f"messages[{place}]: its reasoning did not come back" for place in places
    ]


def test_a_client_that_rewrites_its_history_loses_it_once_and_is_named() -> None:
    turns = play(clients.OpenWebUI())
    whole = [turn.cached == turn.reusable for turn in turns]
    assert whole == [True, True, True, True, False, True]
    assert turns[4].cached >= before_answer(turns[0])
    assert turns[4].broken.startswith("messages[2]: its reasoning did not come back")
    assert "its calls did not come back" in turns[4].broken
    assert not any(turn.broken for i, turn in enumerate(turns) if i != 4)
