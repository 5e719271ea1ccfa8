"""The official client of Anthropic against a live server on a loopback port."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pydantic
import pytest

from relight.base.types import Request
from relight.engine.replay import ReplayClient
from tests.serve.fakes import CALL, EOS, HELLO, TOKENIZER, WEATHER, Rig, live, rig, tokens

TEXT = "think</think>The answer — π 🙂."
TOOL: Any = {
    "name": "get_weather",
    "description": "Weather now",
    "input_schema": WEATHER["function"]["parameters"],
}
ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 500, "messages": HELLO}


def answer(request: Request) -> list[int]:
    """Tools in the prompt get a call, everything else an answer."""
    calls = TOKENIZER.special.dsml in request.prompt
    return tokens(("need it</think>" + CALL if calls else TEXT) + EOS)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Rig, str]]:
    one = rig(ReplayClient(answer))
    with live(one) as url:
        yield one, url


@pytest.fixture
def client(served: tuple[Rig, str]) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served[1], api_key="any", max_retries=0) as one:
        yield one


def test_a_whole_answer(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ASK)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking == "think"  # type: ignore[union-attr]
    assert message.content[1].text == "The answer — π 🙂."  # type: ignore[union-attr]
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens == len(tokens(TEXT + EOS))
    assert message.usage.cache_read_input_tokens == 0


def test_a_stream_is_the_whole_answer(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**ASK)
    with client.messages.stream(**ASK) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "The answer — π 🙂."
    first, second = final.content
    assert first == whole.content[0]
    assert second.text == whole.content[1].text  # type: ignore[union-attr]
    assert (final.stop_reason, final.usage) == (whole.stop_reason, whole.usage)
    kinds = [event.type for event in client.messages.create(**ASK, stream=True)]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"


def test_usage_is_the_same_streamed_or_not_and_adds_up_to_the_prompt() -> None:
    """What was found in the cache is not known when a stream starts: there the whole prompt counts
    as input, and the totals that its end tells take their place."""
    one = rig(ReplayClient(answer, num_cached=3))
    with live(one) as url, anthropic.Anthropic(base_url=url, api_key="x") as client:
        whole = client.messages.create(**ASK).usage
        with client.messages.stream(**ASK) as stream:
            first, *_ = events = list(stream)
            final = stream.get_final_message().usage
    assert first.type == "message_start"
    assert final == whole
    assert whole.cache_read_input_tokens == 3
    told = (first.message.usage, final, next(e.usage for e in events if e.type == "message_delta"))
    for usage in told:
        found = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
        assert (usage.input_tokens or 0) + found == len(one.client.requests[0].prompt)


def test_tools_and_their_results(client: anthropic.Anthropic, served: tuple[Rig, str]) -> None:
    with client.messages.stream(**ASK, tools=[TOOL]) as stream:
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use"
    call = first.content[-1]
    assert call.type == "tool_use"
    assert call.input == {"city": "Paris"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    messages: Any = [
        *HELLO,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    again = client.messages.create(**ASK | {"messages": messages}, tools=[TOOL])
    assert again.stop_reason == "tool_use"
    prompt = TOKENIZER.decode(served[0].client.requests[-1].prompt)
    assert "<think>need it</think>" in prompt
    assert "<tool_result>sunny</tool_result>" in prompt


def test_thinking_and_effort(client: anthropic.Anthropic, served: tuple[Rig, str]) -> None:
    client.messages.create(**ASK, thinking={"type": "disabled"})
    off = served[0].client.requests[-1].prompt
    client.messages.create(**ASK, thinking={"type": "adaptive"})
    on = served[0].client.requests[-1].prompt
    special = TOKENIZER.special
    assert (off[-1], on[-1]) == (special.think_close, special.think_open)


class City(pydantic.BaseModel):
    name: str
    size: int


def test_an_answer_that_is_parsed() -> None:
    one = rig(ReplayClient(lambda _: tokens('hm</think>{"name": "Oslo", "size": 7}' + EOS)))
    with live(one) as url, anthropic.Anthropic(base_url=url, api_key="x") as client:
        message = client.messages.parse(**ASK, output_format=City)
    assert message.parsed_output == City(name="Oslo", size=7)
    assert one.client.requests[0].constraint is not None


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    count = client.messages.count_tokens(model="tiny", messages=HELLO, tools=[TOOL])  # type: ignore
    whole = client.messages.create(**ASK, tools=[TOOL])
    assert count.input_tokens == whole.usage.input_tokens


def test_errors_have_their_classes(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**ASK | {"model": "gpt"})
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: "):
        client.messages.create(**ASK, system="a b " * 4096)
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(**ASK, extra_body={"temperature": 9})


def test_an_error_in_a_stream_reaches_the_caller() -> None:
    broken = rig(ReplayClient(lambda _: tokens("a b c"), finish="error", error="broken"))
    with live(broken) as url, anthropic.Anthropic(base_url=url, api_key="x") as client:
        stream = client.messages.create(**ASK, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="broken"):
            list(stream)
