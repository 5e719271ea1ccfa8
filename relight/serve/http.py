"""Runs the application on uvicorn until a signal ends it in order. Knows no route and no engine.

The first SIGTERM or SIGINT refuses what is new and lets what runs come to its end, within a limit;
a second one ends it at once.
"""

import asyncio
import socket
import sys
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

import uvicorn

from relight.base.errors import BadSetting
from relight.serve.app import create_app
from relight.serve.connection import connections
from relight.serve.server import Server

T = TypeVar("T")

BACKLOG = 2048
# Once all answers have ended, only idle connections are left to close.
CLOSE_S = 5
POLL_S = 0.05


def run(serving: Coroutine[Any, Any, T]) -> T:
    """Runs a server to its end, on uvloop where there is one."""
    if sys.platform == "win32":
        return asyncio.run(serving)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serving)


class HttpServer(uvicorn.Server):
    """uvicorn, with the order of things at the end that streams need."""

    def __init__(self, server: Server, tls_cert: str = "", tls_key: str = "") -> None:
        super().__init__(
            uvicorn.Config(
                create_app(server),
                lifespan="off",
                ws="none",
                http=connections(server.options.silent_s),
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=CLOSE_S,
                ssl_certfile=tls_cert or None,
                ssl_keyfile=tls_key or None,
            )
        )
        self._server = server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        assert self._loop is not None, "signals are caught while serving only"
        self._loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """Begins to drain; called again, it no longer waits for what runs."""
        if self._drain is None:
            self._drain = asyncio.ensure_future(self._end())
        else:
            self._server.stopping.set()

    async def _end(self) -> None:
        server = self._server
        server.draining = True
        try:
            async with asyncio.timeout(server.options.drain_s):
                while server.num_open and not server.stopping.is_set():
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            pass
        server.stopping.set()
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Raises `BadSetting` if it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise BadSetting(
            f"port {port} of {host} cannot be listened on: {error.strerror or error}; choose "
            "another one (--port, --host)",
            param="port",
        ) from error


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """An address that this machine can open, also where the socket listens on all of its own."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
