"""The official client of OpenAI, by the protocol of items, against a live server."""

from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from relight.base.types import Request
from relight.engine.replay import ReplayClient
from tests.serve.fakes import CALL, EOS, TOKENIZER, WEATHER, Rig, live, rig, tokens

TEXT = "think</think>The answer — π 🙂."
TOOL: Any = {"type": "function", **WEATHER["function"], "strict": False}
ASK: dict[str, Any] = {"model": "tiny", "input": "Hi"}


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
def client(served: tuple[Rig, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served[1] + "/v1", api_key="any", max_retries=0) as one:
        yield one


def test_a_whole_answer(client: openai.OpenAI) -> None:
    response = client.responses.create(**ASK)
    assert response.output_text == "The answer — π 🙂."
    assert response.status == "completed"
    assert response.output[0].type == "reasoning"
    assert response.output[0].content[0].text == "think"  # type: ignore[index]
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == len(tokens("think"))


def test_a_stream_is_the_whole_answer(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASK)
    with client.responses.stream(**ASK) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert final.output_text == whole.output_text
    assert final.usage == whole.usage
    events = list(client.responses.create(**ASK, stream=True))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == (
        "The answer — π 🙂."
    )


@pytest.mark.parametrize("sealed", [False, True])
def test_tools_and_their_results(
    client: openai.OpenAI, served: tuple[Rig, str], sealed: bool
) -> None:
    ask = ASK | {"tools": [TOOL], "include": ["reasoning.encrypted_content"], "store": False}
    with client.responses.stream(**ask) as stream:
        first = stream.get_final_response()
    call = first.output[-1]
    assert call.type == "function_call"
    assert call.arguments == '{"city": "Paris"}'
    items: Any = [item.to_dict() for item in first.output]
    if sealed:
        del items[0]["content"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    again = client.responses.create(
        **ask | {"input": [{"role": "user", "content": "Hi"}, *items, output]}
    )
    assert again.output[-1].type == "function_call"
    prompt = TOKENIZER.decode(served[0].client.requests[-1].prompt)
    assert "<think>need it</think>" in prompt
    assert "<tool_result>sunny</tool_result>" in prompt


def test_log_probabilities(client: openai.OpenAI) -> None:
    ask = ASK | {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    part: Any = client.responses.create(**ask).output[-1].content[0]  # type: ignore[union-attr]
    assert b"".join(bytes(token.bytes) for token in part.logprobs).decode() == part.text
    with client.responses.stream(**ask) as stream:
        events: list[Any] = list(stream)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    told = [token.token for event in deltas for token in event.logprobs]
    assert told == [token.token for token in part.logprobs]
    assert events[-1].response.output[-1].content[0].logprobs == part.logprobs


class City(pydantic.BaseModel):
    name: str
    size: int


def test_an_answer_that_is_parsed() -> None:
    one = rig(ReplayClient(lambda _: tokens('hm</think>{"name": "Oslo", "size": 7}' + EOS)))
    with live(one) as url, openai.OpenAI(base_url=url + "/v1", api_key="x") as client:
        response = client.responses.parse(**ASK, text_format=City)
    assert response.output_parsed == City(name="Oslo", size=7)
    assert one.client.requests[0].constraint is not None


def test_errors_have_their_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**ASK | {"model": "gpt"})
    with pytest.raises(openai.BadRequestError) as stored:
        client.responses.create(**ASK, previous_response_id="resp_1")
    assert stored.value.code == "unsupported_parameter"
    assert stored.value.param == "previous_response_id"


def test_an_error_in_a_stream_reaches_the_caller() -> None:
    broken = rig(ReplayClient(lambda _: tokens("a b c"), finish="error", error="broken"))
    with live(broken) as url, openai.OpenAI(base_url=url + "/v1", api_key="x") as client:
        last = list(client.responses.create(**ASK, stream=True))[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.message == "broken"
