"""Chat completions over a scripted engine: exact bytes, and what every split must keep."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from relight.base.types import EngineInfo
from relight.engine.replay import INFO
from relight.serve.app import create_app
from tests.serve.fakes import (
    CALL,
    EOS,
    HELLO,
    TOKENIZER,
    WEATHER,
    Rig,
    answering,
    echo,
    events,
    joined,
    rig,
    script,
    tokens,
)

CHAT = "/v1/chat/completions"
OFF = {"thinking": {"type": "disabled"}}
HEAD = (
    '{"id":"chatcmpl-00000000000000000000000000000001","object":"chat.completion.chunk",'
    '"created":1700000000,"model":"tiny","choices":['
)
FIRST = '{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}'
ANSWERS = [
    "plain text" + EOS,
    "why\n\nnot</think>\n\nbecause — π 🙂" + EOS,
    "only thought" + EOS,
    "</think>" + EOS,
    "x</think>Let me see." + CALL + EOS,
    "x</think>" + CALL + EOS,
    "x" + CALL + CALL + EOS,
    "x</think>a < b <｜DSML｜ no tag" + EOS,
    "x</think>" + CALL[:-60] + EOS,
    "x</think>stop here STOP and never this" + EOS,
]


def chunk(choices: str, usage: str = "") -> str:
    return f"data: {HEAD}{choices}]{usage}}}\n\n"


def delta(body: str, finish: str = "null", stop: str = "") -> str:
    return f'{{"index":0,"delta":{{{body}}},"finish_reason":{finish}{stop}}}'


def test_the_bytes_of_a_stream() -> None:
    response = answering("why</think>é🙂" + EOS, num_cached=2).chat(
        stream=True, stream_options={"include_usage": True}, reasoning_effort="low"
    )
    null = ',"usage":null'
    num_prompt, num_made = 6, len(tokens("why</think>é🙂" + EOS))
    thought = "".join(chunk(delta(f'"reasoning_content":"{text}"'), null) for text in pieces("why"))
    assert response.text == (
        chunk(FIRST, null)
        + thought
        + chunk(delta('"content":"é"'), null)
        + chunk(delta('"content":"🙂"'), null)
        + chunk(delta("", '"stop"', ',"stop_reason":null'), null)
        + chunk(
            "",
            f',"usage":{{"prompt_tokens":{num_prompt},"completion_tokens":{num_made},'
            f'"total_tokens":{num_prompt + num_made},'
            '"prompt_tokens_details":{"cached_tokens":2},'
            f'"completion_tokens_details":{{"reasoning_tokens":{len(pieces("why"))}}},'
            '"prompt_cache_hit_tokens":2,"prompt_cache_miss_tokens":4}',
        )
        + "data: [DONE]\n\n"
    )
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"


def pieces(text: str) -> list[str]:
    return [TOKENIZER.decode([token]) for token in tokens(text)]


def test_the_bytes_of_a_stream_that_is_cut_off() -> None:
    assert answering("hello").chat(stream=True, max_tokens=1, **OFF).text == (
        chunk(FIRST)
        + chunk(delta(f'"content":"{pieces("hello")[0]}"'))
        + chunk(delta("", '"length"', ',"stop_reason":null'))
        + "data: [DONE]\n\n"
    )


def test_the_bytes_of_a_tool_call() -> None:
    call_id = "call_" + f"{3:032x}"[:24]
    response = answering(CALL + EOS, per_delta=7).chat(stream=True, tools=[WEATHER], **OFF)
    chunks = events(response)
    first = chunks[1]["choices"][0]["delta"]
    assert first == {
        "tool_calls": [
            {
                "index": 0,
                "function": {"arguments": "", "name": "get_weather"},
                "id": call_id,
                "type": "function",
            }
        ]
    }
    arguments = [c["choices"][0]["delta"]["tool_calls"][0] for c in chunks[2:-2]]
    assert len(arguments) > 2
    assert all(set(part) == {"index", "function"} for part in arguments)
    assert all(set(part["function"]) == {"arguments"} for part in arguments)
    text = "".join(part["function"]["arguments"] for part in arguments)
    assert text == '{"city": "Paris"}'
    assert chunks[-2]["choices"][0] == {
        "index": 0,
        "delta": {},
        "finish_reason": "tool_calls",
        "stop_reason": None,
    }


def test_the_bytes_of_a_stream_that_an_abort_ends() -> None:
    response = rig(script("a", finish="abort")).chat(stream=True, **OFF)
    assert response.text == (
        chunk(FIRST)
        + 'data: {"error":{"message":"the engine gave this request up; send it again later",'
        '"type":"server_error","param":null,"code":"service_unavailable"}}\n\n'
    )


def test_the_bytes_of_a_whole_answer() -> None:
    response = answering("why</think>é" + EOS).chat(reasoning_effort="low")
    num_made = len(tokens("why</think>é" + EOS))
    assert response.text == (
        '{"id":"chatcmpl-00000000000000000000000000000001","object":"chat.completion",'
        '"created":1700000000,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant",'
        '"content":"é","reasoning_content":"why"},"finish_reason":"stop","stop_reason":null}],'
        f'"usage":{{"prompt_tokens":6,"completion_tokens":{num_made},'
        f'"total_tokens":{6 + num_made},"prompt_tokens_details":{{"cached_tokens":0}},'
        f'"completion_tokens_details":{{"reasoning_tokens":{len(pieces("why"))}}},'
        '"prompt_cache_hit_tokens":0,"prompt_cache_miss_tokens":6}}'
    )


@pytest.mark.parametrize("per_delta", [1, 2, 3, 5, 13, 1000])
@pytest.mark.parametrize("text", ANSWERS)
def test_a_stream_adds_up_to_the_whole_answer_for_every_split(text: str, per_delta: int) -> None:
    ask = {"tools": [WEATHER], "stop": ["STOP"]}
    whole = answering(text).chat(**ask).json()["choices"][0]
    response = answering(text, per_delta=per_delta).chat(stream=True, **ask)
    chunks = events(response)
    message = joined(chunks) | {"role": "assistant"}
    assert same_calls(message) == same_calls(
        whole["message"] | {"content": whole["message"]["content"] or ""}
    )
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["finish_reason"]
    for chunk_ in chunks[1:-2]:
        body = chunk_["choices"][0]["delta"]
        assert len(body) == 1
        assert all(body.values())


def same_calls(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its call ids, which are drawn, left out."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return message | {"tool_calls": calls}


@pytest.mark.parametrize(
    ("text", "fields", "finish", "content"),
    [
        ("a" + EOS, {}, "stop", "a"),
        ("hello", {"max_tokens": 1}, "length", None),
        (CALL + EOS, {}, "tool_calls", None),
        (CALL + EOS, {"max_tokens": len(tokens(CALL))}, "length", None),
        ("\n\n<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>" + EOS, {}, "stop", ""),
        (CALL[:-40] + EOS, {}, "stop", None),
        ("a STOP b" + EOS, {"stop": "STOP"}, "stop", "a "),
        (
            "a STOP b" + EOS,
            {"stop": ["STOP"], "include_stop_str_in_output": True},
            "stop",
            "a STOP",
        ),
    ],
)
def test_finish_reasons(text: str, fields: dict[str, Any], finish: str, content: Any) -> None:
    choice = answering(text).chat(tools=[WEATHER], **OFF, **fields).json()["choices"][0]
    assert choice["finish_reason"] == finish
    if content is not None:
        assert choice["message"]["content"] == content


def test_a_call_that_is_cut_off_is_left_out_and_one_that_the_model_left_open_is_closed() -> None:
    cut = CALL[: CALL.index("ris")]
    budget = {"max_tokens": len(tokens(cut))}
    message = answering(cut + EOS).chat(tools=[WEATHER], **OFF, **budget).json()
    assert message["choices"][0]["message"] == {"role": "assistant", "content": ""}
    message = answering(cut + EOS).chat(tools=[WEATHER], **OFF).json()["choices"][0]
    assert message["finish_reason"] == "stop"
    arguments = message["message"]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"city": "Pa"}


def test_all_thought_and_no_answer_is_an_empty_content() -> None:
    choice = answering("hmm").chat(max_tokens=1).json()["choices"][0]
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"]
    assert choice["finish_reason"] == "length"


def test_stop_strings_match_content_only() -> None:
    text = "think STOP think</think>say" + CALL.replace("Paris", "STOP") + EOS
    choice = answering(text).chat(tools=[WEATHER], stop="STOP").json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == "think STOP think"
    assert choice["message"]["content"] == "say"
    assert "STOP" in choice["message"]["tool_calls"][0]["function"]["arguments"]


def test_a_stop_string_aborts_the_engine_and_is_named() -> None:
    rig_ = answering("a STOP" + "b" * 100 + EOS)
    choice = rig_.chat(stop="STOP", **OFF).json()["choices"][0]
    assert (choice["stop_reason"], choice["finish_reason"]) == ("STOP", "stop")
    assert rig_.client.aborted == [rig_.client.requests[0].id]


def test_a_stop_token_ends_the_answer_and_is_not_text() -> None:
    token = tokens("Q")[0]
    choice = answering("aQb" + EOS).chat(stop_token_ids=[token], **OFF).json()["choices"][0]
    assert choice["message"]["content"] == "a"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", token)


def test_the_end_of_a_turn_can_be_ignored() -> None:
    rig_ = answering("a" + EOS + "b")
    body = rig_.chat(ignore_eos=True, max_tokens=3, **OFF).json()
    assert body["choices"][0]["message"]["content"] == "ab"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 3
    assert rig_.client.requests[0].sampling.stop_token_ids == ()


def test_one_call_only_where_parallel_calls_are_refused() -> None:
    text = CALL + CALL + EOS
    for ask, number in (
        ({}, 2),
        ({"parallel_tool_calls": True}, 2),
        ({"parallel_tool_calls": False}, 1),
    ):
        message = (
            answering(text).chat(tools=[WEATHER], **ask, **OFF).json()["choices"][0]["message"]
        )
        assert len(message["tool_calls"]) == number
        chunks = events(answering(text).chat(tools=[WEATHER], stream=True, **ask, **OFF))
        assert len(joined(chunks)["tool_calls"]) == number


@pytest.mark.parametrize("ask", [{}, {"tools": []}, {"tools": [WEATHER], "tool_choice": "none"}])
def test_without_tools_no_markup_reaches_the_client(ask: dict[str, Any]) -> None:
    rig_ = answering("say" + CALL + EOS)
    choice = rig_.chat(**ask, **OFF).json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "say"}
    assert choice["finish_reason"] == "stop"
    assert len(rig_.client.requests[0].prompt) == 6


def test_reasoning_can_be_left_out() -> None:
    for stream in (False, True):
        response = answering("why</think>a" + EOS).chat(include_reasoning=False, stream=stream)
        assert "why" not in response.text
        assert '"reasoning_tokens"' in response.text or stream


def test_sampling_fields_reach_the_engine() -> None:
    rig_ = answering("a")
    rig_.chat(
        temperature=0.5,
        top_p=0.9,
        top_k=-1,
        min_p=0.1,
        seed=-1,
        max_tokens=9,
        max_completion_tokens=7,
        stop_token_ids=[5, 5],
        cache_salt="tenant",
    )
    request = rig_.client.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (
        0.5,
        0.9,
        0,
        0.1,
    )
    assert sampling.seed == 2**63 - 1
    assert sampling.max_tokens == 7
    assert sampling.stop_token_ids == (TOKENIZER.special.eos, 5)
    assert request.cache_salt == "tenant"


NEUTRAL = {
    "n": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0.0,
    "logprobs": False,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "tool_choice": "auto",
    "modalities": ["text"],
    "functions": None,
    "stop": None,
    "stream_options": None,
    "temperature": None,
    "tools": None,
    "reasoning_effort": None,
    "parallel_tool_calls": True,
}


@pytest.mark.parametrize("field", NEUTRAL)
def test_values_that_ask_for_nothing_are_accepted(field: str) -> None:
    response = answering("a", strict_fields=True).chat(**{field: NEUTRAL[field]})
    assert response.status_code == 200
    assert "x-relight-ignored" not in response.headers


@pytest.mark.parametrize("stream", [False, True])
def test_ignored_fields_are_listed_in_a_header_and_counted(stream: bool) -> None:
    rig_ = answering("a")
    response = rig_.chat(user="u", metadata={}, weird=1, stream=stream)
    assert response.headers["x-relight-ignored"] == "metadata, user, weird"
    text = rig_.request("GET", "/metrics").text
    for name in ("user", "metadata", "weird"):
        sample = f'relight:ignored_fields_total{{engine="",field="{name}",model_name="tiny"}} 1.0'
        assert sample in text
    assert answering("a", strict_fields=True).chat(user="u").status_code == 400


def test_what_clients_add_to_messages_and_tools_has_no_effect() -> None:
    def prompt(message: dict[str, Any], tool: dict[str, Any]) -> tuple[int, ...]:
        rig_ = answering("a")
        assert rig_.chat(messages=[message], tools=[tool]).status_code == 200
        return rig_.client.requests[0].prompt

    part = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    message = {"role": "user", "name": "Ann", "content": [part]}
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    assert prompt(message, strict) == prompt(HELLO[0], WEATHER)


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "adaptive"}}, True),
        ({"enable_thinking": False}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning": {"effort": "none"}}, False),
        ({"output_config": {"effort": "none"}}, False),
        ({"reasoning_effort": "none", "thinking": {"type": "enabled"}}, True),
        ({"enable_thinking": True, "thinking": {"type": "disabled"}}, False),
        ({"chat_template_kwargs": {"thinking": False}, "enable_thinking": True}, False),
        (
            {"chat_template_kwargs": {"enable_thinking": True}, "thinking": {"type": "disabled"}},
            True,
        ),
        ({"chat_template_kwargs": {"thinking": False, "enable_thinking": True}}, True),
        ({"chat_template_kwargs": {"reasoning_effort": "none", "other": 1}}, False),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "no such word"}, False),
    ],
)
def test_the_first_switch_that_is_present_decides_about_thinking(
    fields: dict[str, Any], thinking: bool
) -> None:
    rig_ = answering("a")
    assert rig_.chat(**fields).status_code == 200
    last = rig_.client.requests[0].prompt[-1]
    special = TOKENIZER.special
    assert last == (special.think_open if thinking else special.think_close)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"thinking": {"type": "disabled"}}, 8192),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "max"}, 8192),
        ({}, 65_536),
        ({"reasoning_effort": "ultra"}, 131_072),
        ({"reasoning_effort": "max"}, 131_072),
        ({"max_tokens": 10**9}, None),
    ],
)
def test_the_output_limit_by_default_and_where_it_meets_the_context(
    fields: dict[str, Any], limit: int | None
) -> None:
    for max_context in (4096, 300_000):
        rig_ = rig(script("a", info=info(max_context)))
        assert rig_.chat(**fields).status_code == 200
        request = rig_.client.requests[0]
        room = max_context - len(request.prompt)
        assert request.sampling.max_tokens == min(limit or room, room)


def info(max_context: int) -> EngineInfo:
    return msgspec.structs.replace(INFO, max_context=max_context)


def test_both_dialects_of_continuation_go_on_with_the_last_message() -> None:
    start = [*HELLO, {"role": "assistant", "content": "Snow"}]
    plain = {"messages": start, "continue_final_message": True, "add_generation_prompt": False}
    prefix = {"messages": [*HELLO, {**start[1], "prefix": True}]}
    for body in (plain, prefix):
        rig_ = answering(" falls" + EOS)
        choice = rig_.chat(**body, **OFF).json()["choices"][0]
        assert choice["message"]["content"] == " falls"
        assert TOKENIZER.decode(rig_.client.requests[0].prompt).endswith("</think>Snow")


def test_both_names_of_past_reasoning_are_read() -> None:
    def prompt(**message: str) -> tuple[int, ...]:
        rig_ = answering("a")
        past = [*HELLO, {"role": "assistant", "content": "x", **message}, *HELLO]
        rig_.chat(messages=past, tools=[WEATHER])
        return rig_.client.requests[0].prompt

    assert prompt(reasoning_content="why") == prompt(reasoning="why")
    assert prompt(reasoning_content="why", reasoning="other") == prompt(reasoning="why")
    assert prompt(reasoning="why") != prompt()


def test_a_request_id_is_echoed_or_drawn() -> None:
    response = answering("a").request(
        "GET", "/version", headers={"X-Request-Id": "from-the-client"}
    )
    assert response.headers["x-request-id"] == "from-the-client"
    first, second = (answering("a").chat().headers["x-request-id"] for _ in range(2))
    assert first != second


def test_the_model_may_be_left_out_and_is_answered_by_the_name_that_was_asked() -> None:
    for asked, answered in (
        (None, "tiny"),
        ("tiny", "tiny"),
        ("alias", "alias"),
        ("tiny[1m]", "tiny"),
    ):
        assert answering("a").chat(model=asked).json()["model"] == answered


def test_interleaved_streams_keep_to_themselves() -> None:
    rig_ = rig(echo())

    async def one(http: Any, secret: str) -> None:
        body = {"messages": [{"role": "user", "content": secret}], "stream": True, **OFF}
        response = await http.post("/v1/chat/completions", json=body)
        assert joined(events(response)) == {"content": secret}

    async def all_of_them() -> None:
        async with rig_.http() as http:
            await asyncio.gather(*(one(http, f"secret {i} " * 5) for i in range(32)))

    asyncio.run(all_of_them())
    assert rig_.client.num_running == 0
    assert rig_.server.num_open == 0


def drive(rig_: Rig, path: str, body: dict[str, Any], until: int) -> list[bytes]:
    """Speaks ASGI itself, and goes away once `until` body messages came; returns what came."""

    async def run() -> list[bytes]:
        sent: list[bytes] = []
        gone = asyncio.Event()
        incoming = [{"type": "http.request", "body": json.dumps(body).encode()}]

        async def receive() -> Any:
            if incoming:
                return incoming.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                sent.append(message["body"])
            if len(sent) == until:
                gone.set()

        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [],
            "query_string": b"",
        }
        if until == 0:
            gone.set()
        await create_app(rig_.server)(scope, receive, send)
        return sent

    return asyncio.run(asyncio.wait_for(run(), 10))


@pytest.mark.parametrize(("stream", "until"), [(True, 3), (True, 1), (False, 0)])
def test_a_client_that_goes_away_aborts_its_request(stream: bool, until: int) -> None:
    rig_ = answering("a" * 1000)
    sent = drive(rig_, CHAT, {"messages": HELLO, "stream": stream, **OFF}, until)
    assert len(sent) <= until + 2
    assert rig_.client.num_tokens <= until + 2
    assert rig_.client.num_running == 0
    assert rig_.client.aborted == [request.id for request in rig_.client.requests]
    assert rig_.server.num_open == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_aborts_each_of_its_prompts(stream: bool) -> None:
    rig_ = answering("a" * 1000)
    body = {"prompt": ["x", "y", "z"], "stream": stream, "max_tokens": 1000}
    drive(rig_, "/v1/completions", body, until=1 if stream else 0)
    assert sorted(rig_.client.aborted) == sorted(r.id for r in rig_.client.requests)
    assert rig_.client.num_running == 0
    assert rig_.server.num_open == 0


def test_a_client_that_waits_in_silence_hears_that_the_server_lives() -> None:
    rig_ = answering("a" + EOS, keep_alive_s=0.01)
    rig_.client.gate.clear()
    sent = drive(rig_, CHAT, {"messages": HELLO, "stream": True}, until=4)
    assert b'"role":"assistant"' in sent[0]
    assert sent[1:4] == [b": keep-alive\n\n"] * 3


def test_no_comments_where_they_are_switched_off() -> None:
    assert "keep-alive" not in answering("a" + EOS, keep_alive_s=0).chat(stream=True).text


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_stops_ends_what_runs_with_an_error(stream: bool) -> None:
    rig_ = answering("a" * 1000)
    rig_.client.gate.clear()

    async def run() -> Any:
        async with rig_.http() as http:
            body = {"messages": HELLO, "stream": stream}
            pending = asyncio.ensure_future(http.post("/v1/chat/completions", json=body))
            while not rig_.client.requests:
                await asyncio.sleep(0)
            rig_.server.stopping.set()
            return await pending

    response = asyncio.run(asyncio.wait_for(run(), 10))
    assert "the server is stopping" in response.text
    assert response.status_code == (200 if stream else 503)
    assert rig_.client.aborted == [rig_.client.requests[0].id]
