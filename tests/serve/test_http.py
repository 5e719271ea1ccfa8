"""The order of things at the end of a server."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from relight.base.errors import BadSetting
from relight.serve.http import HttpServer, listen, url_of
from tests.serve.fakes import EOS, HELLO, Rig, answering

BODY = {"messages": HELLO, "thinking": {"type": "disabled"}}
Scene = Callable[[Rig, HttpServer, httpx.AsyncClient], Awaitable[None]]


def play(rig: Rig, scene: Scene) -> None:
    """Serves `rig` until the scene has ended it."""

    async def run() -> None:
        http = HttpServer(rig.server)
        listener = listen("127.0.0.1", 0)
        serving = asyncio.ensure_future(http.serve([listener]))
        async with httpx.AsyncClient(base_url=url_of(listener)) as client:
            await scene(rig, http, client)
            await serving

    asyncio.run(asyncio.wait_for(run(), 20))


async def started(rig: Rig, client: httpx.AsyncClient) -> "asyncio.Task[httpx.Response]":
    """A request that the engine has and cannot go on with."""
    rig.client.gate.clear()
    pending = asyncio.ensure_future(client.post("/v1/chat/completions", json=BODY))
    while not rig.client.requests:
        await asyncio.sleep(0.001)
    return pending


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_refuses_what_is_new_and_lets_what_runs_end(number: signal.Signals) -> None:
    async def scene(rig: Rig, http: HttpServer, client: httpx.AsyncClient) -> None:
        await client.get("/version")
        running = await started(rig, client)
        os.kill(os.getpid(), number)
        while not rig.server.draining:
            await asyncio.sleep(0.001)
        refused = await client.post("/v1/chat/completions", json=BODY)
        assert refused.status_code == 503
        assert "draining" in refused.json()["error"]["message"]
        rig.client.gate.set()
        assert (await running).json()["choices"][0]["message"]["content"] == "a"

    rig = answering("a" + EOS)
    play(rig, scene)
    assert rig.client.aborted == []


def test_what_does_not_end_in_time_is_ended_with_an_error() -> None:
    async def scene(rig: Rig, http: HttpServer, client: httpx.AsyncClient) -> None:
        running = await started(rig, client)
        http.stop()
        assert (await running).status_code == 503

    rig = answering("a" + EOS, drain_s=0.05)
    play(rig, scene)
    assert rig.client.aborted == [rig.client.requests[0].id]
    assert rig.client.num_running == 0


def test_a_second_signal_does_not_wait() -> None:
    async def scene(rig: Rig, http: HttpServer, client: httpx.AsyncClient) -> None:
        running = await started(rig, client)
        http.stop()
        http.stop()
        assert (await running).status_code == 503

    play(answering("a" + EOS, drain_s=1000), scene)


def test_a_port_that_is_taken_is_told_with_the_remedy() -> None:
    with listen("127.0.0.1", 0) as taken:
        port: Any = taken.getsockname()[1]
        with pytest.raises(BadSetting, match=rf"port {port} of 127\.0\.0\.1 .* \(--port"):
            listen("127.0.0.1", port)
