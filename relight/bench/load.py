"""Sends the requests of a run: closed users, conversations and open arrivals side by side, and
watches its own lateness. Knows no figures."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from relight.bench.client import LEAD_S, Client
from relight.bench.conversation import after
from relight.bench.prompts import Prompt
from relight.bench.record import Record
from relight.bench.scenario import Class, Scenario

TICK_S = 0.01
Seen = Callable[[Record], None]


class Lag(msgspec.Struct):
    """How late the loop woke this task up, tick by tick, and the processor time used meanwhile."""

    late_s: list[float] = []
    cpu_s: float = 0.0
    wall_s: float = 0.0

    async def watch(self) -> None:
        """Until cancelled."""
        cpu, wall = time.process_time(), time.perf_counter()
        try:
            while True:
                due = time.perf_counter() + TICK_S
                await asyncio.sleep(TICK_S)
                self.late_s.append(max(0.0, time.perf_counter() - due))
        finally:
            self.cpu_s = time.process_time() - cpu
            self.wall_s = time.perf_counter() - wall


class Share(msgspec.Struct, frozen=True):
    """What one client process sends: its users of each class, and its prompts."""

    classes: list[Class]
    prompts: list[Prompt]
    seconds: float = 0.0
    until: str = ""


def split(scenario: Scenario, prompts: Sequence[Prompt], clients: int) -> list[Share]:
    """Users and prompts dealt out in turn; a conversation stays whole. A process without users of a
    class has none of its prompts."""
    dealt: list[list[Prompt]] = [[] for _ in range(clients)]
    users: list[list[Class]] = [[] for _ in range(clients)]
    for one in scenario.classes:
        hands = min(clients, one.users) if one.users else clients
        for number in range(hands):
            own = len(range(number, one.users, hands))
            users[number].append(msgspec.structs.replace(one, users=own) if one.users else one)
        for number, conversation in enumerate(conversations(prompts, one)):
            dealt[number % hands] += conversation
    return [
        Share(classes, own, scenario.seconds, scenario.until)
        for classes, own in zip(users, dealt, strict=True)
        if own
    ]


def conversations(prompts: Sequence[Prompt], one: Class) -> list[list[Prompt]]:
    """The prompts of a class; those of a session are together and in order."""
    own = [prompt for prompt in prompts if prompt.kind == one.name]
    if one.sessions is None:
        return [[prompt] for prompt in own]
    return [list(turns) for _, turns in groupby(own, key=lambda prompt: prompt.session)]


async def send(client: Client, share: Share, begin: float, seen: Seen) -> tuple[list[Record], Lag]:
    """All requests of the share, ended one way or another, in the order of their ends; none is
    begun after its seconds, or after the last of the class that it goes on until."""
    records: list[Record] = []
    awaited = sum(prompt.kind == share.until for prompt in share.prompts)

    def keep(record: Record) -> None:
        nonlocal awaited
        records.append(record)
        seen(record)
        if record.kind == share.until:
            awaited -= 1
            if awaited == 0:
                client.hush()

    lag = Lag()
    watcher = asyncio.create_task(lag.watch())
    bell = None
    if share.seconds:
        late = begin + share.seconds - client.now()
        bell = asyncio.get_running_loop().call_later(late, client.hush)
    try:
        async with asyncio.TaskGroup() as group:
            for one in share.classes:
                talks = conversations(share.prompts, one)
                for user in _users(client, one, talks, begin, keep):
                    group.create_task(user)
    finally:
        if bell is not None:
            bell.cancel()
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
    return records, lag


def _users(
    client: Client,
    one: Class,
    talks: Sequence[list[Prompt]],
    begin: float,
    keep: Seen,
) -> Iterator[Coroutine[Any, Any, None]]:
    if one.users:
        queue = iter(talks)
        for _ in range(one.users):
            yield _closed(client, one, queue, begin + one.start_s, keep)
    else:
        for (prompt,) in talks:
            assert prompt.due is not None
            yield _open(client, prompt, begin + prompt.due, keep)


async def _closed(
    client: Client,
    one: Class,
    queue: Iterator[list[Prompt]],
    start: float,
    keep: Seen,
) -> None:
    """One user: asks, waits for the end, thinks, asks again. A server that refuses at once would be
    asked as fast as the loop turns, so a failure costs a tenth of a second."""
    if not await client.until(start):
        return
    for turns in queue:
        prompt: Prompt | None = None
        text = ""
        for turn in turns:
            prompt = turn if prompt is None else after(prompt, text, turn)
            if not await client.until(client.now() + prompt.delay_s):
                return
            record, text = await client.answer(prompt)
            keep(record)
            refused = record.failure in ("refused", "unreachable")
            if not await client.until(client.now() + max(one.think_s, 0.1 if refused else 0.0)):
                return
            if not record.ok:
                break  # the rest of a conversation hangs on this answer


async def _open(client: Client, prompt: Prompt, due: float, keep: Seen) -> None:
    if await client.until(due - LEAD_S):
        keep(await client.ask(prompt, due))
