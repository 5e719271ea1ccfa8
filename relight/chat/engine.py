"""Answers from an engine that this process starts, without HTTP. Knows no view and no torch."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing
from pathlib import Path

from relight.base.settings import Settings
from relight.chat.source import Ask, Ended, Event
from relight.engine.client import ProcessClient
from relight.session import CallStart, Finish, Session
from relight.text.conversation import Conversation
from relight.text.parse import Content, Reasoning, ToolCallArguments

Progress = Callable[[int, int], None]


class EngineSource:
    """`loading` is open while weights are read; what it gives is told (bytes done, in all)."""

    def __init__(
        self, settings: Settings, loading: Callable[[], AbstractContextManager[Progress]]
    ) -> None:
        self.name = settings.served_name or Path(settings.model).resolve().name
        self._settings = settings
        self._loading = loading
        self._client: ProcessClient | None = None

    async def open(self) -> None:
        with self._loading() as progress:
            client = ProcessClient(self._settings, progress=progress)
            await client.start()
            self._client = client
            self._session = Session.open(self._settings, client)
            await client.ready()

    async def answer(self, ask: Ask) -> AsyncGenerator[Event, None]:
        conversation = Conversation(
            messages=ask.messages,
            tools=ask.tools,
            thinking=ask.thinking is not False,
            effort=ask.effort,
        )
        job = await self._session.chat(conversation, ask.options)
        async with aclosing(self._session.run(job)) as pieces:
            async for piece in pieces:
                match piece:
                    case Finish(reason=reason, usage=usage):
                        yield Ended(reason, usage)
                    case Reasoning() | Content() | CallStart() | ToolCallArguments():
                        yield piece
                    case _:  # no trace in the text
                        pass

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
