"""Starts an engine process and serves it over HTTP until a signal. Knows no command line, no torch.

The socket listens from the start: while weights are read, /health says `loading` and requests get
a 503.
"""

import asyncio
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from socket import socket

import msgspec

from relight.base.errors import BadSetting
from relight.base.settings import Settings
from relight.base.types import EngineInfo
from relight.engine.client import ProcessClient
from relight.serve.hosts import hosts_of
from relight.serve.http import HttpServer, listen, run, url_of
from relight.serve.keys import Keys, read_keys
from relight.serve.metrics import Metrics
from relight.serve.queue import Queue, QueueLimits
from relight.serve.server import ServeOptions, Server
from relight.serve.tls import check_certificate
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

    Raises `BadSetting` for a port that is taken and for files that cannot be used, and whatever
    loading the model raises.
    """
    check_certificate(settings.tls_cert, settings.tls_key)
    with listen(settings.host, settings.port) as listener:
        run(_serve(settings, listener, progress, ready))


async def _serve(
    settings: Settings, listener: socket, progress: Progress, ready: Callable[[Ready], None]
) -> None:
    name = settings.served_name or Path(settings.model).resolve().name
    metrics = Metrics(name)
    options = serve_options(settings, name)
    settings = msgspec.structs.replace(settings, api_key=())  # no business of an engine
    client = ProcessClient(settings, progress=progress)
    limits = QueueLimits(settings.max_queue_tokens, settings.max_queue_wait)
    queue = Queue(limits, metrics.observer("0"))
    session = Session.open(settings, client, queue)
    server = Server([session], options, metrics, queues=[queue])
    http = HttpServer(server, settings.tls_cert, settings.tls_key)
    await client.start()
    serving = asyncio.ensure_future(http.serve([listener]))
    loading = asyncio.ensure_future(client.ready())
    try:
        await asyncio.wait((serving, loading), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            url = url_of(listener, "https" if settings.tls_cert else "http") + options.root_path
            keyed = bool(options.keys)
            ready(Ready(url, loading.result(), curl_line(url, name, keyed=keyed)))
        await serving
    finally:
        loading.cancel()
        http.stop()
        await asyncio.gather(serving, loading, return_exceptions=True)
        await client.aclose()


def serve_options(settings: Settings, name: str) -> ServeOptions:
    keys = [*settings.api_key, *(read_keys(settings.api_key_file) if settings.api_key_file else ())]
    return ServeOptions(
        names=tuple(dict.fromkeys((name, *settings.alias))),
        body_limit=settings.body_limit,
        max_open=settings.num_slots + settings.max_queue,
        timeout_s=float(settings.request_timeout),
        strict_fields=settings.strict_fields,
        keep_alive_s=float(settings.keep_alive),
        silent_s=float(settings.client_timeout),
        drain_s=float(settings.drain),
        keys=Keys(keys),
        hosts=hosts_of(settings, keyed=bool(keys)),
        root_path=root_path(settings.root_path),
        cors_origins=settings.cors_origin,
        log_requests=settings.log_requests,
        reasoning_copy=settings.reasoning_copy,
    )


def root_path(path: str) -> str:
    """Without a slash at its end. Raises `BadSetting` for what is no path."""
    path = path.rstrip("/")
    if path and (not path.startswith("/") or re.search(r"[?#%\s]|//", path)):
        raise BadSetting(
            f"root_path is {path!r}; wanted a path such as /llm, without special characters",
            param="root_path",
        )
    return path


def curl_line(url: str, name: str, *, keyed: bool = False) -> str:
    """`keyed`: a key is needed, which whoever runs the line puts into a variable."""
    body = {"model": name, "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    text = msgspec.json.encode(body).decode()
    header = "'Content-Type: application/json'"
    if keyed:
        header += ' -H "Authorization: Bearer $API_KEY"'
    return f"curl -N {url}/v1/chat/completions -H {header} -d {shlex.quote(text)}"
