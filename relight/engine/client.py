"""The engine as its users see it: requests in, token deltas out. Knows no torch and no HTTP."""

from collections.abc import AsyncIterator
from typing import Literal, Protocol

from relight.base.types import EngineInfo, EngineStats, Request, TokenDelta

EngineState = Literal["loading", "idle", "busy", "stuck", "draining", "dead"]


class EngineClient(Protocol):
    """One engine, in this process, in another, or scripted by a test."""

    @property
    def info(self) -> EngineInfo: ...

    def state(self) -> EngineState: ...

    def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        """Yields deltas until one with `finish`. Closing the iterator aborts the request, and its
        pages are free within one step. Raises `Unavailable` if the engine is not there."""
        ...

    async def stats(self) -> EngineStats: ...
