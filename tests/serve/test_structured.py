"""The form of an answer on the wire: what a request asks for is what the engine is told, and what
cannot be followed is a 400 that names the field."""

import json
from typing import Any

import pytest

from relight.base.types import Constraint
from relight.engine.replay import ReplayClient
from relight.text.grammar import Vocabulary
from tests.serve.fakes import CALL, EOS, TOKENIZER, WEATHER, rig, tokens

MARK = TOKENIZER.special
WORDS = Vocabulary(TOKENIZER)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
STRICT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
FORCED = {"type": "function", "function": {"name": "get_weather"}}
OTHER = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
CALM = {"thinking": {"type": "disabled"}}


def told(text: str = "x", **fields: Any) -> tuple[Constraint | None, dict[str, Any]]:
    """What the engine was told, and the answer."""
    client = ReplayClient(lambda _: tokens(text))
    response = rig(client).chat(**fields)
    assert response.status_code == 200, response.text
    return client.requests[0].constraint, response.json()


def refused(**fields: Any) -> dict[str, Any]:
    response = rig(ReplayClient(lambda _: tokens("x"))).chat(**fields)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def takes(constraint: Constraint | None, text: str) -> bool:
    """Whether a text may be drawn and end there."""
    assert constraint is not None
    matcher = WORDS.compile(constraint.grammar).start()
    for token in tokens(text):
        if not matcher.mask()[token // 8] >> token % 8 & 1:
            return False
        matcher.consume(token)
    matcher.mask()
    return matcher.is_whole


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"response_format": {"type": "json_object"}}, '{"b": [1]}', "[1]"),
        ({"response_format": STRICT}, '{"a": 1}', '{"a": "x"}'),
        ({"response_format": {"type": "regex", "regex": "a+"}}, "aa", "b"),
        ({"response_format": {"type": "grammar", "grammar": 'start: "a" "b"'}}, "ab", "a"),
        ({"structured_outputs": {"json": SCHEMA}}, '{"a": 1}', "{}"),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, '{"a": 1}', "{}"),
        ({"structured_outputs": {"regex": "a+"}}, "aa", "b"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "no", "noo"),
        ({"structured_outputs": {"grammar": 'root ::= "a" | "b"'}}, "b", "c"),
        ({"structured_outputs": {"json_object": True}}, '{"a" : 1}', "1"),
        (
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
            '{"a":1}',
            '{"a": 1}',
        ),
        ({"guided_json": SCHEMA}, '{"a": 1}', "{}"),
        ({"guided_regex": "a+"}, "aa", "b"),
        ({"guided_choice": ["yes", "no"]}, "yes", "y"),
        ({"guided_grammar": 'start: "a" "b"'}, "ab", "a"),
        ({"json_schema": json.dumps(SCHEMA)}, '{"a": 1}', "{}"),
        ({"regex": "a+"}, "aa", "b"),
        ({"ebnf": 'root ::= "a" | "b"'}, "b", "c"),
    ],
)
@pytest.mark.parametrize("thinking", [True, False])
def test_a_form_holds_for_content(
    fields: dict[str, Any], good: str, bad: str, thinking: bool
) -> None:
    constraint, _ = told(**fields, **({} if thinking else CALM))
    assert takes(constraint, good)
    assert not takes(constraint, bad)
    assert constraint is not None
    assert constraint.after == (MARK.think_close if thinking else None)
    assert set(constraint.banned) == ({MARK.eos, MARK.dsml} if thinking else set())


def test_a_raw_completion_has_its_form_from_the_first_token() -> None:
    client = ReplayClient(lambda _: tokens("aa"))
    response = rig(client).complete("x", guided_regex="a+")
    assert response.status_code == 200
    constraint = client.requests[0].constraint
    assert constraint is not None
    assert constraint.after is None
    assert takes(constraint, "aa")


def test_a_schema_is_told_to_the_model_only_in_the_field_that_says_so() -> None:
    lengths = {}
    for name, fields in {
        "none": {},
        "told": {"response_format": STRICT},
        "not told": {"guided_json": SCHEMA},
    }.items():
        client = ReplayClient(lambda _: tokens("x"))
        assert rig(client).chat(**fields).status_code == 200
        lengths[name] = len(client.requests[0].prompt)
    assert lengths["none"] == lengths["not told"] < lengths["told"]


@pytest.mark.parametrize("choice", ["required", FORCED])
@pytest.mark.parametrize("thinking", [True, False])
def test_a_forced_call_comes_after_reasoning(choice: Any, thinking: bool) -> None:
    """Without reasoning the prompt has opened the block."""
    answer = (
        f"hm</think>{CALL}{EOS}" if thinking else CALL.removeprefix("\n\n<｜DSML｜tool_calls>\n")
    )
    constraint, body = told(
        answer,
        tools=[OTHER, WEATHER],
        tool_choice=choice,
        **({} if thinking else CALM),
    )
    assert constraint is not None
    assert constraint.after == (MARK.think_close if thinking else None)
    block = CALL if thinking else CALL.removeprefix("\n\n<｜DSML｜tool_calls>\n")
    assert takes(constraint, block)
    assert takes(constraint, block.replace("get_weather", "other")) == (choice == "required")
    (answered,) = body["choices"]
    assert answered["finish_reason"] == "tool_calls"
    (call,) = answered["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}


def test_calls_of_a_free_choice_hold_from_the_marker_on() -> None:
    constraint, _ = told(tools=[WEATHER])
    assert constraint is not None
    assert (constraint.after, constraint.opens_tag) == (MARK.dsml, True)
    block = CALL.removeprefix("\n\n<｜DSML｜")
    assert takes(constraint, block)
    assert not takes(constraint, block.replace("get_weather", "other"))
    # Only what is strict, or forced, follows its schema.
    assert takes(constraint, block.replace("city", "town"))


def test_without_parallel_calls_there_is_one() -> None:
    block = CALL.removeprefix("\n\n<｜DSML｜")
    call = block[block.index("<｜DSML｜invoke") : block.index("</｜DSML｜tool_calls")]
    for parallel in (True, False):
        constraint, _ = told(tools=[WEATHER], parallel_tool_calls=parallel)
        assert takes(constraint, block.replace(call, call * 2)) == parallel


def test_a_strict_tool_follows_its_schema_wherever_it_is_called() -> None:
    function = {**WEATHER["function"], "strict": True}  # type: ignore[dict-item]
    constraint, _ = told(tools=[{"type": "function", "function": function}])
    block = CALL.removeprefix("\n\n<｜DSML｜")
    assert takes(constraint, block)
    assert not takes(constraint, block.replace("city", "town"))


def test_no_tools_and_no_form_leave_the_answer_free() -> None:
    assert told()[0] is None
    assert told(tools=[WEATHER], tool_choice="none")[0] is None
    assert told(response_format={"type": "text"}, guided_json=None)[0] is None


@pytest.mark.parametrize(
    "unfollowed", [{"not": {"required": ["a"]}}, {"properties": {"a": {"pattern": "(?=a)"}}}]
)
def test_a_forced_tool_whose_schema_cannot_be_followed_is_called_in_a_free_form(
    unfollowed: dict[str, Any],
) -> None:
    """But not if it is strict."""
    function = {"name": "f", "parameters": {"type": "object", **unfollowed}}
    tools = [{"type": "function", "function": function}]
    strict = [{"type": "function", "function": {**function, "strict": True}}]
    constraint, _ = told(tools=tools, tool_choice="required")
    assert takes(constraint, CALL.replace("get_weather", "f"))
    error = refused(tools=[WEATHER, *strict], tool_choice="required")
    assert error["param"] == "tools[1]"
    assert "schema of f" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "regex"}}, "response_format.regex"),
        ({"response_format": STRICT, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"guided_json": {"type": "strin"}}, "guided_json"),
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json"),
        ({"guided_regex": "(?=a)b"}, "guided_regex"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_grammar": "start: %%%"}, "guided_grammar"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar"),
        (
            {"structured_outputs": {"whitespace_pattern": "x"}},
            "structured_outputs.whitespace_pattern",
        ),
        ({"tools": [WEATHER], "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {
                "messages": [{"role": "assistant", "content": "{", "prefix": True}],
                "response_format": {"type": "json_object"},
            },
            "response_format",
        ),
    ],
)
def test_what_cannot_be_followed_is_named(fields: dict[str, Any], param: str) -> None:
    assert refused(**{**CALM, **fields})["param"] == param


def test_a_schema_that_is_not_strict_is_followed_as_far_as_it_can_be() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    loose = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    constraint, _ = told(response_format=loose)
    assert takes(constraint, "[1, 1]")
    assert not takes(constraint, '["a"]')
    strict = {"type": "json_schema", "json_schema": {**loose["json_schema"], "strict": True}}  # type: ignore
    error = refused(response_format=strict)
    assert error["param"] == "response_format.json_schema.schema"
    assert "uniqueItems" in error["message"]
