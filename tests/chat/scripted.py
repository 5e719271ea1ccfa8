"""A source that plays what a test wrote down, and lines that a test typed."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Sequence

from relight.base.types import Usage
from relight.chat.dialogue import Dialogue
from relight.chat.loop import Chat
from relight.chat.source import Ask, Ended, Event
from relight.chat.view import View
from relight.session import CallStart
from relight.text.conversation import Tool
from relight.text.parse import Content, Reasoning, ToolCallArguments

INTERRUPT = "Ctrl-C"
USAGE = Usage(prompt_tokens=20, completion_tokens=9, cached_tokens=8, reasoning_tokens=2)
STOP = Ended("stop", USAGE)
TOOL = Tool("weather", "Weather now", {"type": "object"})

Step = Event | Exception | str


def said(text: str) -> list[Step]:
    return [Content(text), STOP]


def thoughtful(reasoning: str, content: str) -> list[Step]:
    """One event a word."""
    thoughts = [Reasoning(f"{word} ") for word in reasoning.split()]
    return [*thoughts, *(Content(f"{word} ") for word in content.split(" ")), STOP]


def called(*arguments: str) -> list[Step]:
    """Needs a thought, then calls TOOL once for each of `arguments`, in two pieces."""
    steps: list[Step] = [Reasoning("need it")]
    for index, text in enumerate(arguments):
        steps.append(CallStart(index, f"id{index}", "weather"))
        steps += [ToolCallArguments(index, half) for half in (text[:3], text[3:])]
    return [*steps, Ended("tool_calls", USAGE)]


class Scripted:
    """Answers one script after the other. At INTERRUPT, Ctrl-C is pressed and nothing follows."""

    name = "scripted"

    def __init__(self, *scripts: Sequence[Step]) -> None:
        self._scripts = list(scripts)
        self.asks: list[Ask] = []
        self.closed = 0

    async def open(self) -> None: ...

    async def answer(self, ask: Ask) -> AsyncGenerator[Event, None]:
        self.asks.append(ask)
        try:
            for step in self._scripts.pop(0):
                await asyncio.sleep(0)
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, str):
                    signal.raise_signal(signal.SIGINT)
                    await asyncio.Event().wait()
                else:
                    yield step
        finally:
            self.closed += 1

    async def aclose(self) -> None: ...


class Typed:
    """`prompts` and `offered` tell what stood there when each text was read."""

    def __init__(self, *texts: str | type[BaseException], interactive: bool = True) -> None:
        self._texts = list(texts)
        self.interactive = interactive
        self.prompts: list[str] = []
        self.offered: list[str] = []

    def read(self, prompt: str, text: str = "") -> str:
        self.prompts.append(prompt)
        self.offered.append(text)
        if not self._texts:
            raise EOFError
        typed = self._texts.pop(0)
        if isinstance(typed, str):
            return typed
        raise typed


def talk(source: Scripted, view: View, lines: Typed, dialogue: Dialogue | None = None) -> Chat:
    """A whole chat, whose clock goes on by a second at each look."""
    ticks = iter(range(10**6))
    with asyncio.Runner() as runner:
        chat = Chat(source, dialogue or Dialogue(), view, runner, lambda: float(next(ticks)))
        chat.run(lines)
    return chat
