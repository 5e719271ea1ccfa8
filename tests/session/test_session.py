"""A request's life without HTTP, over a scripted engine."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from relight.base.errors import BadCheckpoint, BadRequest, StepFailed, TooLong, Unavailable
from relight.base.types import FinishReason, Request, TokenDelta
from relight.engine.replay import INFO, ReplayClient
from relight.session import (
    Answer,
    Finish,
    Job,
    Options,
    Piece,
    SamplingDefaults,
    Session,
    collect,
)
from relight.session.aside import HUGE_CHARACTERS
from relight.session.request import output_limit
from relight.text.conversation import Conversation, Message, Tool
from relight.text.parse import Content
from relight.text.prompt import PromptEncoder
from relight.text.tokenizer import Tokenizer
from tests.serve.fakes import CALL, ENCODER, EOS, TOKENIZER, script, tokens

HELLO = Conversation(messages=(Message("user", "Hi"),))
TOOLS = Conversation(messages=HELLO.messages, tools=(Tool("get_weather"),))


class Notes:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.endings: list[FinishReason] = []

    def delta(self, job: Job, delta: TokenDelta) -> None:
        self.num_tokens += len(delta.tokens)

    def ended(self, job: Job, reason: FinishReason) -> None:
        self.endings.append(reason)


def session(client: ReplayClient, notes: Notes | None = None) -> Session:
    return Session(client, TOKENIZER, ENCODER, observer=notes)


def ask(session: Session, conversation: Conversation, options: Options | None = None) -> Answer:
    async def run() -> Answer:
        return await collect(session.run(await session.chat(conversation, options or Options())))

    return asyncio.run(run())


@pytest.mark.parametrize("per_delta", [1, 2, 5, 100])
def test_pieces_add_up_to_the_same_answer_for_every_split(per_delta: int) -> None:
    text = "why</think>say" + CALL + CALL + EOS
    answer = ask(session(script(text, per_delta=per_delta)), TOOLS)
    assert (answer.reasoning, answer.content) == ("why", "say")
    assert [(call.name, call.arguments) for call in answer.calls] == [
        ("get_weather", '{"city": "Paris"}')
    ] * 2
    assert len({call.id for call in answer.calls}) == 2
    assert answer.finish
    assert answer.finish.reason == "tool_calls"
    assert answer.finish.usage.completion_tokens == len(tokens(text))


def test_finish_is_the_last_piece_and_the_only_one() -> None:
    async def run() -> list[Piece]:
        one = session(script("a</think>b" + EOS))
        return [piece async for piece in one.run(await one.chat(HELLO, Options()))]

    pieces = asyncio.run(run())
    assert [isinstance(piece, Finish) for piece in pieces] == [False] * (len(pieces) - 1) + [True]


@pytest.mark.parametrize(
    ("finish", "error", "ending"),
    [("error", StepFailed, "error"), ("abort", Unavailable, "abort")],
)
def test_an_answer_that_fails_raises_and_is_told(
    finish: FinishReason, error: type[Exception], ending: FinishReason
) -> None:
    notes = Notes()
    with pytest.raises(error):
        ask(session(script("a", finish=finish, error="why"), notes), HELLO)
    assert notes.endings == [ending]


@pytest.mark.parametrize(
    ("text", "options", "ending"),
    [
        ("a" + EOS, Options(), "stop"),
        ("a</think>b STOP c" + EOS, Options(stop=("STOP",)), "stop"),
        ("a b c d", Options(max_tokens=2), "length"),
        ("x</think>" + CALL + EOS, Options(), "stop"),
    ],
)
def test_the_observer_hears_of_every_token_and_one_ending(
    text: str, options: Options, ending: FinishReason
) -> None:
    notes, client = Notes(), script(text)
    answer = ask(session(client, notes), TOOLS, options)
    assert notes.endings == [ending]
    assert answer.finish
    assert notes.num_tokens == answer.finish.usage.completion_tokens == client.num_tokens


def test_a_mistake_of_the_engine_counts_as_an_error() -> None:
    notes = Notes()

    def answer(_: Request) -> list[int]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask(session(ReplayClient(answer), notes), HELLO)
    assert notes.endings == ["error"]


def test_closing_the_pieces_aborts_the_request() -> None:
    notes, client = Notes(), script("</think>" + "a" * 1000)

    async def run() -> None:
        one = session(client, notes)
        async with aclosing(one.run(await one.chat(HELLO, Options()))) as pieces:
            async for piece in pieces:
                if isinstance(piece, Content):
                    break

    asyncio.run(run())
    assert client.aborted == [client.requests[0].id]
    assert client.num_running == 0
    assert notes.endings == ["abort"]


@pytest.mark.parametrize(("asked", "limit"), [(None, 20), (5, 5), (1000, 60)])
def test_the_output_is_cut_to_the_room_that_is_left(asked: int | None, limit: int) -> None:
    assert output_limit(40, asked, 20, 100, param="prompt") == limit
    assert output_limit(99, asked, 20, 100, param="prompt") == 1
    with pytest.raises(TooLong, match="maximum context length is 100 tokens"):
        output_limit(100, asked, 20, 100, param="prompt")


def test_defaults_come_from_the_checkpoint_and_yield_to_the_request(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    assert SamplingDefaults.load(tmp_path) == SamplingDefaults()
    path.write_text('{"temperature": 0.6, "top_p": 0.95, "top_k": null, "eos_token_id": 1}')
    defaults = SamplingDefaults.load(tmp_path)

    async def run() -> None:
        one = Session(script("a"), TOKENIZER, ENCODER, defaults=defaults)
        drawn = (await one.chat(HELLO, Options(temperature=0.0))).request.sampling
        assert (drawn.temperature, drawn.top_p, drawn.top_k, drawn.min_p) == (0.0, 0.95, 0, 0.0)
        drawn = (await one.complete("x", Options())).request.sampling
        assert (drawn.temperature, drawn.max_tokens) == (0.6, 16)

    asyncio.run(run())
    for bad in ("[]", '{"temperature": -1}', '{"top_p": "x"}', "{"):
        path.write_text(bad)
        with pytest.raises(BadCheckpoint, match=r"generation_config\.json"):
            SamplingDefaults.load(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(BadCheckpoint, match="Is a directory"):
        SamplingDefaults.load(tmp_path)


def test_hints_and_salt_reach_the_engine() -> None:
    async def run() -> Job:
        return await session(script("a")).chat(HELLO, Options(cache_salt="s"))

    request = asyncio.run(run()).request
    assert request.record_hints == ENCODER.encode(HELLO).record_hints
    assert request.cache_salt == "s"


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("", Options()),
        ([], Options()),
        ([10**6], Options()),
        ("x", Options(stop_token_ids=(10**6,))),
    ],
)
def test_ids_outside_of_the_vocabulary_and_empty_prompts_are_refused(
    prompt: str | Sequence[int], options: Options
) -> None:
    with pytest.raises(BadRequest):
        asyncio.run(session(script("a")).complete(prompt, options))


class SlowEncoder(PromptEncoder):
    """Encodes only once another coroutine has run."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER)
        self.let_go = threading.Event()

    def encode(self, conversation: Conversation, recall=None):  # type: ignore[no-untyped-def]
        assert self.let_go.wait(10)
        return super().encode(conversation)


def test_encoding_a_long_prompt_lets_other_work_run() -> None:
    encoder = SlowEncoder()
    one = Session(script("a", info=INFO), TOKENIZER, encoder)
    long = Conversation(messages=(Message("user", "x" * 3000),))

    async def run() -> None:
        job = asyncio.ensure_future(one.chat(long, Options()))
        await asyncio.sleep(0)
        encoder.let_go.set()
        await job

    asyncio.run(run())


class HeldTokenizer(Tokenizer):
    """Holds huge texts."""

    def __init__(self) -> None:
        self.__dict__.update(TOKENIZER.__dict__)
        self.let_go = threading.Event()
        self.num_inside = 0

    def encode_raw(self, text: str) -> list[int]:
        if len(text) >= HUGE_CHARACTERS:
            self.num_inside += 1
            assert self.let_go.wait(20)
            return []
        return super().encode_raw(text)


def test_huge_texts_wait_for_each_other_and_no_other_text_for_them() -> None:
    tokenizer = HeldTokenizer()
    one = Session(script("a", info=INFO), tokenizer, PromptEncoder(TOKENIZER))

    async def run() -> None:
        huge = "x" * HUGE_CHARACTERS
        held = [asyncio.ensure_future(one.encode_raw(huge)) for _ in range(100)]
        for long in range(3000, 3010):
            assert await asyncio.wait_for(one.encode_raw("x" * long), 20)
        assert tokenizer.num_inside == 1
        for late in held[50:]:  # whoever goes away while it waits costs nothing
            late.cancel()
        await asyncio.gather(*held[50:], return_exceptions=True)
        tokenizer.let_go.set()
        await asyncio.gather(*held[:50])
        assert tokenizer.num_inside == 50

    asyncio.run(run())


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded() -> None:
    longest = max(len(TOKENIZER.token_bytes(token)) for token in range(TOKENIZER.vocab_size))
    limit = longest * INFO.max_context  # characters, were each token the longest one
    one = Session(script("a", info=INFO), TOKENIZER, SlowEncoder())  # which would wait for us
    for messages in ([limit], [limit // 2, limit - limit // 2]):
        asked = Conversation(messages=tuple(Message("user", "x" * size) for size in messages))
        with pytest.raises(TooLong, match=f"{INFO.max_context + 3} tokens") as told:
            asyncio.run(one.chat(asked, Options(max_tokens=3)))
        assert told.value.param == "messages"
    with pytest.raises(TooLong, match=f"{INFO.max_context} in the prompt"):
        asyncio.run(one.complete("x" * limit, Options()))
