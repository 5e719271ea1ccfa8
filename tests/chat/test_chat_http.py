"""A source over HTTP: the live server of this package, and the ways of others."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from relight.base.errors import BadSetting, Overloaded, RelightError, StepFailed, Unavailable
from relight.base.types import Usage
from relight.chat.answer import Answer
from relight.chat.dialogue import Dialogue
from relight.chat.http import HttpSource
from relight.chat.source import Ask
from relight.session import Options
from relight.text.conversation import Message, Tool
from tests.serve.fakes import CALL, EOS, NAME, WEATHER, answering, live

HELLO = Ask(messages=(Message("user", "Hi"),))
TOOL = Tool(**WEATHER["function"])
Reply = httpx.Response | Exception


class Failing(httpx.AsyncByteStream):
    """A body that breaks off after `data`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data
        raise httpx.ReadError("")


def answered(source: HttpSource, ask: Ask = HELLO) -> Answer:
    async def collect() -> Answer:
        answer = Answer(asked_s=0.0)
        try:
            await source.open()
            async with aclosing(source.answer(ask)) as events:
                async for event in events:
                    answer.add(event, 0.0)
        finally:
            await source.aclose()
        return answer

    return asyncio.run(collect())


def stream(*chunks: Any, done: bool = True) -> httpx.Response:
    data = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    end = b"data: [DONE]\n\n" if done else b""
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=data + end)


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def told_by(reply: Callable[[httpx.Request], Reply] | Reply, ask: Ask = HELLO) -> Answer:
    """The answer of a server that always replies so."""

    def handle(request: httpx.Request) -> httpx.Response:
        found = reply(request) if callable(reply) else reply
        if isinstance(found, Exception):
            raise found
        return found

    transport = httpx.MockTransport(handle)
    return answered(HttpSource("http://other/v1", model="m", transport=transport), ask)


def test_the_live_server_gives_reasoning_content_and_exact_counts() -> None:
    rig = answering("I think</think>It is **4** — π 🙂." + EOS, num_cached=2)
    with live(rig) as url:
        source = HttpSource(f"{url}/v1")
        answer = answered(source)
    assert source.name == NAME
    assert (answer.reasoning, answer.content) == ("I think", "It is **4** — π 🙂.")
    assert answer.ended is not None
    assert answer.ended.reason == "stop"
    usage = answer.ended.usage
    assert usage is not None
    assert usage.completion_tokens == rig.client.num_tokens
    assert usage.cached_tokens == 2
    assert usage.reasoning_tokens > 0


def test_a_tool_turn_of_the_live_server_takes_call_result_and_reasoning_back() -> None:
    with live(answering("need it</think>" + CALL + EOS)) as url:
        dialogue = Dialogue(tools=(TOOL,))
        dialogue.say("Weather?")
        answer = answered(HttpSource(f"{url}/v1"), dialogue.ask())
        assert answer.message is not None
        dialogue.messages.append(answer.message)
        (call,) = answer.message.tool_calls
        assert (call.name, json.loads(str(call.arguments))) == ("get_weather", {"city": "Paris"})
        dialogue.say("sunny")
        assert dialogue.ask().messages[1].reasoning == "need it"
        again = answered(HttpSource(f"{url}/v1"), dialogue.ask())
    assert again.ended is not None
    assert again.ended.reason == "tool_calls"


def test_switches_act_on_the_live_server() -> None:
    rig = answering("x" + EOS)
    ask = Ask(messages=HELLO.messages, thinking=False, options=Options(max_tokens=3, seed=1))
    with live(rig) as url:
        answered(HttpSource(f"{url}/v1"), ask)
    (request,) = rig.client.requests
    assert request.prompt[-1] == rig.session.tokenizer.special.think_close
    assert (request.sampling.max_tokens, request.sampling.seed) == (3, 1)


def test_a_refusal_of_the_live_server_is_told_in_its_words() -> None:
    ask = Ask(messages=HELLO.messages, effort="heroic")
    with live(answering("x" + EOS)) as url, pytest.raises(RelightError, match=r"400.*heroic"):
        answered(HttpSource(f"{url}/v1"), ask)


def test_nothing_is_sent_that_was_not_asked_for() -> None:
    bodies = []

    def reply(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return stream(delta("stop", content="x"))

    told_by(reply)
    assert sorted(bodies[0]) == ["messages", "model", "stream", "stream_options"]


def test_the_dialects_of_others_are_read() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "prompt_cache_hit_tokens": 4}
    answer = told_by(
        stream(
            delta(role="assistant", content=""),
            delta(reasoning="hm", content=None),
            delta(content="x", extra={"y": 1}),
            delta("stop"),
            {"choices": [], "usage": usage},
            done=False,
        )
    )
    assert (answer.reasoning, answer.content) == ("hm", "x")
    assert answer.ended is not None
    told = Usage(prompt_tokens=5, completion_tokens=7, cached_tokens=4)
    assert answer.ended.usage == told


def test_an_answer_that_is_not_streamed_is_an_answer() -> None:
    call = {"id": "c1", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "x", "tool_calls": [call]}
    answer = told_by(
        httpx.Response(200, json={"choices": [{"message": message, "finish_reason": "stop"}]})
    )
    assert answer.message is not None
    assert answer.message.content == "x"
    assert [(c.id, c.name) for c in answer.message.tool_calls] == [("c1", "f")]


PART = b'data: {"choices": [{"delta": {"content": "half"}}]}\n\n'
SSE = {"content-type": "text/event-stream"}


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (httpx.ConnectError("no route"), Unavailable, "cannot be reached (no route)"),
        (httpx.Response(400, json={"error": {"message": "no\nsuch"}}), RelightError, "no such"),
        (httpx.Response(401, json={"error": "Unauthorized"}), RelightError, "--api-key"),
        (httpx.Response(404, text="Not Found"), RelightError, "404"),
        (
            httpx.Response(429, headers={"retry-after": "7"}, json={"detail": "full"}),
            Overloaded,
            "busy (429): full; it asks to wait 7 s",
        ),
        (httpx.Response(500, text=""), Unavailable, "failed (500): no reason given"),
        (httpx.Response(200, headers=SSE, stream=Failing(PART)), Unavailable, "broke off"),
        (stream(delta(content="half"), done=False), Unavailable, "broke off"),
        (stream(delta(content="x"), {"error": {"message": "boom"}}), StepFailed, "boom"),
        (httpx.Response(200, headers=SSE, content=b"data: {,\n\n"), Unavailable, "no part"),
        (httpx.Response(200, text="<html>"), Unavailable, "no part"),
    ],
)
def test_a_fault_is_one_clear_line(reply: Reply, kind: type[RelightError], words: str) -> None:
    with pytest.raises(kind) as caught:
        told_by(reply)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(BadSetting, match="host:port"):
        HttpSource("localhost:8000")


def test_a_server_without_models_asks_for_a_name() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"data": []}))
    with pytest.raises(Unavailable, match="--model"):
        answered(HttpSource("http://other/v1", transport=transport))


def test_the_key_is_a_bearer_token() -> None:
    seen: list[str] = []

    def reply(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return stream(delta("stop", content="x"))

    transport = httpx.MockTransport(reply)
    answered(HttpSource("http://other/v1", model="m", api_key="k", transport=transport))
    assert seen == ["Bearer k"]
