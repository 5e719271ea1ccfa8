"""Structured output as the official client asks for it: schemas of pydantic models, strict, as
formats and as tools. The engine obeys the constraint that it is told, and draws at random."""

import random
from collections.abc import Iterator
from enum import Enum

import openai
import pydantic
import pytest

from relight.base.types import Request
from relight.engine.replay import ReplayClient
from relight.text.grammar import Vocabulary
from tests.serve.fakes import HELLO, TOKENIZER, live, rig, tokens
from tests.text.constrained import babble

WORDS = Vocabulary(TOKENIZER)
CALM = {"thinking": {"type": "disabled"}}


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Item(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=1, max_length=8)
    count: int = pydantic.Field(ge=0, le=99)
    colour: Colour | None
    nested: "list[Item]"


class Order(pydantic.BaseModel):
    """An order of items."""

    items: list[Item]
    paid: bool
    how: str | int


def obey(request: Request) -> list[int]:
    """Tokens that the constraint allows, till they come to an end."""
    constraint = request.constraint
    assert constraint is not None
    rng = random.Random(request.sampling.seed)
    for _ in range(50):
        made, ended = babble(TOKENIZER, WORDS, constraint, rng)
        if ended:
            head = [] if constraint.after is None else tokens("hm</think>")
            return [*head, *made, TOKENIZER.special.eos]
    raise AssertionError("no answer comes to its end")


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with (
        live(rig(ReplayClient(obey))) as url,
        openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0) as one,
    ):
        yield one


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_an_answer_is_parsed(client: openai.OpenAI, seed: int, thinking: bool) -> None:
    reply = client.chat.completions.parse(
        model="tiny",
        messages=HELLO,
        response_format=Order,
        seed=seed,
        extra_body={} if thinking else CALM,
    )
    assert isinstance(reply.choices[0].message.parsed, Order)


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_forced_call_is_parsed(client: openai.OpenAI, seed: int, thinking: bool) -> None:
    reply = client.chat.completions.parse(
        model="tiny",
        messages=HELLO,
        tools=[openai.pydantic_function_tool(Order), openai.pydantic_function_tool(Item)],
        tool_choice="required",
        seed=seed,
        extra_body={} if thinking else CALM,
    )
    calls = reply.choices[0].message.tool_calls
    assert calls
    for call in calls:
        assert isinstance(call.function.parsed_arguments, Order | Item)


def test_a_stream_is_parsed(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=HELLO, response_format=Order, seed=7, extra_body=CALM
    ) as stream:
        for _ in stream:
            pass
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(parsed, Order)
    reply = client.responses.parse(model="tiny", input="Hi", text_format=Order)
    assert isinstance(reply.output_parsed, Order)
