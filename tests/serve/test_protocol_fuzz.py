"""Whatever stands in a body, there is an answer or a word of what is wrong, in the right form."""

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serve.fakes import EOS, answering
from tests.serve.golden import TOOLS
from tests.serve.test_messages import ANSWERED
from tests.serve.test_responses import CHAT, GO_ON, HM, PARIS, PATCH, RAIN, ROME, SPACE, SUN, USER

BODIES: dict[str, Any] = {
    "/v1/chat/completions": {
        "messages": CHAT,
        "tools": TOOLS["/v1/chat/completions"],
        "tool_choice": "auto",
        "reasoning_effort": "low",
        "thinking": {"type": "enabled"},
    },
    "/v1/messages": {
        "messages": ANSWERED,
        "system": [{"type": "text", "text": "Be terse."}],
        "tools": TOOLS["/v1/messages"],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 10},
        "stop_sequences": ["x"],
        "max_tokens": 5,
    },
    "/v1/messages/count_tokens": {"messages": ANSWERED, "tools": TOOLS["/v1/messages"]},
    "/v1/responses": {
        "input": [USER, HM, PARIS, ROME, GO_ON, SUN, RAIN],
        "instructions": "Be terse.",
        "tools": [*TOOLS["/v1/responses"], PATCH, SPACE],
        "tool_choice": "auto",
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 5,
    },
}
ODD = [None, True, 0, -1, 10**30, 1e308, 0.5, "", "x", "\0", "<｜User｜>", [], {}, [[]], ["x"]]
ODD += [{"type": "text"}, {"type": "image", "text": "x"}, [{"type": "text", "text": None}]]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        found += places(value[key], (*path, key))
    return found


PLACES = {path: places(body) for path, body in BODIES.items()}


def changed(body: Any, place: tuple[Any, ...], how: str, odd: Any) -> Any:
    body = copy.deepcopy(body)
    parent = body
    for key in place[:-1]:
        parent = parent[key]
    if how == "drop":
        del parent[place[-1]]
    elif how == "double" and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[place[-1]]))
    else:
        parent[place[-1]] = odd
    return body


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_change_of_a_body_is_an_error_of_the_server(path: str, data: st.DataObject) -> None:
    body = BODIES[path]
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(PLACES[path]))
        how = data.draw(st.sampled_from(["drop", "double", "odd", "odd"]))
        odd = data.draw(st.sampled_from(ODD) | st.text(max_size=5))
        try:
            body = changed(body, place, how, odd)
        except (KeyError, IndexError, TypeError):  # gone with the first change
            continue
    reply = answering("x" + EOS).post(path, json.dumps(body))
    assert reply.status_code in (200, 400, 404), reply.text
    if reply.status_code != 200:
        error = reply.json()["error"]
        assert error["message"]
        assert ("param" in error) == ("messages" not in path)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        '{"messages": [], "input": []}',
        '{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"input": [{"content": ' * 5000 + "1" + "}]}" * 5000,
        '{"messages": [{"role": "user", "content": "\\ud800"}]}',
        '{"input": "\\udfff"}',
    ],
)
def test_bodies_that_are_none_are_refused(path: str, text: str) -> None:
    reply = answering("x" + EOS).post(path, text)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"]


DEEP: Any = {}
for _ in range(200):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/v1/messages", ("messages", 1, "content", 3, "input")),
        ("/v1/messages", ("tools", 0, "input_schema", "properties")),
        ("/v1/responses", ("input", 2, "arguments")),
        ("/v1/responses", ("tools", 0, "parameters", "properties")),
    ],
)
def test_what_nests_too_deeply_is_refused(path: str, place: tuple[Any, ...]) -> None:
    reply = answering("x" + EOS).post(path, json.dumps(changed(BODIES[path], place, "odd", DEEP)))
    assert reply.status_code == 400
    assert "nests deeper" in reply.json()["error"]["message"]
