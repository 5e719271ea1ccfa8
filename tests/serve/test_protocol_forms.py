"""The form of an answer and forced calls, by the protocols beside chat completions: the engine is
told what the same chat completion tells it."""

from typing import Any

import pytest

from relight.base.types import Constraint
from tests.serve.fakes import EOS, HELLO, WEATHER, answering
from tests.serve.golden import CHAT, MESSAGES, RESPONSES, TOOLS

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALM: dict[str, Any] = {
    CHAT: {"reasoning_effort": "none"},
    MESSAGES: {"thinking": {"type": "disabled"}},
    RESPONSES: {"reasoning": {"effort": "none"}},
}
ASK: dict[str, Any] = {
    CHAT: {"messages": HELLO},
    MESSAGES: {"messages": HELLO},
    RESPONSES: {"input": "Hi"},
}
STRICT_FORMAT = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
FORMS: dict[str, dict[str, Any]] = {
    "schema": {
        CHAT: {"response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": SCHEMA, "strict": True}}},
        MESSAGES: {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        RESPONSES: {"text": {"format": STRICT_FORMAT}},
    },
    "required": {
        CHAT: {"tool_choice": "required", "tools": [WEATHER]},
        MESSAGES: {"tool_choice": {"type": "any"}, "tools": TOOLS[MESSAGES]},
        RESPONSES: {"tool_choice": "required", "tools": TOOLS[RESPONSES]},
    },
    "named": {
        CHAT: {"tool_choice": {"type": "function", "function": {"name": "get_weather"}},
               "tools": [WEATHER]},
        MESSAGES: {"tool_choice": {"type": "tool", "name": "get_weather"},
                   "tools": TOOLS[MESSAGES]},
        RESPONSES: {"tool_choice": {"type": "function", "name": "get_weather"},
                    "tools": TOOLS[RESPONSES]},
    },
    "one call": {
        CHAT: {"parallel_tool_calls": False, "tools": [WEATHER]},
        MESSAGES: {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
                   "tools": TOOLS[MESSAGES]},
        RESPONSES: {"parallel_tool_calls": False, "tools": TOOLS[RESPONSES]},
    },
    "none": {
        CHAT: {"tool_choice": "none", "tools": [WEATHER]},
        MESSAGES: {"tool_choice": {"type": "none"}, "tools": TOOLS[MESSAGES]},
        RESPONSES: {"tool_choice": "none", "tools": TOOLS[RESPONSES]},
    },
}  # fmt: skip


def told(path: str, **fields: Any) -> tuple[tuple[int, ...], Constraint | None]:
    rig = answering("x" + EOS)
    reply = rig.post(path, ASK[path] | fields)
    assert reply.status_code == 200, reply.text
    return rig.client.requests[0].prompt, rig.client.requests[0].constraint


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("calm", [True, False])
@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
def test_a_form_is_the_same_by_every_protocol(path: str, form: str, calm: bool) -> None:
    # Anthropic's tools of the table have no description, which the prompt has.
    def ask(path: str) -> Any:
        fields = FORMS[form][path] | (CALM[path] if calm else {})
        if path == MESSAGES and "tools" in fields:
            fields["tools"] = [TOOLS[MESSAGES][0] | {"description": "Weather now"}]
        return told(path, **fields)

    prompt, constraint = ask(path)
    assert (prompt, constraint) == ask(CHAT)
    assert (constraint is None) == (form == "none")


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        (MESSAGES, {"output_config": {"format": {"type": "poem"}}}, "output_config.format.type"),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": {
            "type": "nothing"}}}}, "output_config.format.schema"),
        (MESSAGES, {"output_format": {"type": "json_schema"}}, "output_config.format"),
        (RESPONSES, {"text": {"format": {"type": "poem"}}}, "text.format.type"),
        (RESPONSES, {"text": {"format": STRICT_FORMAT | {"schema": {"type": "nothing"}}}},
         "text.format.schema"),
    ],
)  # fmt: skip
def test_a_form_that_cannot_be_followed_is_named(path: str, fields: Any, name: str) -> None:
    reply = answering("x").post(path, ASK[path] | fields)
    assert reply.status_code == 400
    assert name in reply.json()["error"]["message"]
