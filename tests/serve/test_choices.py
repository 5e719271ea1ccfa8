"""Several answers to one prompt: their order, what they share, and what they cost."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from relight.base.types import Logprobs, Request
from relight.engine.replay import ReplayClient
from relight.session import Options, together
from tests.serve.fakes import EOS, Rig, events, joined, rig, tokens

OFF = {"thinking": {"type": "disabled"}}
TEXTS = ["zero 🙂", "one, longer than the others", "two"]


def answer(request: Request) -> list[int]:
    return tokens(TEXTS[request.sampling.choice] + EOS)


def three(**how: Any) -> Rig:
    return rig(ReplayClient(answer, **how))


@pytest.mark.parametrize("per_delta", [1, 4, 100])
def test_choices_of_a_conversation_are_told_by_index(per_delta: int) -> None:
    body = three(per_delta=per_delta, num_cached=2).chat(n=3, **OFF).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in body["choices"]] == TEXTS
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop"] * 3
    one = three(per_delta=per_delta, num_cached=2).chat(**OFF).json()
    assert one["choices"] == body["choices"][:1]
    usage = body["usage"]
    assert usage["prompt_tokens"] == one["usage"]["prompt_tokens"], "the prompt counts once"
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}
    assert usage["completion_tokens"] == sum(len(tokens(text + EOS)) for text in TEXTS)


@pytest.mark.parametrize("per_delta", [1, 4, 100])
def test_a_stream_of_choices_adds_up_to_the_whole_answers(per_delta: int) -> None:
    ask = {"n": 3, "stream_options": {"include_usage": True}, "stream": True, **OFF}
    chunks = events(three(per_delta=per_delta).chat(**ask))
    first = [chunk["choices"][0] for chunk in chunks[:3]]
    assert [choice["index"] for choice in first] == [0, 1, 2]
    assert all(choice["delta"] == {"role": "assistant", "content": ""} for choice in first)
    order = [chunk["choices"][0]["index"] for chunk in chunks[3:-2]]
    for index, text in enumerate(TEXTS):
        own = [c for c in chunks[:-2] if c["choices"][0]["index"] == index]
        assert joined(own) == {"content": text}
        assert own[-1]["choices"][0]["finish_reason"] == "stop"
    if per_delta == 1:
        assert order != sorted(order), "they run side by side"
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"] == three(per_delta=per_delta).chat(n=3, **OFF).json()["usage"]
    assert chunks[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [True, False])
def test_choices_of_several_raw_prompts_stand_behind_each_other(stream: bool) -> None:
    ask = {"n": 2, "max_tokens": 99, "stream": stream}
    response = three().complete([[70], [71, 72]], **ask)
    texts = ["", "", "", ""]
    bodies = events(response)[:-1] if stream else [response.json()]
    for body in bodies:
        for choice in body["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == TEXTS[:2] * 2
    if not stream:
        assert bodies[0]["usage"]["prompt_tokens"] == 3


def test_the_choices_of_a_request_differ_in_their_number_only() -> None:
    one = three()
    one.chat(n=3, temperature=0.5, seed=9)
    asked = [request.sampling for request in one.client.requests]
    assert sorted(sampling.choice for sampling in asked) == [0, 1, 2]
    assert {(sampling.seed, sampling.temperature) for sampling in asked} == {(9, 0.5)}
    assert len({request.id for request in one.client.requests}) == 3
    assert len({request.prompt for request in one.client.requests}) == 1
    one.client.requests.clear()
    one.chat(n=3)
    assert len({request.sampling.seed for request in one.client.requests}) == 1, "one is drawn"


@pytest.mark.parametrize(("length", "first"), [(129, 1), (128, 3)])
def test_later_choices_start_when_the_first_has_read_a_prompt_worth_sharing(
    length: int, first: int
) -> None:
    """A prompt of one page at most shares nothing."""
    one = three()
    one.client.gate.clear()

    async def run() -> int:
        async with one.http() as http:
            body = {"prompt": [70] * length, "n": 3, "max_tokens": 99}
            task = asyncio.ensure_future(http.post("/v1/completions", json=body))
            while not one.client.num_running:
                await asyncio.sleep(0)
            for _ in range(50):
                await asyncio.sleep(0)
            waiting = len(one.client.requests)
            one.client.gate.set()
            response = await task
            assert [c["text"] for c in response.json()["choices"]] == TEXTS
            return waiting

    assert asyncio.run(run()) == first
    assert len(one.client.requests) == 3


def test_choices_count_against_the_room_for_sequences() -> None:
    one = rig(ReplayClient(answer), max_open=3)
    assert one.chat(n=3).status_code == 200
    with one.server.admit():
        refused = one.complete(["a"], n=3)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    for never in (one.complete(["a", "b"], n=2), one.chat(n=4)):  # not even later
        assert never.status_code == 400
        assert never.json()["error"]["param"] == "n"
    assert one.server.num_open == 0


@pytest.mark.parametrize("stream", [True, False])
def test_one_choice_that_fails_ends_the_others(stream: bool) -> None:
    def breaks(request: Request) -> list[int]:
        if request.sampling.choice == 1:
            raise ZeroDivisionError
        return [70] * 1000

    one = rig(ReplayClient(breaks))
    response = one.chat(n=3, stream=stream, max_tokens=1000)
    assert "internal_error" in response.text
    assert response.status_code == (200 if stream else 500)
    assert one.client.num_running == one.server.num_open == 0


def test_all_choices_end_when_nobody_listens_any_more() -> None:
    one = rig(ReplayClient(lambda _: [70] * 1000))

    async def run() -> None:
        job = await one.session.complete([70] * 5, Options(n=3, max_tokens=1000))
        pieces = together(one.session, one.session.choices(job))
        seen = set()
        async with aclosing(pieces):
            async for index, _ in pieces:
                seen.add(index)
                if len(seen) == 3:
                    break

    asyncio.run(run())
    assert one.client.num_running == 0
    assert sorted(one.client.aborted) == sorted(request.id for request in one.client.requests)


def test_each_choice_has_log_probabilities_of_its_own() -> None:
    def scored() -> Rig:
        return rig(ReplayClient(answer, score=lambda token: Logprobs(-token / 64)))

    ask = {"n": 3, "logprobs": True, **OFF}
    whole = scored().chat(**ask).json()["choices"]
    for choice, text in zip(whole, TEXTS, strict=True):
        found = [item["logprob"] for item in choice["logprobs"]["content"]]
        assert found == [-token / 64 for token in tokens(text)]
    streamed: list[list[float]] = [[], [], []]
    for chunk in events(scored().chat(stream=True, **ask))[:-1]:
        for choice in chunk["choices"]:
            content = choice.get("logprobs", {}).get("content", [])
            streamed[choice["index"]] += [item["logprob"] for item in content]
    assert streamed == [[-token / 64 for token in tokens(text)] for text in TEXTS]
