"""Limits at the door: tokens that wait, the predicted wait, and the terms of a request."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from relight.serve.queue import Queue, QueueLimits
from tests.serve.fakes import HELLO, Rig, script
from tests.serve.fakes import rig as bare_rig


def rig(limits: QueueLimits, *, pace: float = 0.0, **options: Any) -> Rig:
    """A server with limits whose engine holds its answers back."""
    rig_ = bare_rig(script("Hello"), **options)
    rig_.client.tokens_per_s = pace
    rig_.client.gate.clear()
    queue = Queue(limits, rig_.session._observer)
    rig_.session._observer = queue
    rig_.server.queues = [queue]
    return rig_


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


def ask(rig_: Rig, count: int, *, length: int = 100, **how: Any) -> list[httpx.Response]:
    """So many requests at once; the answers are let go when all are in or refused."""

    async def run() -> list[httpx.Response]:
        async with rig_.http() as http:
            body = {"prompt": [5] * length, **how.pop("body", {})}
            tasks = [
                asyncio.ensure_future(http.post("/v1/completions", json=body, **how))
                for _ in range(count)
            ]
            await until(lambda: rig_.client.num_running + sum(t.done() for t in tasks) == count)
            rig_.client.gate.set()
            return await asyncio.gather(*tasks)

    return asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_beyond_the_limit_are_refused_by_a_status_even_in_streams(stream: bool) -> None:
    rig_ = rig(QueueLimits(tokens=350))
    answers = ask(rig_, 5, body={"stream": stream})
    assert sorted(r.status_code for r in answers) == [200] * 3 + [429] * 2
    refused = next(r for r in answers if r.status_code == 429)
    assert "400 prompt tokens would wait and the most is 350" in refused.text
    assert rig_.server.queues[0].num_tokens == 0


def test_a_prompt_larger_than_the_limit_is_served_alone() -> None:
    assert ask(rig(QueueLimits(tokens=50)), 1)[0].status_code == 200


def test_a_wait_that_would_be_too_long_is_refused_and_says_when_to_come_back() -> None:
    answers = ask(rig(QueueLimits(wait_s=3), pace=50.0), 4)
    assert sorted(r.status_code for r in answers) == [200, 200, 429, 429]
    refused = next(r for r in answers if r.status_code == 429)
    assert refused.headers["retry-after"] == "4"
    assert "about 4 s and the longest is 3 s" in refused.text


def test_one_too_many_is_told_when_to_come_back_by_the_work_that_waits() -> None:
    """Three prompts of 100 tokens at 50 a second."""
    rig_ = rig(QueueLimits(), pace=50.0, max_open=3)

    async def run() -> httpx.Response:
        async with rig_.http() as http:

            def post() -> "asyncio.Future[httpx.Response]":
                return asyncio.ensure_future(
                    http.post("/v1/completions", json={"prompt": [5] * 100})
                )

            let_in = [post() for _ in range(3)]
            await until(lambda: rig_.client.num_running == 3)
            refused = await post()
            rig_.client.gate.set()
            await asyncio.gather(*let_in)
            return refused

    refused = asyncio.run(run())
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "6")
    assert "3 sequences wait or run and the most is 3" in refused.text


def test_a_wait_beyond_the_deadline_is_refused_at_once() -> None:
    headers = {"x-relight-deadline-ms": "3000"}
    answers = ask(rig(QueueLimits(), pace=50.0), 4, headers=headers)
    assert sorted(r.status_code for r in answers) == [200, 200, 429, 429]


def test_clients_that_leave_no_longer_count() -> None:
    rig_ = rig(QueueLimits(tokens=150))

    async def run() -> None:
        async with rig_.http() as http:
            task = asyncio.ensure_future(
                http.post("/v1/chat/completions", json={"messages": HELLO})
            )
            await until(lambda: rig_.client.num_running == 1)
            assert rig_.server.queues[0].num_tokens > 0
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: rig_.server.queues[0].num_tokens == 0)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("headers", "terms"),
    [
        ({}, (0, 60.0, "127.0.0.1")),
        ({"x-relight-priority": "batch"}, (1, 60.0, "127.0.0.1")),
        ({"x-relight-deadline-ms": "1500"}, (0, 1.5, "127.0.0.1")),
        ({"x-relight-deadline-ms": "90000", "x-relight-client": "me"}, (0, 60.0, "me")),
    ],
)
def test_headers_say_on_what_terms(headers: dict[str, str], terms: tuple[Any, ...]) -> None:
    rig_ = bare_rig(script("x"), timeout_s=60.0)
    response = rig_.post("/v1/completions", {"prompt": "a"}, headers=headers)
    assert response.status_code == 200
    (request,) = rig_.client.requests
    assert (request.priority, request.deadline_s, request.client) == terms


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-relight-priority", "urgent"),
        ("x-relight-deadline-ms", "0"),
        ("x-relight-deadline-ms", "1e3"),
        ("x-relight-deadline-ms", "9" * 30),
        ("x-relight-deadline-ms", "0" * 20 + "1" + "9" * 5000),
        ("x-relight-deadline-ms", "000"),
        ("x-relight-client", "x" * 65),
    ],
)
def test_a_header_that_cannot_be_meant_is_refused_by_name(name: str, value: str) -> None:
    response = bare_rig(script("x")).post("/v1/completions", {"prompt": "a"}, headers={name: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name


def test_an_answer_says_how_long_it_waited_was_read_and_was_made() -> None:
    rig_ = bare_rig(script("Hello"))
    generate = rig_.client.generate

    async def timed(request: Any) -> Any:
        async for delta in generate(request):
            yield msgspec.structs.replace(delta, queue_s=0.25, prefill_s=0.5)

    rig_.client.generate = timed  # type: ignore[method-assign]
    usage = rig_.post("/v1/completions", {"prompt": "a"}).json()["usage"]
    assert usage["timing"].keys() == {"queue_ms", "prefill_ms", "decode_ms"}
    assert (usage["timing"]["queue_ms"], usage["timing"]["prefill_ms"]) == (250.0, 500.0)
    assert usage["timing"]["decode_ms"] >= 0
