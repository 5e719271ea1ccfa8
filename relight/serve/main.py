"""Starts an engine process and serves it over HTTP until a signal. Knows no command line, no torch.

The socket listens from the start: while weights are read, /health says `loading` and requests get
a 503.
"""

import asyncio
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from socket import socket

import msgspec

from relight.base.settings import Settings
from relight.base.types import EngineInfo
from relight.engine.client import ProcessClient
from relight.serve.http import HttpServer, listen, url_of
from relight.serve.metrics import Metrics
from relight.serve.queue import Queue, QueueLimits
from relight.serve.server import ServeOptions, Server
from relight.session import Session

Progress = Callable[[int, int], None]
"""Told (bytes done, bytes in all) while weights are read."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What is told once requests are answered; `curl` is a command line that works."""

    url: str
    info: EngineInfo
    curl: str


def serve(settings: Settings, *, progress: Progress, ready: Callable[[Ready], None]) -> None:
    """Returns after a signal, when all that ran has ended and the engine process is gone.

    Raises `BadSetting` for a port that is taken, and whatever loading the model raises.
    """
    with listen(settings.host, settings.port) as listener:
        asyncio.run(_serve(settings, listener, progress, ready))


async def _serve(
    settings: Settings, listener: socket, progress: Progress, ready: Callable[[Ready], None]
) -> None:
    name = settings.served_name or Path(settings.model).resolve().name
    metrics = Metrics(name)
    client = ProcessClient(settings, progress=progress)
    limits = QueueLimits(settings.max_queue_tokens, settings.max_queue_wait)
    queue = Queue(limits, metrics.observer("0"))
    session = Session.open(settings, client, queue)
    http = HttpServer(Server([session], serve_options(settings, name), metrics, queues=[queue]))
    await client.start()
    serving = asyncio.ensure_future(http.serve([listener]))
    loading = asyncio.ensure_future(client.ready())
    try:
        await asyncio.wait((serving, loading), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            url = url_of(listener)
            ready(Ready(url, loading.result(), curl_line(url, name)))
        await serving
    finally:
        loading.cancel()
        http.stop()
        await asyncio.gather(serving, loading, return_exceptions=True)
        await client.aclose()


def serve_options(settings: Settings, name: str) -> ServeOptions:
    return ServeOptions(
        names=(name,),
        body_limit=settings.body_limit,
        max_open=settings.num_slots + settings.max_queue,
        timeout_s=float(settings.request_timeout),
        strict_fields=settings.strict_fields,
    )


def curl_line(url: str, name: str) -> str:
    body = {"model": name, "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    text = msgspec.json.encode(body).decode()
    header = "'Content-Type: application/json'"
    return f"curl -N {url}/v1/chat/completions -H {header} -d {shlex.quote(text)}"
