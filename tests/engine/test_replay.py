import asyncio

import pytest

from relight.base.errors import TooLong, Unavailable
from relight.base.types import Request, SamplingParams, TokenDelta
from relight.engine.client import EngineClient
from relight.engine.replay import ReplayClient


def request(max_tokens: int = 10, stop: tuple[int, ...] = ()) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop)
    return Request(id="r", prompt=(1, 2), sampling=sampling)


async def collect(client: EngineClient, request: Request) -> list[TokenDelta]:
    return [delta async for delta in client.generate(request)]


@pytest.mark.parametrize(
    ("max_tokens", "stop", "tokens", "finish"),
    [(10, (), (1, 2, 3, 4), "error"), (3, (), (1, 2, 3), "length"), (3, (2,), (1, 2), "stop")],
)
def test_an_answer_ends_as_an_engine_would_end_it(
    max_tokens: int, stop: tuple[int, ...], tokens: tuple[int, ...], finish: str
) -> None:
    client = ReplayClient(lambda _: [1, 2, 3, 4], per_delta=3, finish="error", error="why")
    deltas = asyncio.run(collect(client, request(max_tokens, stop)))
    assert sum((delta.tokens for delta in deltas), ()) == tokens
    assert [delta.finish for delta in deltas] == [None] * (len(deltas) - 1) + [finish]
    assert deltas[-1].error == ("why" if finish == "error" else None)


def test_closing_the_iterator_is_an_abort() -> None:
    async def run() -> None:
        client = ReplayClient(lambda _: [1, 2, 3])
        answer = client.generate(request())
        assert (await anext(answer)).tokens == (1,)
        assert client.state() == "busy"
        await answer.aclose()
        assert client.aborted == ["r"]
        assert client.state() == "idle"

    asyncio.run(run())


def test_a_refusal_and_a_dead_engine_come_out_as_errors() -> None:
    def refuse(request: Request) -> list[int]:
        raise TooLong("prompt is 2 tokens; this server holds 1 (--max-context)")

    client = ReplayClient(refuse)
    with pytest.raises(TooLong):
        asyncio.run(collect(client, request()))
    client.condition = "dead"
    with pytest.raises(Unavailable):
        asyncio.run(collect(client, request()))
