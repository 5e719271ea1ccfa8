"""Answers from any OpenAI-compatible server. Knows no view; every fault is one clear line."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec

from relight.base.errors import (
    BadRequest,
    BadSetting,
    Overloaded,
    RelightError,
    Unavailable,
)
from relight.base.sse import EventSplitter
from relight.chat.source import Ask, Ended, Event
from relight.chat.wire import Reader, chat_body, told

# A long prompt may be read for minutes before its first token, so only connecting has a limit:
# who waits has Ctrl-C.
TIMEOUT = httpx.Timeout(None, connect=10.0)
LIST_TIMEOUT = httpx.Timeout(10.0)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class HttpSource:
    """`url` is the address below which `/chat/completions` lies. Without `model` it is the first
    that the server lists."""

    def __init__(
        self,
        url: str,
        *,
        model: str = "",
        api_key: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.name = model
        if not self.url.startswith(("http://", "https://")):
            raise BadSetting(f"url is {url!r}; wanted one like http://host:port/v1", param="url")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(timeout=TIMEOUT, headers=headers, transport=transport)

    async def open(self) -> None:
        if self.name:
            return
        async with self._reaching():
            reply = await self._http.get(f"{self.url}/models", timeout=LIST_TIMEOUT)
        if reply.status_code != 200:
            raise self._refused(reply, reply.content)
        try:
            models = msgspec.json.decode(reply.content, type=_Models).data
        except (msgspec.DecodeError, msgspec.ValidationError):
            models = []
        if not models:
            raise Unavailable(f"{self.url} lists no model; name one with --model")
        self.name = models[0].id

    async def answer(self, ask: Ask) -> AsyncGenerator[Event, None]:
        reader = Reader()
        body = chat_body(ask, self.name)
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        async with (
            self._reaching(),
            self._http.stream(
                "POST", f"{self.url}/chat/completions", content=body, headers=headers
            ) as reply,
        ):
            if reply.status_code != 200:
                raise self._refused(reply, await reply.aread())
            if reply.headers.get("content-type", "").startswith("text/event-stream"):
                async for name, payload in _events(reply):
                    for event in reader.read(payload, name):
                        yield event
            else:  # a server that does not stream answers whole
                for event in reader.read(await reply.aread()):
                    yield event
        if reader.finish is None:
            raise Unavailable("the answer broke off: the server closed the stream before its end")
        yield Ended(reader.finish, reader.usage)

    async def aclose(self) -> None:
        await self._http.aclose()

    @asynccontextmanager
    async def _reaching(self) -> AsyncIterator[None]:
        try:
            yield
        except httpx.InvalidURL as problem:
            raise BadSetting(f"url {self.url}: {problem}", param="url") from problem
        except (httpx.ConnectError, httpx.ConnectTimeout) as problem:
            raise Unavailable(
                f"{self.url} cannot be reached ({_why(problem)}); is the server running?"
            ) from problem
        except httpx.TransportError as problem:
            raise Unavailable(f"the answer broke off: {_why(problem)}") from problem

    def _refused(self, reply: httpx.Response, body: bytes) -> RelightError:
        status, message = reply.status_code, told(body)
        if status in (401, 403):
            return BadRequest(f"the server wants another key ({status}): {message}; see --api-key")
        if status == 404:
            hint = "" if self.url.endswith("/v1") else "; does the address lack /v1?"
            return BadRequest(f"the server does not know this (404): {message}{hint}")
        if status in (429, 503):
            seconds = reply.headers.get("retry-after", "")
            when = f"; it asks to wait {seconds} s" if seconds else ""
            return Overloaded(f"the server is busy ({status}): {message}{when}")
        if status >= 500:
            return Unavailable(f"the server failed ({status}): {message}")
        return BadRequest(f"the server refused this ({status}): {message}")


async def _events(reply: httpx.Response) -> AsyncIterator[tuple[bytes, bytes]]:
    """Up to `[DONE]`, or to the end of a server that does not send it."""
    splitter = EventSplitter()
    async for data in reply.aiter_bytes():
        for name, payload in splitter.feed(data):
            if payload == b"[DONE]":
                return
            yield name, payload


def _why(problem: httpx.TransportError) -> str:
    return str(problem) or type(problem).__name__
