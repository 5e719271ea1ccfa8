"""Tokens of one answer → pieces of text. Knows no engine; the same tokens in any portions give the
same text."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from relight.session.pieces import CallStart, Piece
from relight.text.conversation import Start, Tool
from relight.text.detokenize import Detokenizer, StopStrings
from relight.text.parse import (
    Content,
    Event,
    OutputParser,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from relight.text.tokenizer import Tokenizer


class Pipeline(Protocol):
    """`stopped_by` is the stop string that ended the text; nothing may be fed after it."""

    @property
    def stopped_by(self) -> str | None: ...
    @property
    def reasoning_tokens(self) -> int: ...
    @property
    def called(self) -> bool: ...

    def feed(self, tokens: Sequence[int]) -> list[Piece]: ...

    def finish(self, *, stopped: bool) -> list[Piece]:
        """The rest. `stopped`: the model ended by itself; else it was cut off."""
        ...


class RawPipeline:
    """Plain text: special tokens are spelt out, nothing is parsed."""

    reasoning_tokens = 0
    called = False

    def __init__(self, tokenizer: Tokenizer, stops: StopStrings) -> None:
        self._text = Detokenizer(tokenizer)
        self._stops = stops

    @property
    def stopped_by(self) -> str | None:
        return self._stops.matched

    def feed(self, tokens: Sequence[int]) -> list[Piece]:
        return _content(self._stops.feed(self._text.feed(tokens)))

    def finish(self, *, stopped: bool) -> list[Piece]:
        text = self._stops.feed(self._text.finish())
        return _content(text + self._stops.finish())


class ChatPipeline:
    """Reasoning, content and tool calls. Stop strings are looked for in content only."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        start: Start,
        tools: Sequence[Tool],
        stops: StopStrings,
        *,
        continued: bool,
        parallel: bool,
        new_id: Callable[[], str],
    ) -> None:
        """Without `parallel`, calls after the first are parsed and dropped."""
        self._parser = OutputParser(tokenizer, start, tools, continued=continued)
        self._stops = stops
        self._parallel = parallel
        self._new_id = new_id

    @property
    def stopped_by(self) -> str | None:
        return self._stops.matched

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    @property
    def called(self) -> bool:
        return self._parser.made_call

    def feed(self, tokens: Sequence[int]) -> list[Piece]:
        return self._pieces(self._parser.feed(tokens))

    def finish(self, *, stopped: bool) -> list[Piece]:
        pieces = self._pieces(self._parser.finish(stopped=stopped))
        return pieces + _content(self._stops.finish())

    def _pieces(self, events: Iterable[Event]) -> list[Piece]:
        pieces: list[Piece] = []
        for event in events:
            if isinstance(event, Content):
                pieces += _content(self._stops.feed(event.text))
                if self.stopped_by is not None:
                    break
            elif isinstance(event, ToolCallStart):
                # What the filter holds back is followed by no more text: it cannot become a match.
                pieces += _content(self._stops.finish())
                if self._wanted(event.index):
                    call_id = f"call_{self._new_id()[:24]}"
                    pieces.append(CallStart(event.index, call_id, event.name))
            elif not isinstance(event, ToolCallArguments | ToolCallEnd) or self._wanted(
                event.index
            ):
                pieces.append(event)
        return pieces

    def _wanted(self, index: int) -> bool:
        return self._parallel or index == 0


def _content(text: str) -> list[Piece]:
    return [Content(text)] if text else []
