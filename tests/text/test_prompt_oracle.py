"""Whole conversations against DeepSeek's encoder, from a request body to ids. Where ours differs
on purpose, a test names it."""

import json

import deepseek_recipe as recipe
import pytest

from relight.base.errors import BadRequest
from relight.text.conversation import Conversation, Message
from tests.text.bodies import Bodies, conversation_of, oracle_of


@pytest.fixture(scope="session")
def oracle(public_folder):
    return oracle_of(
        public_folder / "tokenizer.json", recipe.DeepseekV4Encoding(), "DeepSeek-V4-Pro"
    )


@pytest.mark.parametrize("seed", range(8))
def test_generated_conversations_have_the_oracles_text_and_ids(oracle, encoder, seed):
    bodies = Bodies(seed)
    for _ in range(100):
        body = bodies.body()
        text, ids = oracle(body)
        prompt = encoder.encode(conversation_of(body))
        assert prompt.text == text, body
        assert list(prompt.ids) == ids, body


def test_a_response_schema_is_written_as_the_oracle_does(oracle, encoder):
    schema = {"type": "object", "properties": {"a": {"type": "string", "x": "é"}}}
    named = {"name": "n", "schema": schema}
    body = {
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}],
        "response_format": {"type": "json_schema", "json_schema": named},
    }
    conversation = Conversation(
        messages=(Message("system", "S"), Message("user", "q")),
        response_format="json_schema",
        response_schema=schema,
    )
    assert encoder.encode(conversation).text == oracle(body)[0]


USER = {"role": "user", "content": "q"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "r"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": [USER, RESULT]},
        {"messages": [USER, CALLS]},
        {"messages": [USER, CALLS, USER, RESULT]},
        {"messages": [USER, CALLS, RESULT | {"tool_call_id": "b"}]},
        {"messages": [USER, CALLS | {"tool_calls": [CALL, CALL]}, RESULT, RESULT]},
        {"messages": [USER, CALLS, RESULT, RESULT]},
        {"messages": [USER, CALLS, {"role": "latest_reminder", "content": "T"}, RESULT]},
    ],
)
def test_what_the_oracle_refuses_is_refused(oracle, encoder, body):
    with pytest.raises(recipe.ConversionError):
        oracle(body)
    with pytest.raises(BadRequest):
        encoder.encode(conversation_of(body))


# Differences on purpose


def test_tools_can_be_required_of_a_model_that_thinks(oracle, encoder):
    body = {"messages": [USER], "tools": TOOLS, "tool_choice": "required"}
    with pytest.raises(recipe.ConversionError):
        oracle(body)
    assert encoder.encode(conversation_of(body)).start == "reasoning"


@pytest.mark.parametrize(
    ("body", "same_as"),
    [
        (
            {"messages": [USER, {"role": "assistant", "content": None}, USER]},
            {"messages": [USER, {"role": "assistant", "content": ""}, USER]},
        ),
        (
            {"messages": [{"role": "developer", "content": "S"}, USER]},
            {"messages": [{"role": "system", "content": "S"}, USER]},
        ),
        (
            {"messages": [USER, CALLS, {"role": "system", "content": "S"}, RESULT]},
            {"messages": [{"role": "system", "content": "S"}, USER, CALLS, RESULT]},
        ),
    ],
    ids=["assistant without content", "developer", "system between call and result"],
)
def test_accepted_though_the_oracle_refuses(oracle, encoder, body, same_as):
    with pytest.raises((recipe.ConversionError, ValueError)):
        oracle(body)
    assert encoder.encode(conversation_of(body)).text == oracle(same_as)[0]


def test_continuing_with_tools_is_accepted_though_the_oracle_refuses(oracle, encoder):
    last = {"role": "assistant", "content": "Snow", "reasoning_content": "R", "prefix": True}
    body = {"messages": [USER, last], "tools": TOOLS}
    with pytest.raises(recipe.ConversionError, match="prefix"):
        oracle(body)
    assert encoder.encode(conversation_of(body)).text.endswith("<think>R</think>Snow")


def test_calls_keep_their_order_though_the_oracle_sorts_them_by_id(oracle, encoder):
    def body(*ids):
        calls = [CALL | {"id": id, "function": {"name": id, "arguments": "{}"}} for id in ids]
        results = [RESULT | {"tool_call_id": id, "content": id} for id in ids]
        return {"messages": [USER, CALLS | {"tool_calls": calls}, *results]}

    assert oracle(body("b", "a")) == oracle(body("a", "b"))
    text = encoder.encode(conversation_of(body("b", "a"))).text
    assert text.index('invoke name="b"') < text.index('invoke name="a"')
    assert text.index("<tool_result>b<") < text.index("<tool_result>a<")


@pytest.mark.parametrize(
    ("arguments", "theirs", "ours"),
    [
        ('{"n": 12345678901234567890123}', "1.2345678901234568e+22", "12345678901234567890123"),
        ('{"n": 1e-7}', "1e-7", "1e-07"),
    ],
    ids=["long integers keep their digits", "small floats as Python writes them"],
)
def test_numbers_in_past_calls(oracle, encoder, arguments, theirs, ours):
    call = CALL | {"function": {"name": "f", "arguments": arguments}}
    body = {"messages": [USER, CALLS | {"tool_calls": [call]}, RESULT]}
    prompt = encoder.encode(conversation_of(body))
    assert prompt.text == oracle(body)[0].replace(f">{theirs}<", f">{ours}<")
    assert f">{ours}<" in prompt.text


def test_arguments_encoded_twice_are_decoded_twice(oracle, encoder):
    def body(arguments):
        call = CALL | {"function": {"name": "f", "arguments": arguments}}
        return {"messages": [USER, CALLS | {"tool_calls": [call]}, RESULT]}

    twice = body(json.dumps('{"city": "Oslo"}'))
    assert encoder.encode(conversation_of(twice)).text == oracle(body('{"city": "Oslo"}'))[0]
    assert encoder.encode(conversation_of(twice)).text != oracle(twice)[0]
