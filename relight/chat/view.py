"""What a chat needs to be shown with, and its plainest form: text for pipes. Knows no source."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from relight.chat.answer import Answer, stats
from relight.chat.markdown import visible
from relight.chat.source import Event
from relight.text.parse import Content


class View(Protocol):
    def answering(self, answer: Answer) -> AbstractContextManager[Callable[[Event], None]]:
        """While it is open, each event is shown that the answer has just taken in."""
        ...

    def ended(self, answer: Answer) -> None:
        """Figures of an answer that is over."""
        ...

    def unfold(self, reasoning: str) -> None: ...

    def say(self, text: str) -> None:
        """Something of the chat itself."""
        ...

    def error(self, message: str) -> None:
        """One line."""
        ...


class Plain:
    """Answers, and what commands tell, go to `out`, all else to `log`. Reasoning is not shown
    unless it is unfolded. A call of a tool is a line of its own."""

    def __init__(self, out: TextIO, log: TextIO) -> None:
        self._out = out
        self._log = log

    @contextmanager
    def answering(self, answer: Answer) -> Iterator[Callable[[Event], None]]:
        def show(event: Event) -> None:
            if isinstance(event, Content):
                self._print(visible(event.text), end="")

        try:
            yield show
        finally:
            if answer.content and not answer.content.endswith("\n"):
                self._print("")
            for call in answer.calls.values():
                self._print(visible(call.shown))

    def ended(self, answer: Answer) -> None:
        print(f"[{stats(answer)}]", file=self._log, flush=True)

    def unfold(self, reasoning: str) -> None:
        self._print(visible(reasoning))

    def say(self, text: str) -> None:
        self._print(text)

    def error(self, message: str) -> None:
        print(f"error: {one_line(message)}", file=self._log, flush=True)

    def _print(self, text: str, end: str = "\n") -> None:
        print(text, end=end, file=self._out, flush=True)


def one_line(message: str) -> str:
    return " ".join(visible(message).split())
