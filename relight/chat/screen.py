"""An answer on a terminal: reasoning that grows in a few dim lines and folds to one, content block
by block. Knows no source and no key."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from relight.chat.answer import Answer, stats, thought
from relight.chat.markdown import Blocks, Tail, rendered, visible
from relight.chat.source import Event
from relight.chat.view import one_line
from relight.session import CallStart
from relight.text.parse import Content, Reasoning

GROWING_LINES = 3
"""Of reasoning, while it streams."""
FOLD = "▸"
UNFOLD = "▾"
CALL = "→"
REFRESH_PER_S = 8
MARGIN_LINES = 2
"""Kept free, so that a drawing never scrolls the screen."""


class Screen:
    """`clock` is the one that answers are timed by."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock

    @contextmanager
    def answering(self, answer: Answer) -> Iterator[Callable[[Event], None]]:
        drawing = _Drawing(self._console, answer, self._clock)
        live = Live(
            get_renderable=drawing.now,
            console=self._console,
            transient=True,
            refresh_per_second=REFRESH_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        try:
            with live:
                yield drawing.show
                drawing.stop()
                live.refresh()
        finally:  # Ctrl-C and faults, too: what came stays readable
            drawing.finish()

    def ended(self, answer: Answer) -> None:
        self._console.print(Text(stats(answer), style="dim"))
        self._console.print()

    def unfold(self, reasoning: str) -> None:
        self._console.print(Text(f"{UNFOLD} {visible(reasoning)}", style="dim"))

    def say(self, text: str) -> None:
        self._console.print(Text(text, style="dim"))

    def error(self, message: str) -> None:
        self._console.print(Text(f"error: {one_line(message)}", style="red"))


class _Drawing:
    """One answer: what is printed for good, and what is drawn below it for now."""

    def __init__(self, console: Console, answer: Answer, clock: Callable[[], float]) -> None:
        self._console = console
        self._answer = answer
        self._clock = clock
        self._blocks = Blocks()
        self._folded = False
        self._over = False

    def show(self, event: Event) -> None:
        if not isinstance(event, Reasoning):
            self._fold()
        if isinstance(event, Content):
            self._print(self._blocks.feed(visible(event.text)))
        elif isinstance(event, CallStart):
            self._print(self._blocks.finish())

    def now(self) -> RenderableType:
        """Runs in the thread that redraws."""
        answer = self._answer
        if self._over:
            return Text("")
        if answer.first_s is None:
            return Text(f"waiting {self._clock() - answer.asked_s:.0f} s", style="dim")
        if answer.reasoning and not self._folded:
            return self._thinking()
        if answer.calls:
            calls = list(answer.calls.values())  # another thread adds to them
            return Text("\n".join(f"{CALL} {visible(call.shown)}" for call in calls))
        height = max(1, self._console.size.height - MARGIN_LINES)
        return Tail(rendered(self._blocks.open), height)

    def stop(self) -> None:
        self._over = True

    def finish(self) -> None:
        self._over = True
        self._fold()
        self._print(self._blocks.finish())
        for call in self._answer.calls.values():
            self._console.print(Text(f"{CALL} {visible(call.shown)}", style="cyan"))

    def _thinking(self) -> RenderableType:
        answer = self._answer
        seconds = self._clock() - (answer.first_s or 0.0)
        head = f"thinking {seconds:.0f} s, ~{answer.num_thought:,} tokens"
        # Enough for the lines that are drawn, however narrow its words make them.
        end = answer.reasoning[-2 * GROWING_LINES * self._console.width :]
        grown = Text(visible(end).strip(), style="dim italic")
        return Group(Text(head, style="dim"), Tail(grown, GROWING_LINES))

    def _fold(self) -> None:
        if self._answer.reasoning and not self._folded:
            self._folded = True
            self._console.print(Text(f"{FOLD} {thought(self._answer)}", style="dim"))

    def _print(self, blocks: list[str]) -> None:
        for block in blocks:
            self._console.print(rendered(block))
            self._console.print()
