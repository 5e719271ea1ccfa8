"""Prompts of both protocols against DeepSeek's own reading of their bodies."""

import json
from typing import Any

import deepseek_recipe as recipe
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relight.serve import ask
from relight.serve.decode import decode
from relight.serve.messages.ask import chat_call as read_messages
from relight.serve.messages.schema import MessagesCall
from relight.serve.responses.ask import chat_call as read_responses
from relight.serve.responses.schema import ResponsesCall
from relight.text.prompt import PromptEncoder
from tests.serve.fakes import TOKENIZER

ENCODERS = {"DeepSeek-V4-Pro": PromptEncoder(TOKENIZER, "v4")}
MODEL = "DeepSeek-V4-Pro"

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
NAMES = st.sampled_from(["get_weather", "read", "Edit-2"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda child: st.lists(child, max_size=2) | st.dictionaries(TEXTS, child, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["city", "days", "ö"]), VALUES, max_size=3)
ROUND = st.fixed_dictionaries(
    {
        "thought": st.none() | TEXTS,
        "text": st.none() | TEXTS,
        "calls": st.lists(st.tuples(NAMES, ARGUMENTS), max_size=2),
        "results": st.lists(TEXTS, min_size=2, max_size=2),
        "after": st.none() | TEXTS,
    }
)
TALK = st.fixed_dictionaries(
    {
        "system": st.none() | TEXTS,
        "task": TEXTS,
        "rounds": st.lists(ROUND, max_size=3),
        "tools": st.booleans(),
        "effort": st.sampled_from([None, "low", "high", "max"]),
        "thinks": st.booleans(),
    }
)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}


def is_plain(talk: Any) -> bool:
    """Every round says something, and goes on by a result or a user."""
    return all(
        (r["text"] or r["calls"])
        and (r["calls"] or r["after"])
        and (not r["calls"] or talk["tools"])
        for r in talk["rounds"]
    )


def messages_body(talk: Any) -> Any:
    turns: list[Any] = [{"role": "user", "content": talk["task"]}]
    for number, r in enumerate(talk["rounds"]):
        blocks: list[Any] = []
        if r["thought"]:
            blocks.append({"type": "thinking", "thinking": r["thought"], "signature": "x"})
        if r["text"]:
            blocks.append({"type": "text", "text": r["text"]})
        answers: list[Any] = []
        for i, (name, arguments) in enumerate(r["calls"]):
            id = f"call_{number}_{i}"
            blocks.append({"type": "tool_use", "id": id, "name": name, "input": arguments})
            answers.append({"type": "tool_result", "tool_use_id": id, "content": r["results"][i]})
        if r["after"]:
            answers.append({"type": "text", "text": r["after"]})
        turns += [{"role": "assistant", "content": blocks}, {"role": "user", "content": answers}]
    body: Any = {"model": MODEL, "max_tokens": 64, "messages": turns}
    if talk["system"]:
        body["system"] = [{"type": "text", "text": talk["system"]}]
    if talk["tools"]:
        body["tools"] = [{"name": "get_weather", "input_schema": PARAMETERS}]
    body["thinking"] = {"type": "adaptive" if talk["thinks"] else "disabled"}
    if talk["effort"]:
        body["output_config"] = {"effort": talk["effort"]}
    return body


def responses_body(talk: Any) -> Any:
    items: list[Any] = [{"role": "user", "content": talk["task"]}]
    for number, r in enumerate(talk["rounds"]):
        if r["thought"]:
            content = [{"type": "reasoning_text", "text": r["thought"]}]
            items.append({"type": "reasoning", "summary": [], "content": content})
        if r["text"]:
            content = [{"type": "output_text", "text": r["text"]}]
            items.append({"type": "message", "role": "assistant", "content": content})
        outputs = []
        for i, (name, arguments) in enumerate(r["calls"]):
            call = {"call_id": f"call_{number}_{i}", "name": name}
            items.append(call | {"type": "function_call", "arguments": json.dumps(arguments)})
            output = {"type": "function_call_output", "call_id": call["call_id"]}
            outputs.append(output | {"output": r["results"][i]})
        items += outputs
        if r["after"]:
            items.append({"role": "user", "content": r["after"]})
    body: Any = {"model": MODEL, "input": items}
    if talk["system"]:
        body["instructions"] = talk["system"]
    if talk["tools"]:
        tool = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
        body["tools"] = [tool]
    effort = talk["effort"] if talk["thinks"] else "none"
    if effort:
        body["reasoning"] = {"effort": effort}
    return body


def theirs(request: Any) -> str:
    conversation = request.convert(recipe.ConversionOptions()).conversation
    return str(recipe.DeepseekV4Encoding().render_conversation(conversation).prompt)


def ours(kind: type[Any], read: Any, body: Any) -> str:
    found = read(decode(json.dumps(body).encode(), kind, {}).call)
    call = found[0] if isinstance(found, tuple) else found.call
    return ENCODERS[MODEL].encode(ask.conversation(call.messages, call)).text


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(TALK.filter(is_plain))
def test_messages_have_the_prompt_that_deepseek_makes_of_them(talk: Any) -> None:
    body = messages_body(talk)
    assert ours(MessagesCall, read_messages, body) == theirs(recipe.MessagesRequest(body))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(TALK.filter(is_plain))
def test_items_have_the_prompt_that_deepseek_makes_of_them(talk: Any) -> None:
    body = responses_body(talk)
    assert ours(ResponsesCall, read_responses, body) == theirs(recipe.ResponsesRequest(body))
