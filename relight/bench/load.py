"""Sends the requests of a run: closed users and open arrivals side by side, and watches its own
lateness. Knows no figures."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import msgspec

from relight.bench.client import LEAD_S, Client, Prompt
from relight.bench.prompts import schedule
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


async def send(
    client: Client, scenario: Scenario, prompts: Sequence[Prompt], seen: Seen
) -> tuple[list[Record], Lag]:
    """All requests of the scenario, ended one way or another, in the order of their ends."""
    records: list[Record] = []

    def keep(record: Record) -> None:
        records.append(record)
        seen(record)

    lag = Lag()
    watcher = asyncio.create_task(lag.watch())
    begin = client.now()
    try:
        async with asyncio.TaskGroup() as group:
            for one in scenario.classes:
                own = [prompt for prompt in prompts if prompt.kind == one.name]
                for user in _users(client, scenario, one, own, begin, keep):
                    group.create_task(user)
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
    return records, lag


def _users(
    client: Client,
    scenario: Scenario,
    one: Class,
    prompts: Sequence[Prompt],
    begin: float,
    keep: Seen,
) -> Iterator[Coroutine[Any, Any, None]]:
    if one.users:
        queue = iter(prompts)
        for _ in range(one.users):
            yield _closed(client, one, queue, begin + one.start_s, keep)
    else:
        for prompt, due in zip(prompts, schedule(one, scenario.seed), strict=True):
            yield _open(client, prompt, begin + due, keep)


async def _closed(
    client: Client, one: Class, queue: Iterator[Prompt], start: float, keep: Seen
) -> None:
    """One user: asks, waits for the end, thinks, asks again. A server that refuses at once would be
    asked as fast as the loop turns, so a failure costs a tenth of a second."""
    if not await client.until(start):
        return
    for prompt in queue:
        record = await client.ask(prompt)
        keep(record)
        refused = record.failure in ("refused", "unreachable")
        if not await client.until(client.now() + max(one.think_s, 0.1 if refused else 0.0)):
            return


async def _open(client: Client, prompt: Prompt, due: float, keep: Seen) -> None:
    if await client.until(due - LEAD_S):
        keep(await client.ask(prompt, due))
