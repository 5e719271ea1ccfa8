"""What a chat asks and what comes back, whoever answers. Knows no wire and no engine."""

from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec

from relight.base.types import Usage
from relight.session import CallStart, Options
from relight.text.conversation import Message, Tool
from relight.text.parse import Content, Reasoning, ToolCallArguments


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. `thinking` and `effort` None: whatever the model does by itself."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    thinking: bool | None = None
    effort: str | None = None
    options: Options = Options()


class Ended(msgspec.Struct, frozen=True):
    """The last event. Not every server counts tokens."""

    reason: str
    usage: Usage | None


Event = Reasoning | Content | CallStart | ToolCallArguments | Ended


class Source(Protocol):
    """Answers one ask at a time; `open` comes first and `aclose` last."""

    @property
    def name(self) -> str:
        """The model's; known once the source is open."""
        ...

    async def open(self) -> None:
        """Raises `RelightError` if there will be no answers."""
        ...

    def answer(self, ask: Ask) -> AsyncGenerator[Event, None]:
        """Ends with `Ended`. Closing it stops the answer. Raises `RelightError`: the ask was
        refused, or the answer broke off."""
        ...

    async def aclose(self) -> None: ...
