"""The screen that a terminal would show: a small emulator, and a program on a pseudo-terminal."""

import codecs
import os
import pty
import re
import select
import struct
import subprocess
import time
from fcntl import ioctl
from termios import TIOCSWINSZ

from rich.cells import cell_len

SEQUENCE = re.compile(
    r"\x1b(?:\[([0-9;?>=]*)([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78cDEHM])"
)
WAIT_S = 90.0
"""Far longer than anything here takes; only a failure waits for it."""


class Emulator:
    """Lines that have scrolled away are kept: `lines` is all that was ever left standing."""

    def __init__(self, width: int, height: int) -> None:
        self._width, self._height = width, height
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0
        self._rest = ""

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._rows]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def feed(self, text: str) -> None:
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self._put(text[at])
                at += 1
            elif match := SEQUENCE.match(text, at):
                self._obey(match[1] or "", match[2] or "")
                at = match.end()
            else:  # the rest of the sequence is still to come
                self._rest = text[at:]
                return

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._down()
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character >= " ":
            size = cell_len(character)
            if self._column + size > self._width:
                self._column = 0
                self._down()
            row = self._rows[self._row]
            row += " " * (self._column + size - len(row))
            row[self._column : self._column + size] = [character, *[""] * (size - 1)]
            self._column += size

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append([])

    def _obey(self, parameters: str, command: str) -> None:
        number = int(parameters) if parameters.isdigit() else None
        top = max(0, len(self._rows) - self._height)
        row = self._rows[self._row]
        match command:
            case "A":
                self._row = max(top, self._row - (number or 1))
            case "B":
                for _ in range(number or 1):
                    self._down()
            case "C":
                self._column = min(self._width - 1, self._column + (number or 1))
            case "D":
                self._column = max(0, self._column - (number or 1))
            case "G":
                self._column = (number or 1) - 1
            case "H":
                self._row, self._column = top, 0
            case "K":
                if number == 2:
                    row.clear()
                elif not number:
                    del row[self._column :]
            case "J":
                if not number:
                    del row[self._column :]
                    del self._rows[self._row + 1 :]
            case _:  # colours, modes
                pass


class Program:
    """`with Program(...) as program:`; `wait_for` what shall stand on its screen, and `type`."""

    def __init__(self, command: list[str], width: int = 100, height: int = 30) -> None:
        self.screen = Emulator(width, height)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._own, theirs = pty.openpty()
        ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        # Nobody answers here when a program asks where the cursor is.
        variables = {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self._process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")} | variables,
            start_new_session=True,
            preexec_fn=lambda: _control(theirs),
        )
        os.close(theirs)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._own)

    def type(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def wait_for(self, text: str) -> None:
        """Fails with the screen if it does not come."""
        self._read_until(lambda: text in self.screen.text, text)

    def wait_end(self) -> int:
        """The exit code, once all that it wrote is on the screen."""
        self._read_until(lambda: False, "the end", ends=True)
        return self._process.wait(WAIT_S)

    def _read_until(self, done, what: str, *, ends: bool = False) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + WAIT_S
        while not done():
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._own], [], [], max(0.0, left))
            data = b""
            if ready:
                try:
                    data = os.read(self._own, 65536)
                except OSError:  # the other side is closed
                    data = b""
            if not data:
                if ready and ends:
                    return
                raise AssertionError(f"waited for {what!r} on this screen:\n{self.screen.text}")
            self.screen.feed(self._decoder.decode(data))


def _control(terminal: int) -> None:
    """Makes it the terminal whose Ctrl-C is this process's."""
    from termios import TIOCSCTTY

    ioctl(terminal, TIOCSCTTY, 0)
