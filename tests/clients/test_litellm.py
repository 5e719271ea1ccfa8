"""LiteLLM against a live server, as three providers."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from relight.base.types import Request
from relight.engine.replay import ReplayClient
from tests.serve.fakes import CALL, EOS, HELLO, TOKENIZER, WEATHER, live, rig, tokens

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    litellm = pytest.importorskip("litellm", reason="see make test-clients")

TEXT = "think</think>The answer — π 🙂."
PLAIN = "The answer — π 🙂."


def answer(request: Request) -> list[int]:
    prompt = TOKENIZER.decode(request.prompt)
    calls = "get_weather" in prompt and "<tool_result>sunny" not in prompt
    return tokens(("need it</think>" + CALL if calls else TEXT) + EOS)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    one = rig(ReplayClient(answer))
    with live(one) as url:
        yield one, url


@pytest.fixture(params=["openai", "deepseek", "anthropic"])
def ask(request: pytest.FixtureRequest, server: Any) -> dict[str, Any]:
    url = server[1] if request.param == "anthropic" else server[1] + "/v1"
    return {
        "model": f"{request.param}/tiny",
        "api_base": url,
        "api_key": "any",
        "num_retries": 0,
        "messages": HELLO,
    }


def test_a_whole_answer(ask: Any) -> None:
    reply = litellm.completion(**ask)
    assert reply.choices[0].message.content == PLAIN
    assert reply.choices[0].message.reasoning_content == "think"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens == len(tokens(TEXT + EOS))


def test_a_stream(ask: Any) -> None:
    chunks = list(litellm.completion(**ask, stream=True, stream_options={"include_usage": True}))
    whole = litellm.stream_chunk_builder(chunks)
    assert whole.choices[0].message.content == PLAIN
    assert whole.choices[0].message.reasoning_content == "think"
    assert whole.usage.completion_tokens == len(tokens(TEXT + EOS))


def test_tools_and_their_results(ask: Any) -> None:
    first = litellm.completion(**ask, tools=[WEATHER]).choices[0]
    assert first.finish_reason == "tool_calls"
    [call] = first.message.tool_calls
    assert call.function.name == "get_weather"
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages = [*HELLO, first.message.model_dump(exclude_none=True), result]
    again = litellm.completion(**ask | {"messages": messages}, tools=[WEATHER]).choices[0]
    assert again.message.content == PLAIN


def test_the_protocol_of_items(server: Any) -> None:
    reply = litellm.responses(
        model="openai/tiny", input="Hi", api_base=server[1] + "/v1", api_key="any"
    )
    assert reply.output[-1].content[0].text == PLAIN


def test_a_refusal_is_told(ask: Any) -> None:
    with pytest.raises(Exception, match="temperature"):
        litellm.completion(**ask, temperature=9)
