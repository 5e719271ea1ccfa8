"""Measures a model by ember's tasks: held-out instances through sessions, greedily, many at once.
Knows no torch and no HTTP; engines are processes, as those of a server."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice

import msgspec

from relight.base.settings import Settings
from relight.ember.bars import BARS
from relight.ember.tasks import (
    KEYS_PER_DOCUMENT,
    REQUESTS_PER_TOOLBOX,
    Instance,
    Task,
    instances,
    is_right,
)
from relight.ember.words import LANGUAGES, Language
from relight.engine.client import WORKER, ProcessClient
from relight.session import Answer, Options, Session, collect

GREEDY = Options(temperature=0.0, max_tokens=192)
"""The longest right answers have about half as many tokens."""

OPEN_ANSWERS = 128
"""Requests that an engine has at once: the more rows a step has, the less each costs."""

STEP_TOKENS = 512
"""Of prompts in one step: what longer chunks leave behind no longer fits a processor's cache."""

SHARED: dict[Task, int] = {
    "tool call": REQUESTS_PER_TOOLBOX,
    "tool result": REQUESTS_PER_TOOLBOX,
    "key 1K": KEYS_PER_DOCUMENT,
    "key 4K": KEYS_PER_DOCUMENT,
}
"""Instances that follow each other with one toolbox or document, each asking for something else."""

Told = Callable[[Task, bool], None]
"""Is told of each answer: its task, and whether it is right."""


class Count(msgspec.Struct, frozen=True):
    """Instances of one language and how many were answered right. Tokens are those of prompts, of
    them those that were reused, and those of answers."""

    language: Language
    right: int
    count: int
    prompt_tokens: int
    cached_tokens: int
    made_tokens: int

    @property
    def score(self) -> float:
        """Percent."""
        return 100 * self.right / max(self.count, 1)


class Outcome(msgspec.Struct, frozen=True):
    """One task."""

    task: Task
    seconds: float
    counts: tuple[Count, ...]

    @property
    def bar(self) -> float:
        return BARS[self.task]

    @property
    def passed(self) -> bool:
        return all(count.score >= self.bar for count in self.counts)

    @property
    def score(self) -> float:
        """Percent over all languages."""
        right = sum(count.right for count in self.counts)
        return 100 * right / max(sum(count.count for count in self.counts), 1)


@dataclass(frozen=True, slots=True)
class _Judged:
    language: Language
    right: bool
    answer: Answer


@asynccontextmanager
async def engines(
    settings: Settings, count: int, command: Sequence[str] = WORKER
) -> AsyncIterator[list[Session]]:
    """Sessions on `count` engines of one model, each a process. Raises what loading raises."""
    settings = msgspec.structs.replace(
        settings,
        num_slots=OPEN_ANSWERS,
        max_step_tokens=STEP_TOKENS,
        step_target=0,
        threads=settings.threads or (1 if count > 1 else 0),
        log_level="warning",
    )
    clients = [ProcessClient(settings, command=command) for _ in range(count)]
    started = []
    try:
        for client in clients:
            await client.start()
            started.append(client)
        await asyncio.gather(*(client.ready() for client in clients))
        yield [Session.open(settings, client) for client in clients]
    finally:
        await asyncio.gather(*(client.aclose() for client in started))


async def evaluate(
    sessions: Sequence[Session],
    task: Task,
    per_language: int,
    seed: int,
    told: Told = lambda task, right: None,
) -> Outcome:
    """Draws `per_language` held-out instances in each language and has them answered by all
    sessions."""
    begun = time.monotonic()
    groups = _groups(task, per_language, seed, sessions[0])
    judged: list[_Judged] = []

    async def answer(session: Session, instance: Instance) -> None:
        job = await session.chat(instance.conversation, GREEDY)
        found = await collect(session.run(job))
        calls = [(call.name, call.arguments) for call in found.calls]
        right = is_right(instance, found.content, calls)
        judged.append(_Judged(instance.language, right, found))
        told(task, right)

    async def work(session: Session) -> None:
        for first, *others in groups:
            await answer(session, first)  # leaves what all share where the others find it
            await asyncio.gather(*(answer(session, other) for other in others))

    # In a lane one request or all others of its group are open: half a group on average.
    lanes = OPEN_ANSWERS * min(2, SHARED.get(task, 1)) // SHARED.get(task, 1)
    try:
        async with asyncio.TaskGroup() as running:
            for _ in range(lanes):
                for session in sessions:  # in turn, so that a few groups go to all of them
                    running.create_task(work(session))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    counts = tuple(_count(language, judged) for language in LANGUAGES)
    return Outcome(task, time.monotonic() - begun, counts)


def _groups(
    task: Task, per_language: int, seed: int, session: Session
) -> Iterator[tuple[Instance, ...]]:
    """Instances that share a long prefix."""

    def count_tokens(text: str) -> int:
        return len(session.tokenizer.encode_text(text))

    for language in LANGUAGES:
        drawn = islice(instances(task, language, seed, count_tokens), per_language)
        while group := tuple(islice(drawn, SHARED.get(task, 1))):
            yield group


def _count(language: Language, judged: Sequence[_Judged]) -> Count:
    own = [one for one in judged if one.language == language]
    usages = [one.answer.finish.usage for one in own if one.answer.finish]
    return Count(
        language,
        right=sum(one.right for one in own),
        count=len(own),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        made_tokens=sum(usage.completion_tokens for usage in usages),
    )
