"""One HTTP request and its answer: body in, JSON or an event stream out, errors in between.
Knows ASGI, and no route."""

import asyncio
import time
import uuid
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    MutableMapping,
    Sequence,
)
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec

from relight.base.errors import (
    Overloaded,
    RelightError,
    TooLarge,
    TooSlow,
    Unauthorized,
    Unavailable,
    Unsupported,
    WrongMediaType,
)
from relight.serve import sse
from relight.serve.connection import abort, is_closed
from relight.serve.voice import OPENAI, Problem, Voice
from relight.session import Job

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = (b"content-type", b"application/json")
RETRY_AFTER_S = 1


class ClientGone(Exception):
    """The other side closed the connection; nobody waits for an answer."""


class Exchange:
    """`headers` are sent with whatever answer there will be; `voice` tells what is none. `jobs`,
    `status` and `failure` are for the log. `silent_s` bounds how long the client may be silent
    while it sends, or take nothing of an answer; 0: no bound. `keeps_text` remembers what was sent
    and answered for the log."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        voice: Voice = OPENAI,
        *,
        silent_s: float = 0.0,
        keeps_text: bool = False,
    ) -> None:
        self.scope = scope
        self.voice = voice
        self.jobs: Sequence[Job] = ()
        self.status = 0
        self.failure = ""
        self._silent_s = silent_s or None
        self._sent: list[bytes] = []
        self._answered: list[bytes] | None = [] if keeps_text else None
        self._receive = receive
        self._send = send
        self._started = False
        self._streaming = False
        self._ended = False
        self._last_write = 0.0
        self._writes = False  # a write waits for the client to take what was sent
        self.request_id = self._request_id()
        self.headers: list[Header] = [(b"x-request-id", self.request_id.encode())]

    @property
    def path_params(self) -> dict[str, str]:
        return dict(self.scope.get("path_params", {}))

    @property
    def peer(self) -> str:
        """The address that the request comes from."""
        host, _ = self.scope.get("client") or ("", 0)
        return str(host)

    async def body(self, limit: int) -> bytes:
        """Raises `TooLarge` as soon as more than `limit` bytes are announced or have come,
        `WrongMediaType` for what is not called JSON, and `Unsupported` for a body that is packed:
        it would unpack to any size."""
        self._check_media_type()
        packed = self.header(b"content-encoding") or b"identity"
        if packed.strip().lower() not in (b"identity", b""):
            raise Unsupported(
                f"header content-encoding is {packed.decode('latin-1')[:64]!r}; send the body as "
                "it is, without the header",
                param="content-encoding",
            )
        announced = self.header(b"content-length")
        if announced and announced.isdigit() and int(announced) > limit:
            raise _too_large(limit)
        parts, size = [], 0
        while True:
            try:
                async with asyncio.timeout(self._silent_s):
                    message = await self._receive()
            except TimeoutError as error:
                raise TooSlow(
                    f"nothing came of the body for {self._silent_s:g} s (--client-timeout); send "
                    "the request again"
                ) from error
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
            if not message.get("more_body", False):
                if self._answered is not None:
                    self._sent = parts
                return b"".join(parts)

    def _check_media_type(self) -> None:
        """Any page that a browser shows may send text, forms, or bodies of no type to any server,
        also to one that listens to this machine only, and none may send JSON without leave. Clients
        that are no browsers, and so name no origin, may leave the type out."""
        found = self.header(b"content-type") or b""
        kind = found.partition(b";")[0].strip().lower()
        is_json = kind == b"application/json" or (
            kind.startswith(b"application/") and kind.endswith(b"+json")
        )
        if not is_json and (kind or self.header(b"origin") is not None):
            raise WrongMediaType(
                f"header content-type is {found.decode('latin-1')[:64]!r}; bodies are JSON here: "
                "send content-type: application/json",
                param="content-type",
            )

    async def while_connected(self, work: Coroutine[Any, Any, T], stopping: asyncio.Event) -> T:
        """Runs `work` until it ends, the client goes, or the server stops, and then cancels it.

        Raises `ClientGone` or `Unavailable`. If work ends at the same moment, its result counts.
        """
        job = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._gone())
        stop = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait((job, gone, stop), return_when=asyncio.FIRST_COMPLETED)
            if job.done():
                return job.result()
            if gone.done():
                raise ClientGone
            raise Unavailable("the server is stopping; send the request again later")
        finally:
            await _cancel(job, gone, stop)

    async def reply(
        self, data: bytes, *, status: int = 200, headers: Iterable[Header] = (JSON,)
    ) -> None:
        length = (b"content-length", str(len(data)).encode())
        await self._start(status, (*headers, length))
        await self._write(b"" if self.scope["method"] == "HEAD" else data, more=False)

    async def reply_json(self, answer: msgspec.Struct, *, status: int = 200) -> None:
        await self.reply(msgspec.json.encode(answer), status=status)

    async def stream(self, events: AsyncGenerator[bytes, None], keep_alive_s: float) -> None:
        """Sends headers at once, then every event, with a sign of life wherever `keep_alive_s`
        seconds pass without one (0: none). The generator is closed however this ends."""
        await self._start(200, sse.HEADERS)
        self._streaming = True
        beat = asyncio.ensure_future(self._beat(keep_alive_s)) if keep_alive_s else None
        try:
            async with aclosing(events):
                async for event in events:
                    await self._write(event)
        finally:
            if beat:
                await _cancel(beat)
        await self._write(b"", more=False)

    async def fail(self, error: RelightError) -> None:
        """Answers with the error, or, in a stream, sends it as the last event."""
        self.failure = error.code
        if self._ended:
            return
        problem = Problem(error, self.request_id)
        if self._streaming:
            await self._write(self.voice.last_event(problem), more=False)
        elif not self._started:
            retry_s = error.retry_after_s if isinstance(error, Overloaded) else RETRY_AFTER_S
            retry = (b"retry-after", str(retry_s).encode())
            extra = (retry,) if error.status in (429, 503) else ()
            if isinstance(error, Unauthorized):
                extra = ((b"www-authenticate", b"Bearer"),)
            data = self.voice.body(problem)
            await self.reply(data, status=error.status, headers=(JSON, *extra))

    def sent_text(self) -> str:
        return _text_of(self._sent)

    def answered_text(self) -> str:
        return _text_of(self._answered or ())

    def _request_id(self) -> str:
        """The client's own if it is one that a header may carry."""
        given = self.header(b"x-request-id")
        if given and len(given) <= 128 and given.isascii() and given.decode().isprintable():
            return given.decode()
        return uuid.uuid4().hex

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.scope["headers"] if key == name), None)

    async def _gone(self) -> None:
        """Returns when the client has closed the connection or takes nothing any more."""
        while True:
            try:
                async with asyncio.timeout(self._silent_s):
                    message = await self._receive()
                if message["type"] == "http.disconnect":
                    return
            except TimeoutError:
                if self._writes and time.monotonic() - self._last_write >= (self._silent_s or 0):
                    abort(self.scope)
                    return

    async def _beat(self, interval_s: float) -> None:
        while True:
            idle_s = time.monotonic() - self._last_write
            if idle_s >= interval_s:
                await self._write(self.voice.keep_alive())
                idle_s = 0.0
            await asyncio.sleep(interval_s - idle_s)

    async def _start(self, status: int, headers: Iterable[Header]) -> None:
        self._started = True
        self.status = status
        self._last_write = time.monotonic()
        all_headers = [*headers, *self.headers]
        await self._pass_on(
            {"type": "http.response.start", "status": status, "headers": all_headers}
        )

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        self._last_write = time.monotonic()
        self._ended = not more
        if self._answered is not None:
            self._answered.append(data)
        self._writes = True
        await self._pass_on({"type": "http.response.body", "body": data, "more_body": more})
        self._writes = False

    async def _pass_on(self, message: MutableMapping[str, Any]) -> None:
        """Raises `ClientGone`. ASGI servers raise OSError for a connection that is gone, and uvloop
        another error for one that it has closed and not yet told so."""
        try:
            await self._send(message)
        except OSError as error:
            raise ClientGone from error
        except RuntimeError as error:
            if not is_closed(self.scope):
                raise
            raise ClientGone from error


def _text_of(parts: Iterable[bytes]) -> str:
    return b"".join(parts).decode("utf-8", "replace")


async def _cancel(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes; send less (--body-limit)")
