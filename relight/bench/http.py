"""One HTTP/1.1 request on one connection, for a reader that must not be the bottleneck. Knows no
JSON.

The arrival of bytes is timed where the loop hands them over, before any task is woken, and they
are parsed there: an answer costs no queue and no task switch. `docs/notes/measuring.md` has the
comparison with httpx.
"""

import asyncio
import ssl
import time
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from relight.base.errors import BadSetting
from relight.bench.record import Failure

CONNECT_S = 10.0
MOST_WHOLE = 32 * 1024**2
"""Bytes of an answer that is kept: no list of models and no page of metrics is larger."""


class Target(msgspec.Struct, frozen=True):
    """Where a server is. `key` is sent as a bearer token and never shown or stored."""

    host: str
    port: int
    tls: bool
    path: str
    key: str = ""

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def shown(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.path}"


def target(url: str, key: str = "") -> Target:
    """Raises BadSetting for anything but http(s)://host[:port][/path]. A trailing `/v1` is the
    same server: paths below begin with it."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as problem:
        raise BadSetting(f"url is {url!r}: {problem}", param="url") from problem
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadSetting(
            f"url is {url!r}; wanted http://host:port or https://host:port", param="url"
        )
    if parts.username or parts.password or parts.query:
        raise BadSetting(
            "url holds a user, a password or a query; give a key with --api-key-file", param="url"
        )
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Target(parts.hostname, port, parts.scheme == "https", path, key)


class Sink(Protocol):
    """What takes an answer; `body` says whether a token came."""

    @property
    def over(self) -> bool: ...
    def headers(self, status: int, content_type: str, now: float) -> None: ...
    def body(self, data: bytes, now: float) -> bool: ...
    def end(self, now: float, problem: Failure | None = None, why: str = "") -> None: ...


class Connection(asyncio.Protocol):
    """Opened, used for one request, closed."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._sink: Sink | None = None
        self._gone: str | None = None
        self._type = ""
        self._now = 0.0
        self._ended = asyncio.get_running_loop().create_future()
        self._last_s = 0.0

    def send(self, head: bytes, body: bytes, sink: Sink) -> float:
        """The time just before the bytes were handed over."""
        self._sink = sink
        sent = self._last_s = time.perf_counter()
        if self._transport is None or self._gone is not None:
            self._end("unreachable", self._gone or "the connection closed before it was used")
        else:
            self._transport.write(head + body)
        return sent

    async def finished(self, silence_s: float, total_s: float) -> None:
        """Returns when the answer has ended; ends it as stalled after `silence_s` without a token
        or `total_s` in all. Comments that keep a connection alive are no sign of life."""
        started = time.perf_counter()
        while not self._ended.done():
            now = time.perf_counter()
            left = min(self._last_s + silence_s, started + total_s) - now
            if left <= 0:
                self._now = now
                self._end("stalled", f"no token for {now - self._last_s:.1f} s")
                break
            await asyncio.wait([self._ended], timeout=left)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def cancel(self) -> None:
        self._now = time.perf_counter()
        self._end("cancelled", "the run was stopped")

    # The loop calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._end("protocol", f"not HTTP: {problem}")

    def eof_received(self) -> None:
        return None

    def connection_lost(self, problem: Exception | None) -> None:
        self._now = time.perf_counter()
        self._gone = f"connection lost: {problem or 'closed by the server'}"
        self._end("truncated", self._gone)

    # The parser calls these.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._type = value.decode("latin-1").lower()

    def on_headers_complete(self) -> None:
        if self._sink is not None:
            self._sink.headers(self._parser.get_status_code(), self._type, self._now)

    def on_body(self, data: bytes) -> None:
        if self._sink is None:
            return
        if self._sink.body(data, self._now):
            self._last_s = self._now
        if self._sink.over:
            self._end(None, "")

    def on_message_complete(self) -> None:
        self._end(None, "")

    def _end(self, problem: Failure | None, why: str) -> None:
        if self._sink is not None and not self._ended.done():
            self._sink.end(self._now or time.perf_counter(), problem, why)
            self._ended.set_result(None)


async def connect(to: Target) -> Connection:
    """Raises OSError (TimeoutError is one) when there is no connection in ten seconds."""
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context() if to.tls else None
    async with asyncio.timeout(CONNECT_S):
        _, connection = await loop.create_connection(Connection, to.host, to.port, ssl=context)
    return connection


def head(to: Target, method: str, path: str, length: int) -> bytes:
    lines = [
        f"{method} {to.path}{path} HTTP/1.1",
        f"host: {to.authority}",
        "connection: close",
        "accept: */*",
    ]
    if method == "POST":
        lines += ["content-type: application/json", f"content-length: {length}"]
    if to.key:
        lines.append(f"authorization: Bearer {to.key}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class Whole:
    """A sink that keeps a small answer."""

    def __init__(self) -> None:
        self.status = 0
        self.data = bytearray()
        self.problem = ""
        self.over = False

    def headers(self, status: int, content_type: str, now: float) -> None:
        self.status = status

    def body(self, data: bytes, now: float) -> bool:
        self.data += data
        if len(self.data) > MOST_WHOLE:
            self.problem, self.over = "the answer does not end", True
        return True

    def end(self, now: float, problem: Failure | None = None, why: str = "") -> None:
        self.problem = self.problem or (why if problem else "")


async def get(
    to: Target, path: str, timeout_s: float = 10.0, body: bytes | None = None
) -> bytes | None:
    """The body of a 200, else None: what a server does not offer is no error here. With a `body`
    it is a POST."""
    try:
        connection = await connect(to)
    except OSError:
        return None
    sink = Whole()
    method = "GET" if body is None else "POST"
    connection.send(head(to, method, path, len(body or b"")), body or b"", sink)
    await connection.finished(timeout_s, timeout_s)
    connection.close()
    return bytes(sink.data) if sink.status == 200 and not sink.problem else None
