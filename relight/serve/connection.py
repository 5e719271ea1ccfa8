"""uvicorn's HTTP connection, which waits only so long for the head of a request and reads only so
much of one, stays with its protocol, and can be cut off by the application. Knows no request."""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 2**10
"""The most that path and headers may take together; no client sends a tenth of it."""
ABORT = "relight.abort"
"""What a scope has under this name closes the connection, whatever the client has still to take."""


CLOSED = "relight.closed"
"""What a scope has under this name tells whether the connection is closed already."""


class _Parser(httptools.HttpRequestParser):
    """Reads the body of a request that asks for another protocol, which llhttp leaves to that.

    No other is spoken here. Java's HTTP client asks for HTTP/2 in this way, with every first
    request.
    """

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self._connection = connection

    def feed_data(self, data: Any) -> None:  # bytes, as asyncio passes them
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._connection.go_on(data[upgrade.args[0] :])


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
            self._running: Any = None
            self._again = False  # a head is read again, for the sake of its body
            self.parser = _Parser(self)

        def _start_asgi_task(self, cycle: Any, app: Any) -> None:
            self._running = cycle
            super()._start_asgi_task(cycle, app)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._stop_waiting()
            # uvicorn tells the request that came last, which need not be the one that runs.
            if self._running is not None:
                self._running.disconnected = True
                self._running.message_event.set()

        def data_received(self, data: bytes) -> None:
            in_head = self._in_head
            super().data_received(data)
            if in_head and self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > HEAD_BYTES:
                    self.transport.abort()

        def go_on(self, rest: bytes) -> None:
            """Reads what follows a head that asked for another protocol."""
            framing = self._framing()
            self.parser = _Parser(self)
            if framing:
                self._again = True
                self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
                self._again = False
            self.parser.feed_data(rest)

        def _framing(self) -> bytes:
            """The headers that tell how long the body is."""
            names = (b"content-length", b"transfer-encoding")
            return b"".join(b"%s: %s\r\n" % pair for pair in self.headers if pair[0] in names)

        def on_url(self, url: bytes) -> None:
            if not self._again:
                super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            if not self._again:
                super().on_header(name, value)

        def on_message_complete(self) -> None:
            if not (self.parser.should_upgrade() and self._framing()):
                super().on_message_complete()

        def on_message_begin(self) -> None:
            if self._again:
                return
            super().on_message_begin()
            scope: Any = self.scope
            scope[ABORT] = self.transport.abort
            scope[CLOSED] = self.transport.is_closing
            self._in_head = True
            self._head_bytes = 0
            if self._head_timer is None:
                self._wait_for_head()

        def on_headers_complete(self) -> None:
            if self._again:
                return
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


def is_closed(scope: Any) -> bool:
    """Whether nothing can be sent any more, where the server tells it."""
    closed: Callable[[], bool] | None = scope.get(CLOSED)
    return bool(closed and closed())
