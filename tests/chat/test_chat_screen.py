"""What is left on a terminal when an answer is over."""

import io

import pytest
from rich.console import Console

from relight.base.errors import Unavailable
from relight.chat.dialogue import Dialogue
from relight.chat.screen import Screen
from relight.text.parse import Content, Reasoning
from tests.chat.scripted import (
    INTERRUPT,
    STOP,
    TOOL,
    Scripted,
    Step,
    Typed,
    called,
    talk,
    thoughtful,
)
from tests.chat.terminal import Emulator


def screen_of(
    source: Scripted, *texts: str, height: int = 24, dialogue: Dialogue | None = None
) -> list[str]:
    """The lines that are left, without empty ones."""
    written = io.StringIO()
    console = Console(
        file=written,
        force_terminal=True,
        width=80,
        height=height,
        color_system=None,
        markup=False,
        highlight=False,
        _environ={},
    )
    talk(source, Screen(console, clock=lambda: 0.0), Typed(*texts), dialogue)
    emulator = Emulator(80, height)
    emulator.feed(written.getvalue().replace("\n", "\r\n"))
    return [line for line in emulator.lines if line]


def test_reasoning_folds_to_one_line_and_unfolds_on_demand() -> None:
    source = Scripted(thoughtful("carry the one", "It is **12**."))
    fold, answer, figures, unfolded = screen_of(source, "7+5?", "/reasoning")
    # Three words in three ticks of the clock, from the first to the last.
    assert fold == "▸ thought for 2.0 s, ~3 tokens"
    assert answer == "It is 12."
    assert figures.startswith("9 tokens (2 thinking) · first 1.00 s")
    assert unfolded == "▾ carry the one"


def test_an_answer_higher_than_the_screen_stands_there_once() -> None:
    lines = [f"line {number}" for number in range(40)]
    text = "```\n" + "\n".join(lines) + "\n```\n"
    steps: list[Step] = [Content(text[at : at + 7]) for at in range(0, len(text), 7)]
    found = screen_of(Scripted([*steps, STOP]), "x", height=10)
    assert [line.strip() for line in found[:-1]] == lines


def test_calls_stand_below_what_was_said() -> None:
    steps = [Content("I look."), *called('{"city": "Paris"}')[1:]]
    found = screen_of(Scripted(steps), "weather?", dialogue=Dialogue(tools=(TOOL,)))
    assert found[:2] == ["I look.", '→ weather({"city": "Paris"})']


@pytest.mark.parametrize("end", [INTERRUPT, Unavailable("gone")])
def test_what_came_before_an_end_stays_readable(end: Step) -> None:
    steps = [Reasoning("hm"), Content("First.\n\nSec"), end]
    found = screen_of(Scripted(steps), "x")
    assert found[1:3] == ["First.", "Sec"]
    assert found[3] == "error: gone" if end != INTERRUPT else "stopped" in found[3]


def test_interrupted_reasoning_is_folded_too() -> None:
    fold, figures = screen_of(Scripted([Reasoning("a"), Reasoning("b"), INTERRUPT]), "x")
    assert fold == "▸ thought for 1.0 s, ~2 tokens"
    assert "stopped" in figures
