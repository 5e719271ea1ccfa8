"""uvicorn's HTTP connection, which waits only so long for the head of a request and reads only so
much of one, and can be cut off by the application. Knows no request."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 2**10
"""The most that path and headers may take together; no client sends a tenth of it."""
ABORT = "relight.abort"
"""What a scope has under this name closes the connection, whatever the client has still to take."""


def connections(silent_s: float) -> type[HttpToolsProtocol]:
    """Connections that are closed if the head of a request takes longer than `silent_s` seconds; 0:
    however long it takes."""

    class Connection(HttpToolsProtocol):
        # Any: uvicorn's own methods are typed for itself.
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._head_bytes = 0
            self._in_head = True
            self._head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._stop_waiting()

        def data_received(self, data: bytes) -> None:
            in_head = self._in_head
            super().data_received(data)
            if in_head and self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > HEAD_BYTES:
                    self.transport.abort()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            scope: Any = self.scope
            scope[ABORT] = self.transport.abort
            self._in_head = True
            self._head_bytes = 0
            if self._head_timer is None:
                self._wait_for_head()

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self._in_head = False
            self._stop_waiting()

        def _wait_for_head(self) -> None:
            if silent_s:
                self._head_timer = self.loop.call_later(silent_s, self.transport.abort)

        def _stop_waiting(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

    return Connection


def abort(scope: Any) -> None:
    """Closes the connection of a scope, where the server lets us."""
    cut: Callable[[], None] | None = scope.get(ABORT)
    if cut:
        cut()
