"""What a chat reads from: lines of a pipe. Knows no answer and no terminal."""

from typing import Protocol, TextIO


class Lines(Protocol):
    """`interactive`: somebody sits there, whom a stopped answer gives the next word."""

    @property
    def interactive(self) -> bool: ...

    def read(self, prompt: str, text: str = "") -> str:
        """What the user says next; `text` stands there, to be changed or sent again. Raises
        EOFError when there is no more, KeyboardInterrupt for Ctrl-C."""
        ...


class Piped:
    """One line is one text, and there are no prompts."""

    interactive = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def read(self, prompt: str, text: str = "") -> str:
        line = self._stream.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n").removesuffix("\r")
