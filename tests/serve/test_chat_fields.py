"""Fields of a chat call that decide its prompt, reasoning and cache; what is ignored is told."""

import json
from typing import Any

import pytest

from tests.serve.fakes import EOS, HELLO, TOKENIZER, WEATHER, Rig, answering

ON = {"thinking": {"type": "enabled"}}
OFF = {"thinking": {"type": "disabled"}}
CLOSE = TOKENIZER.special.think_close


def asked(**fields: Any) -> Rig:
    rig = answering("x</think>y" + EOS)
    response = rig.chat(**fields)
    assert response.status_code == 200, response.text
    return rig


def prompt(**fields: Any) -> str:
    return TOKENIZER.decode(asked(**fields).client.requests[0].prompt)


# The budget of reasoning


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking_token_budget": 7},
        {"thinking": {"type": "enabled", "budget_tokens": 7}},
        {"thinking": {"type": "enabled", "budget_tokens": 9}, "thinking_token_budget": 7},
    ],
)
def test_a_budget_of_reasoning_reaches_the_engine(fields: dict[str, Any]) -> None:
    sampling = asked(**fields).client.requests[0].sampling
    assert (sampling.think_budget, sampling.think_close) == (7, CLOSE)


@pytest.mark.parametrize("fields", [OFF, {"thinking_token_budget": None}, {}])
def test_without_reasoning_there_is_no_budget(fields: dict[str, Any]) -> None:
    budget = {} if "thinking" not in fields else {"thinking_token_budget": 7}
    assert asked(**budget | fields).client.requests[0].sampling.think_budget is None


@pytest.mark.parametrize("value", [-1, 2**31, 1.5, "7", True])
def test_a_budget_that_is_none_is_refused(value: Any) -> None:
    response = answering("x").chat(thinking_token_budget=value)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "thinking_token_budget"


def test_a_reasoning_that_the_budget_ended_reads_like_any_other() -> None:
    response = answering("aaaa</think>b" + EOS).chat(thinking_token_budget=4)
    message = response.json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("aaaa", "b")
    assert response.json()["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4


# The prompt


PAST = [
    *HELLO,
    {"role": "assistant", "content": "a", "reasoning_content": "because"},
    {"role": "user", "content": "and"},
]


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, False),
        ({"chat_template_kwargs": {"drop_thinking": True}}, False),
        ({"chat_template_kwargs": {"drop_thinking": False}}, True),
        ({"chat_template_kwargs": {"drop_thinking": False, "thinking": False}}, False),
        ({"tools": [WEATHER]}, True),
        ({"tools": [WEATHER], "tool_choice": "none"}, False),
        ({"tools": [WEATHER]} | OFF, False),
    ],
)
def test_which_earlier_reasoning_is_shown(fields: dict[str, Any], shown: bool) -> None:
    assert ("because</think>a" in prompt(messages=PAST, **fields)) is shown


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "none"} | ON, True),
        ({"reasoning": {"effort": "none"}}, False),
        ({"output_config": {"effort": "none"}}, False),
        ({"enable_thinking": False}, False),
        ({"enable_thinking": False} | ON, True),
        ({"chat_template_kwargs": {"thinking": False}} | ON, False),
        ({"chat_template_kwargs": {"thinking": False, "enable_thinking": True}} | OFF, True),
        ({"thinking": {"type": "adaptive"}, "enable_thinking": False}, True),
    ],
)
def test_the_first_switch_that_is_there_decides(fields: dict[str, Any], thinks: bool) -> None:
    assert prompt(**fields).endswith("<think>" if thinks else "</think>")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_both_names_of_reasoning_are_read(name: str) -> None:
    message = {"role": "assistant", "content": "a", name: "because"}
    messages = [*HELLO, message, *HELLO]
    assert "<think>because</think>a" in prompt(messages=messages, tools=[WEATHER])


def test_of_two_reasonings_the_one_of_deepseeks_name_is_read() -> None:
    both = {"reasoning_content": "mine", "reasoning": "copy"}
    messages = [*HELLO, {"role": "assistant", "content": "a"} | both, *HELLO]
    assert "<think>mine</think>a" in prompt(messages=messages, tools=[WEATHER])


@pytest.mark.parametrize(
    ("last", "fields"),
    [
        ({"prefix": True}, {}),
        ({}, {"continue_final_message": True, "add_generation_prompt": False}),
        ({}, {"continue_final_message": True}),
    ],
)
def test_an_answer_is_continued(last: dict[str, Any], fields: dict[str, Any]) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Snow"} | last]
    assert prompt(messages=messages, **fields | OFF).endswith("</think>Snow")
    messages[-1] |= {"content": None, "reasoning_content": "I am"}
    assert prompt(messages=messages, **fields | ON).endswith("<think>I am")


def test_a_continued_reasoning_keeps_its_first_newlines() -> None:
    rig = answering("\n\nmore</think>x" + EOS)
    last = {"role": "assistant", "content": "", "reasoning_content": "I", "prefix": True}
    message = rig.chat(messages=[*HELLO, last]).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "\n\nmore"


# The cache


def test_a_salt_reaches_the_engine() -> None:
    assert asked(cache_salt="tenant 7").client.requests[0].cache_salt == "tenant 7"


# What is ignored


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"chat_template_kwargs": {"zeta": 1, "thinking": True}}, "chat_template_kwargs.zeta"),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, "reasoning.summary"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options.include_obfuscation"),
        ({"messages": [{"role": "user", "content": "x", "name": "Ada"}]}, "messages.name"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "x"} | {"cache_control": {"type": "ephemeral"}}
                        ],
                    }
                ]
            },
            "messages.content.cache_control",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "a": 1}]}]},
            "messages.content.a",
        ),
        (
            {"user": "u", "priority": 3, "prediction": {"type": "content"}},
            "prediction, priority, user",
        ),
    ],
)
def test_what_is_ignored_is_named_and_refused_when_strict(
    fields: dict[str, Any], names: str
) -> None:
    stream = {"stream": True} if "stream_options" in fields else {}
    response = answering("x" + EOS).chat(**fields | stream)
    assert response.status_code == 200, response.text
    assert response.headers["x-relight-ignored"] == names
    strict = answering("x" + EOS, strict_fields=True).chat(**fields | stream)
    assert strict.status_code == 400
    assert json.loads(strict.text)["error"]["param"] in names
