"""Sends the load from several client processes, so that no one loop is the bottleneck. Knows no
figures; what a process does is in `worker`."""

import asyncio
import signal
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from relight.base.errors import Unavailable
from relight.bench.client import Client
from relight.bench.load import Lag, Seen, Share
from relight.bench.record import Record
from relight.bench.worker import Done, Order, Ready, frame
from relight.bench.worker import Seen as Told

START_S = 30.0
LEAD_S = 0.1
"""Between the word to begin and the beginning: every process has read it by then."""


class Crew:
    """`send` once; `stop` from a signal handler ends it early."""

    def __init__(self) -> None:
        self._processes: list[asyncio.subprocess.Process] = []

    def stop(self) -> None:
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()

    async def send(
        self, client: Client, settings: dict[str, Any], shares: Sequence[Share], seen: Seen
    ) -> tuple[list[Record], list[Lag]]:
        """Raises Unavailable when a process dies."""
        try:
            for share in shares:
                await self._start(client, settings, share)
            begin = client.now() + LEAD_S
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.write(frame(begin))
            told = await asyncio.gather(*(_hear(p, seen) for p in self._processes))
        finally:
            await self._end()
        return [r for done in told for r in done.records], [done.lag for done in told]

    async def _start(self, client: Client, settings: dict[str, Any], share: Share) -> None:
        # Its own process group: a Ctrl-C is for the parent, which then closes the pipes.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "relight.bench.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._processes.append(process)
        order = Order(
            to=client.to, model=client.model, started=client.started, share=share, **settings
        )
        assert process.stdin is not None
        process.stdin.write(frame(order))
        try:
            async with asyncio.timeout(START_S):
                ready = await _next(process)
        except TimeoutError as problem:
            raise Unavailable(
                f"a client process was not ready within {START_S:.0f} s; this machine is too busy "
                "to measure from"
            ) from problem
        assert isinstance(ready, Ready)

    async def _end(self) -> None:
        self.stop()
        for process in self._processes:
            if process.returncode is None:
                try:
                    async with asyncio.timeout(5.0):
                        await process.wait()
                except TimeoutError:
                    process.send_signal(signal.SIGKILL)
                    await process.wait()


async def _hear(process: asyncio.subprocess.Process, seen: Seen) -> Done:
    while True:
        told = await _next(process)
        if isinstance(told, Done):
            return told
        if isinstance(told, Told):
            seen(told.record)


async def _next(process: asyncio.subprocess.Process) -> Told | Done | Ready:
    assert process.stdout is not None
    try:
        size = int.from_bytes(await process.stdout.readexactly(4), "big")
        data = await process.stdout.readexactly(size)
    except asyncio.IncompleteReadError as problem:
        code = await process.wait()
        raise Unavailable(f"a client process ended with code {code}; see above") from problem
    return msgspec.msgpack.decode(data, type=Told | Done | Ready)
