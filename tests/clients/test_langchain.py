"""LangChain against a live server, by each of the three protocols."""

import warnings
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest

from relight.base.types import Request
from relight.engine.replay import ReplayClient
from tests.serve.fakes import CALL, EOS, TOKENIZER, WEATHER, live, rig, tokens

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("langchain_openai", reason="see make test-clients")
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

TEXT = "think</think>The answer — π 🙂."
PLAIN = "The answer — π 🙂."


def answer(request: Request) -> list[int]:
    """Tools get a call, their results and everything else an answer."""
    prompt = TOKENIZER.decode(request.prompt)
    calls = "get_weather" in prompt and "<tool_result>sunny" not in prompt
    return tokens(("need it</think>" + CALL if calls else TEXT) + EOS)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    one = rig(ReplayClient(answer))
    with live(one) as url:
        yield one, url


@pytest.fixture(params=["chat", "responses", "messages"])
def model(request: pytest.FixtureRequest, server: Any) -> Any:
    url = server[1]
    if request.param == "messages":
        return ChatAnthropic(model="tiny", base_url=url, api_key="any", max_retries=0)
    return ChatOpenAI(
        model="tiny",
        base_url=url + "/v1",
        api_key="any",
        max_retries=0,
        stream_usage=True,
        use_responses_api=request.param == "responses",
    )


def text_of(message: Any) -> str:
    return message.text if isinstance(message.text, str) else message.text()


def test_a_whole_answer(model: Any) -> None:
    message = model.invoke("Hi")
    assert text_of(message) == PLAIN
    assert message.usage_metadata["output_tokens"] == len(tokens(TEXT + EOS))


def test_a_stream(model: Any) -> None:
    chunks = list(model.stream("Hi"))
    whole: AIMessageChunk = sum(chunks[1:], chunks[0])
    assert text_of(whole) == PLAIN
    assert whole.usage_metadata
    assert whole.usage_metadata["output_tokens"] == len(tokens(TEXT + EOS))


@pytest.mark.parametrize("streamed", [False, True])
def test_tools_and_their_results(model: Any, server: Any, streamed: bool) -> None:
    bound = model.bind_tools([WEATHER])
    ask = HumanMessage("Weather?")
    if streamed:
        chunks = list(bound.stream([ask]))
        first: AIMessage = sum(chunks[1:], chunks[0])
    else:
        first = bound.invoke([ask])
    [call] = first.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    result = ToolMessage("sunny", tool_call_id=call["id"])
    assert text_of(bound.invoke([ask, first, result])) == PLAIN
    prompt = TOKENIZER.decode(server[0].client.requests[-1].prompt)
    assert "<tool_result>sunny</tool_result>" in prompt
    assert 'name="city" string="true">Paris<' in prompt


def test_many_at_once(model: Any) -> None:
    assert [text_of(m) for m in model.batch(["a", "b", "c"])] == [PLAIN] * 3


def test_a_refusal_is_told(model: Any) -> None:
    with pytest.raises(Exception, match="temperature"):
        model.bind(temperature=9).invoke("Hi")


class City(pydantic.BaseModel):
    """A city."""

    name: str
    size: int


FORM = '{"name": "Oslo", "size": 7}'
CALLED = (
    '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="City">\n'
    '<｜DSML｜parameter name="name" string="true">Oslo</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="size" string="false">7</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_a_structure(method: str) -> None:
    """A named tool and a schema, while the model thinks first."""
    text = CALLED if method == "function_calling" else FORM
    one = rig(ReplayClient(lambda _: tokens("hm</think>" + text + EOS)))
    with live(one) as url:
        openai = ChatOpenAI(model="tiny", base_url=url + "/v1", api_key="any", max_retries=0)
        anthropic = ChatAnthropic(model="tiny", base_url=url, api_key="any", max_retries=0)
        for model in (openai, anthropic):
            found = model.with_structured_output(City, method=method).invoke("Hi")
            assert found == City(name="Oslo", size=7)
            assert one.client.requests[-1].constraint is not None
