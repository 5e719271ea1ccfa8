"""The official client of OpenAI against a live server on a loopback port."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from relight.base.types import Request
from relight.engine.replay import ReplayClient
from tests.serve.fakes import CALL, EOS, HELLO, TOKENIZER, WEATHER, Rig, live, rig, tokens

TEXT = "think</think>The answer — π 🙂."
NO_THINKING = {"thinking": {"type": "disabled"}}


def answer(request: Request) -> list[int]:
    """Tools in the prompt get a call, everything else an answer."""
    text = "need it</think>" + CALL if TOKENIZER.special.dsml in request.prompt else TEXT
    return tokens(text + EOS)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Rig, str]]:
    one = rig(ReplayClient(answer))
    with live(one) as url:
        yield one, url


@pytest.fixture
def client(served: tuple[Rig, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served[1] + "/v1", api_key="any", max_retries=0) as one:
        yield one


def test_a_whole_answer(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="tiny", messages=HELLO)
    message = reply.choices[0].message
    assert message.content == "The answer — π 🙂."
    assert message.reasoning_content == "think"  # type: ignore[attr-defined]
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens == len(tokens(TEXT + EOS))
    assert reply.usage.completion_tokens_details.reasoning_tokens == len(tokens("think"))


def test_a_stream(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "The answer — π 🙂."
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(tokens(TEXT + EOS))


def test_tools(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": "tiny", "messages": HELLO, "tools": [WEATHER]}
    message = client.chat.completions.create(**ask).choices[0].message
    call = message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    with client.chat.completions.stream(**ask) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls[0].function.arguments == call.function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    back = client.chat.completions.create(**ask | {"messages": [*HELLO, message.to_dict(), result]})
    assert back.choices[0].finish_reason == "tool_calls"


def test_raw_completions(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=100)
    assert [choice.text for choice in reply.choices] == [TEXT, TEXT]
    parts = client.completions.create(model="tiny", prompt="a", max_tokens=100, stream=True)
    assert "".join(part.choices[0].text for part in parts) == TEXT


def test_choices_and_log_probabilities(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {
        "model": "tiny",
        "messages": HELLO,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "logit_bias": {"5": -1},
        "seed": 3,
    }
    reply = client.chat.completions.create(**ask)
    told = [TOKENIZER.token_bytes(token) for token in tokens("The answer — π 🙂.")]
    assert [choice.index for choice in reply.choices] == [0, 1]
    for choice in reply.choices:
        assert choice.message.content == "The answer — π 🙂."
        assert choice.logprobs
        assert choice.logprobs.content
        assert [bytes(item.bytes or ()) for item in choice.logprobs.content] == told
        assert [item.logprob for item in choice.logprobs.content] == [0.0] * len(told)
        reasoning = choice.logprobs.reasoning_content  # type: ignore[attr-defined]
        assert b"".join(bytes(item["bytes"]) for item in reasoning) == b"think"
    with client.chat.completions.stream(**ask) as stream:
        final = stream.get_final_completion().choices
    for choice, whole in zip(final, reply.choices, strict=True):
        assert choice.message.content == whole.message.content
        assert choice.logprobs
        assert whole.logprobs
        assert choice.logprobs.content == whole.logprobs.content
    raw = client.completions.create(model="tiny", prompt="a", n=2, logprobs=2, max_tokens=100)
    assert [choice.text for choice in raw.choices] == [TEXT, TEXT]
    assert all(len(c.logprobs.tokens) == len(tokens(TEXT)) for c in raw.choices if c.logprobs)
    for wrong in ({"top_logprobs": 21}, {"n": 0}, {"logit_bias": {"x": 1}}):
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**ask | wrong)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "alias"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_errors_have_their_classes(client: openai.OpenAI) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as unknown:
        create(model="gpt", messages=HELLO)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        create(model="tiny", messages=HELLO, temperature=9)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as unbuilt:
        create(model="tiny", messages=HELLO, extra_body={"best_of": 2})
    assert unbuilt.value.code == "unsupported_parameter"


def test_an_error_in_a_stream_reaches_the_caller() -> None:
    broken = rig(ReplayClient(lambda _: tokens("a b c"), finish="error", error="broken"))
    with live(broken) as url, openai.OpenAI(base_url=url + "/v1", api_key="x") as client:
        stream = client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
        with pytest.raises(openai.APIError, match="broken"):
            list(stream)


def test_concurrent_streams(served: tuple[Rig, str]) -> None:
    async def one(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    async def many() -> list[str]:
        async with openai.AsyncOpenAI(base_url=served[1] + "/v1", api_key="any") as client:
            return await asyncio.gather(*(one(client) for _ in range(16)))

    assert asyncio.run(many()) == ["The answer — π 🙂."] * 16


@pytest.mark.parametrize("stream", [True, False])
def test_a_connection_that_is_cut_frees_its_request(stream: bool) -> None:
    one = rig(ReplayClient(lambda _: tokens("a" * 100)))
    one.client.gate.clear()
    body = {"messages": HELLO, "stream": stream, **NO_THINKING}
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    with live(one) as url:
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port)) as connection:
            connection.sendall(head.encode() + data)
            wait_until(lambda: one.client.num_running == 1)
        wait_until(lambda: one.client.num_running == 0)
        assert one.client.aborted == [one.client.requests[0].id]
        wait_until(lambda: one.server.num_open == 0)


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
