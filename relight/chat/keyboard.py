"""What a chat reads from: an edited prompt on a terminal. Knows no answer.

Enter sends, Alt-Enter begins a new line, a pasted text may have many.
"""

import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

CONTINUATION = "… "


class Keyboard:
    """`unfold` is called when Ctrl-T is pressed at the prompt."""

    interactive = True

    def __init__(self, unfold: Callable[[], None]) -> None:
        self._session: PromptSession[str] = PromptSession(
            key_bindings=_bindings(unfold),
            multiline=True,
            prompt_continuation=CONTINUATION,
        )

    def read(self, prompt: str, text: str = "") -> str:
        return self._session.prompt(prompt, default=text)


@contextmanager
def quiet_terminal() -> Iterator[None]:
    """While it is open, keys pressed outside of a prompt are not shown and reach the next prompt,
    Ctrl-D too. Ctrl-C stays a signal."""
    before = termios.tcgetattr(sys.stdin)
    during = termios.tcgetattr(sys.stdin)
    during[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, during)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _bindings(unfold: Callable[[], None]) -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-t")
    def _(event: KeyPressEvent) -> None:
        run_in_terminal(unfold)

    return keys
