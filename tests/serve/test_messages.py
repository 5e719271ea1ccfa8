"""Anthropic's protocol: what is asked, what is answered, what is refused."""

import json
from typing import Any

import pytest

from tests.serve.fakes import CALL, EOS, HELLO, WEATHER, Rig, answering, echo, rig, tokens

TOOL = {
    "name": "get_weather",
    "description": "Weather now",
    "input_schema": WEATHER["function"]["parameters"],
}
OFF = {"thinking": {"type": "disabled"}}
CALLING = "need it</think>Let me see." + CALL + EOS


def ask(rig: Rig, **fields: Any) -> Any:
    return rig.post("/v1/messages", {"messages": HELLO, "max_tokens": 300, **fields})


def stream(rig: Rig, **fields: Any) -> list[tuple[str, Any]]:
    text = ask(rig, stream=True, **fields).text
    frames = [frame.split("\n") for frame in text.removesuffix("\n\n").split("\n\n")]
    assert all(len(frame) == 2 for frame in frames)
    told = [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in frames
    ]
    assert all(name == data["type"] for name, data in told)
    return told


def accumulated(events: list[tuple[str, Any]]) -> Any:
    """The message that the events add up to, as Anthropic's client reads them."""
    message: Any = None
    partial = ""
    for name, data in events:
        if name == "message_start":
            message = data["message"]
        elif name == "content_block_start":
            assert data["index"] == len(message["content"])
            message["content"].append(dict(data["content_block"]))
            partial = ""
        elif name == "content_block_delta":
            block, delta = message["content"][data["index"]], data["delta"]
            if delta["type"] == "input_json_delta":
                partial += delta["partial_json"]
                continue
            field = delta["type"].removesuffix("_delta")
            block[field] += delta[field]
        elif name == "content_block_stop" and partial:
            message["content"][data["index"]]["input"] = json.loads(partial)
        elif name == "message_delta":
            message |= data["delta"] | {"usage": data["usage"]}
    return message


def prompt_of(path: str, body: Any) -> tuple[int, ...]:
    one = answering("x" + EOS)
    assert one.post(path, body).status_code == 200
    return one.client.requests[0].prompt


def test_a_whole_answer() -> None:
    body = ask(answering("because</think>Hello." + EOS, num_cached=3)).json()
    prompt = prompt_of("/v1/chat/completions", {"messages": HELLO})
    assert body == {
        "type": "message",
        "id": f"msg_{1:032x}",
        "role": "assistant",
        "model": "tiny",
        "content": [
            {"type": "thinking", "thinking": "because", "signature": "relight"},
            {"type": "text", "text": "Hello."},
        ],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(prompt) - 3,
            "output_tokens": len(tokens("because</think>Hello." + EOS)),
            "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": 0,
        },
    }


@pytest.mark.parametrize("per_delta", [1, 3, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "because</think>Hello." + EOS,
        CALLING,
        CALLING.replace("Let me see.", ""),
        "need</think>" + CALL.replace("\n</｜DSML｜tool_calls>", CALL[13:]) + EOS,
        "only thinking",
        EOS,
    ],
)
def test_a_stream_adds_up_to_the_whole_answer(text: str, per_delta: int) -> None:
    events = stream(answering(text, per_delta=per_delta), tools=[TOOL])
    assert accumulated(events) == ask(answering(text), tools=[TOOL]).json()
    assert [name for name, _ in events][-2:] == ["message_delta", "message_stop"]


def test_the_events_of_a_stream_in_order() -> None:
    events = stream(answering(CALLING, per_delta=1000), tools=[TOOL])
    assert [name for name, _ in events] == [
        "message_start",
        *["content_block_start", "content_block_delta", "content_block_delta"],
        "content_block_stop",
        *["content_block_start", "content_block_delta", "content_block_stop"],
        "content_block_start",
        *["content_block_delta"] * (len(events) - 12),
        *["content_block_stop", "message_delta", "message_stop"],
    ]
    assert events[3][1]["delta"] == {"type": "signature_delta", "signature": "relight"}
    block = events[8][1]["content_block"]
    assert block["type"] == "tool_use"
    assert block["input"] == {}


@pytest.mark.parametrize(
    ("text", "fields", "reason", "sequence"),
    [
        ("a" + EOS, {}, "end_turn", None),
        ("a b c d" + EOS, {"max_tokens": 3}, "max_tokens", None),
        ("one two three" + EOS, {"stop_sequences": ["two"]}, "stop_sequence", "two"),
        (CALL + EOS, {"tools": [TOOL]}, "tool_use", None),
    ],
)
def test_stop_reasons(text: str, fields: Any, reason: str, sequence: str | None) -> None:
    body = ask(answering(text), **OFF, **fields).json()
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)
    events = stream(answering(text), **OFF, **fields)
    assert events[-2][1]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_a_call_that_a_limit_cuts_off_is_no_part_of_the_answer() -> None:
    text = CALL[: CALL.index("Paris") + 3]
    fields = {"tools": [TOOL], "max_tokens": len(tokens(text)), **OFF}
    body = ask(answering(text + "is" + EOS), **fields).json()
    assert body["content"] == []
    assert body["stop_reason"] == "max_tokens"


ANSWERED = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "relight"},
            {"type": "redacted_thinking", "data": "xyz"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}},
            {"type": "tool_use", "id": "t2", "name": "get_weather", "input": {"n": 2, "o": [1.5]}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t2", "content": "rain", "is_error": True},
            {
                "type": "tool_result",
                "tool_use_id": "t1",
                "content": [{"type": "text", "text": "p1"}, {"type": "text", "text": "p2"}],
            },
            {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}},
        ],
    },
]
SAME_AS_CHAT = [
    {"role": "system", "content": "One.\n\nTwo."},
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": "Let me see.",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "t1", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}},
            {"id": "t2", "function": {"name": "get_weather", "arguments": '{"n": 2, "o": [1.5]}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "t1", "content": "p1\n\np2"},
    {"role": "tool", "tool_call_id": "t2", "content": "rain"},
    {"role": "user", "content": "Go on."},
]


def test_a_conversation_has_the_prompt_of_the_same_chat() -> None:
    body = {
        "system": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
        "messages": ANSWERED,
        "tools": [TOOL],
        "output_config": {"effort": "low"},
    }
    chat = {"messages": SAME_AS_CHAT, "tools": [WEATHER], "reasoning_effort": "low"}
    prompt = prompt_of("/v1/messages?beta=true", body)
    assert prompt == prompt_of("/v1/chat/completions", chat)
    count = answering("x").post("/v1/messages/count_tokens", body | {"max_tokens": 5})
    assert count.json() == {"input_tokens": len(prompt)}


@pytest.mark.parametrize(
    ("thinking", "chat"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, True),
        ({"type": "adaptive"}, True),
        ({"type": "disabled"}, False),
    ],
)
def test_thinking_is_switched_as_in_a_chat(thinking: Any, chat: bool) -> None:
    prompt = prompt_of("/v1/messages", {"messages": HELLO, "thinking": thinking})
    same = {"messages": HELLO, "enable_thinking": chat}
    assert prompt == prompt_of("/v1/chat/completions", same)


def test_a_block_for_the_billing_of_a_provider_is_not_read() -> None:
    def prompt(number: int) -> tuple[int, ...]:
        text = f"x-anthropic-billing-header: cc_version=2.1.{number}; cch=00000;"
        system = [{"type": "text", "text": text}, {"type": "text", "text": "Be terse."}]
        return prompt_of("/v1/messages", {"messages": HELLO, "system": system})

    plain = prompt_of("/v1/messages", {"messages": HELLO, "system": "Be terse."})
    assert prompt(1) == prompt(2) == plain


def test_sampling_fields_reach_the_engine() -> None:
    one = answering("x" + EOS)
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3, "cache_salt": "s"}
    assert ask(one, max_tokens=9, **fields).status_code == 200
    request = one.client.requests[0]
    sampling = request.sampling
    assert sampling.max_tokens == 9
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.seed, request.cache_salt) == (3, "s")


def test_max_tokens_may_be_missing_or_larger_than_the_context() -> None:
    one = echo()
    assert rig(one).post("/v1/messages", {"messages": HELLO}).status_code == 200
    assert ask(rig(one), max_tokens=10**9).status_code == 200
    limit = one.info.max_context - len(one.requests[1].prompt)
    assert one.requests[1].sampling.max_tokens == limit


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
        (
            {"messages": [*ANSWERED[:2], _ := {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [IMAGE]}]}]},
            "messages[2].content[0].content[0]",
        ),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t9", "content": "x"}]}]},
            "messages[0].content[0] is a tool_result that answers no call; tool_result blocks must "
            "follow the assistant message with the tool_use blocks",
        ),
        (
            {"messages": [*ANSWERED[:2], {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t9", "content": "x"}]}]},
            "messages[2].content[0].tool_use_id is 't9'",
        ),
        (
            {"messages": ANSWERED[:2]},
            "messages[1].content has the call 't1' without a result; a tool_result block for each",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [TOOL | {"input_schema": {"type": "string"}}]}, "tools[0].input_schema"),
        ({"tools": [TOOL], "tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"thinking": {"type": "perhaps"}}, "thinking.type"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"container": {"id": "c"}}, "container"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"reasoning_effort": "low"}, "output_config.effort"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_by_the_name_that_the_client_used(fields: Any, where: str) -> None:
    reply = ask(answering("x"), **fields)
    assert reply.status_code == 400
    body = reply.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert where in body["error"]["message"]
    assert body["request_id"] == reply.headers["x-request-id"]


def test_errors_have_the_protocols_types() -> None:
    one = answering("x", body_limit=400)
    assert ask(one, model="gpt").json()["error"]["type"] == "not_found_error"
    assert ask(one, system="s" * 500).json()["error"]["type"] == "request_too_large"
    long = ask(answering("x"), system="a b " * 4096).json()["error"]
    assert long["type"] == "invalid_request_error"
    words = long["message"].split()
    assert words[:4] == ["prompt", "is", "too", "long:"]
    assert words[5:] == ["tokens", ">", "4096", "maximum"]
    full = answering("x", max_open=1)
    with full.server.admit():
        assert ask(full).json()["error"]["type"] == "rate_limit_error"
    full.client.condition = "loading"
    assert ask(full).json()["error"]["type"] == "overloaded_error"
    assert one.post("/v1/messages/count_tokens", "{").json()["type"] == "error"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/messages/batches", 404),
        ("GET", "/v1/messages", 405),
        ("GET", "/v1/messages/count_tokens", 405),
    ],
)
def test_what_is_no_route_is_told_in_the_same_form(method: str, path: str, status: int) -> None:
    reply = answering("x").request(method, path)
    assert reply.status_code == status
    body = reply.json()
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    assert answering("x").request("POST", "/v1/other").json()["error"]["code"] == "not_found"


def test_an_error_in_a_stream_is_an_event() -> None:
    one = answering("a b c", per_delta=2)
    one.client.finish, one.client.error = "error", "the step failed"
    events = stream(one, **OFF)
    assert events[0][0] == "message_start"
    assert events[-1][0] == "error"
    assert events[-1][1]["error"] == {"type": "api_error", "message": "the step failed"}
    assert "message_stop" not in [name for name, _ in events]
    reply = ask(one)
    assert reply.status_code == 500
    assert reply.json()["error"]["type"] == "api_error"


def test_a_count_reads_the_body_of_a_call_and_names_what_it_does_not_know() -> None:
    body = {"messages": HELLO, "max_tokens": 5, "stream": True, "temperature": 1, "a_field": 1}
    path = "/v1/messages/count_tokens"
    assert answering("x").post(path, body).headers["x-relight-ignored"] == "a_field"
    refused = answering("x", strict_fields=True).post(path, body)
    assert (refused.status_code, "a_field" in refused.text) == (400, True)
    del body["a_field"]
    counted = answering("x", strict_fields=True).post(path, body)
    whole = answering("a" + EOS).post("/v1/messages", body | {"stream": False}).json()
    assert counted.json() == {"input_tokens": whole["usage"]["input_tokens"]}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_members_of_blocks_turns_and_tools_that_are_not_read_are_named(path: str) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    body = {
        "system": [{"type": "text", "text": "Be kind."} | mark],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x"} | mark], "a": 1}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}} | mark],
        "max_tokens": 1,
    }
    names = ["messages.a", "messages.content.cache_control"]
    names += ["system.cache_control", "tools.cache_control"]
    reply = answering("x" + EOS).post(path, body)
    assert sorted(reply.headers["x-relight-ignored"].split(", ")) == names
    refused = answering("x", strict_fields=True).post(path, body)
    assert (refused.status_code, "messages.a has no effect" in refused.text) == (400, True)


def test_an_answer_comes_back_to_a_strict_server_as_it_was() -> None:
    one = answering(CALLING, strict_fields=True)
    said = ask(one, tools=[TOOL]).json()
    result = {"type": "tool_result", "tool_use_id": said["content"][-1]["id"], "content": "sun"}
    turns = [{"role": said["role"], "content": said["content"]}]
    turns.append({"role": "user", "content": [result]})
    reply = ask(one, tools=[TOOL], messages=[*HELLO, *turns])
    assert reply.status_code == 200, reply.text
    assert "x-relight-ignored" not in reply.headers
