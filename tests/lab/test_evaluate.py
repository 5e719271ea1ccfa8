"""Scores are what answers deserve, instance by instance, however many are asked at once."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import islice

import msgspec
import pytest

from relight.base.errors import Unavailable
from relight.base.packaged import DEFAULT_MODEL, model_folder
from relight.base.types import Request, TokenDelta
from relight.ember.bars import BARS
from relight.ember.tasks import TASKS, Instance, Output, Task, instances
from relight.ember.words import LANGUAGES
from relight.engine.replay import INFO, ReplayClient
from relight.lab.evaluate import SHARED, Outcome, evaluate
from relight.session import Session
from relight.text.dsml import V4_TAGS, render_calls
from relight.text.prompt import PromptEncoder
from relight.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load(model_folder(DEFAULT_MODEL))
ENCODER = PromptEncoder(TOKENIZER)
SEED = 3


def session(client: ReplayClient) -> Session:
    return Session(client, TOKENIZER, ENCODER)


def engine(answers: dict[tuple[int, ...], list[int]]) -> ReplayClient:
    """Answers a prompt as is written down; a prompt that is not there is an error."""
    info = msgspec.structs.replace(INFO, max_context=8192)
    return ReplayClient(lambda request: answers[request.prompt], info=info, per_delta=7)


def drawn(task: Task, per_language: int) -> list[Instance]:
    def count_tokens(text: str) -> int:
        return len(TOKENIZER.encode_text(text))

    return [
        instance
        for language in LANGUAGES
        for instance in islice(instances(task, language, SEED, count_tokens), per_language)
    ]


def written(output: Output, *, thinking: bool) -> list[int]:
    segments: list[str | int] = []
    if thinking:
        segments += [output.reasoning or "", TOKENIZER.special.think_close]
    segments.append(output.content)
    if output.calls:
        segments += render_calls(output.calls, V4_TAGS, TOKENIZER.special.dsml)
    segments.append(TOKENIZER.special.eos)
    return [id for part in TOKENIZER.encode_segments(segments) for id in part]


def answers(of: Sequence[Instance], wrong: int = 0) -> dict[tuple[int, ...], list[int]]:
    """The canonical answers, but for the first `wrong` instances of each language nothing."""
    seen = dict.fromkeys(LANGUAGES, 0)
    found = {}
    for instance in of:
        seen[instance.language] += 1
        conversation = instance.conversation
        output = Output() if seen[instance.language] <= wrong else instance.canonical
        prompt = ENCODER.encode(conversation).ids
        found[tuple(prompt)] = written(output, thinking=conversation.thinking)
    return found


def run(task: Task, per_language: int, *clients: ReplayClient) -> Outcome:
    return asyncio.run(evaluate([session(c) for c in clients], task, per_language, SEED))


@pytest.mark.parametrize("task", TASKS)
def test_canonical_answers_pass_and_others_do_not(task: Task) -> None:
    of = drawn(task, 5)
    right = run(task, 5, engine(answers(of)))
    assert [count.count for count in right.counts] == [5, 5]
    assert right.score == 100
    assert right.passed
    wrong = run(task, 5, engine(answers(of, wrong=2)))
    assert [count.right for count in wrong.counts] == [3, 3]
    assert wrong.score == pytest.approx(60)
    assert not wrong.passed


def test_engines_share_the_instances_and_each_is_asked_once() -> None:
    of = answers(drawn("arithmetic", 9))
    clients = [engine(of), engine(of)]
    outcome = run("arithmetic", 9, *clients)
    asked = [request.prompt for client in clients for request in client.requests]
    assert sorted(asked) == sorted(of)
    assert all(client.requests for client in clients)
    assert outcome.counts[0].prompt_tokens + outcome.counts[1].prompt_tokens == sum(map(len, asked))


class Watched(ReplayClient):
    """Nobody asks about a document that is being read for another."""

    begun: set[tuple[int, ...]]
    answered: set[tuple[int, ...]]

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        document = request.prompt[:600]
        assert document in self.answered or document not in self.begun
        self.begun.add(document)
        async for delta in super().generate(request):
            if delta.finish:
                self.answered.add(document)
            yield delta


def test_what_shares_a_document_is_asked_when_the_first_has_been_answered() -> None:
    per_language = 2 * SHARED["key 1K"]
    of = answers(drawn("key 1K", per_language))
    client = Watched(lambda request: of[request.prompt])
    client.begun, client.answered = set(), set()
    assert run("key 1K", per_language, client).passed
    assert len(client.begun) == 4


def test_both_languages_must_reach_the_bar() -> None:
    of = drawn("letters", 4)
    told = answers(of)
    for instance in of[:2]:
        told[tuple(ENCODER.encode(instance.conversation).ids)] = [TOKENIZER.special.eos]
    outcome = run("letters", 4, engine(told))
    assert [count.score for count in outcome.counts] == [50, 100]
    assert not outcome.passed


def test_an_engine_that_is_gone_is_told_as_such() -> None:
    client = engine({})
    client.condition = "dead"
    with pytest.raises(Unavailable):
        run("letters", 4, client)


def test_every_task_has_a_bar() -> None:
    assert set(BARS) == set(TASKS)
