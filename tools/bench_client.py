"""Measures what reading streams costs the client: its processor time for each chunk, and its share
of one core at two loads, by our reader and by httpx. The server is scripted, in another process.

    python -m tools.bench_client
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import uvloop

from relight.bench.client import Client
from relight.bench.http import target
from relight.bench.prompts import Prompt
from relight.bench.selftest.script import Reply, Script
from relight.bench.selftest.server import ScriptedServer
from relight.bench.stream import Stream

LOADS = ((64, 100), (8, 1000))
"""(streams, tokens a second of each)."""
SECONDS = 4


def prompt(number: int, rate: int) -> Prompt:
    return Prompt(number, "x", "0123456789" * 40, rate * SECONDS)


async def ours(url: str, streams: int, rate: int) -> int:
    client = Client(target(url), "scripted", extra={}, silence_s=30, total_s=60)
    told = await asyncio.gather(*(client.ask(prompt(i, rate)) for i in range(streams)))
    assert all(record.ok for record in told), told[0].error
    return sum(len(record.chunks) for record in told)


async def with_httpx(url: str, streams: int, rate: int) -> int:
    """The same judge behind httpx: only the reading differs."""
    body = Client(target(url), "scripted", extra={}, silence_s=30, total_s=60)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=60) as session:

        async def ask(number: int) -> int:
            stream = Stream(rate * SECONDS)
            data = body.body(prompt(number, rate))
            path = f"{url}/v1/chat/completions"
            async with session.stream("POST", path, content=data) as answer:
                kind = answer.headers["content-type"]
                stream.headers(answer.status_code, kind, time.perf_counter())
                async for piece in answer.aiter_raw():
                    stream.body(piece, time.perf_counter())
            stream.end(time.perf_counter())
            assert stream.failure is None, stream.error
            return len(stream.chunks)

        return sum(await asyncio.gather(*(ask(i) for i in range(streams))))


async def serve() -> None:
    """The rate is told by the length of the answer: `rate * SECONDS` tokens."""

    def reply_gap(tokens: int) -> Reply:
        return Reply(gap_s=SECONDS / tokens)

    script = Script(reply=lambda asked: reply_gap(asked.max_tokens))
    async with ScriptedServer(script) as server:
        print(server.url, flush=True)
        await asyncio.sleep(3600)


def report(name: str, url: str, read: Callable[[str, int, int], Coroutine[Any, Any, int]]) -> None:
    for streams, rate in LOADS:
        cpu, wall = time.process_time(), time.perf_counter()
        runner = uvloop.run if "uvloop" in name else asyncio.run
        chunks = runner(read(url, streams, rate))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        print(
            f"{name:14} {streams:3} streams of {rate:4} tokens/s: {cpu / chunks * 1e6:6.1f} us a "
            f"chunk, {chunks / wall:6.0f} chunks/s, {cpu / wall:4.0%} of one core",
            flush=True,
        )


def main() -> None:
    if "--serve" in sys.argv:
        uvloop.run(serve())
        return
    command = [sys.executable, "-m", "tools.bench_client", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        try:
            report("ours", url, ours)
            report("ours, uvloop", url, ours)
            report("httpx", url, with_httpx)
            report("httpx, uvloop", url, with_httpx)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
