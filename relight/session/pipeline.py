"""Tokens of one answer → pieces of text. Knows no engine; the same tokens in any portions give the
same text."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from relight.base.types import Logprobs
from relight.session.pieces import CallStart, Candidate, Piece, Scored
from relight.text.conversation import Start, Tool
from relight.text.detokenize import Detokenizer, StopStrings
from relight.text.parse import (
    Content,
    Event,
    OutputParser,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from relight.text.tokenizer import Tokenizer


class Pipeline(ABC):
    """A stop string that is complete before `min_tokens` are read ends nothing."""

    def __init__(self, tokenizer: Tokenizer, stops: StopStrings, min_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._num_read = 0

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text; nothing may be fed after it."""
        return self._stops.matched

    @property
    def reasoning_tokens(self) -> int:
        return 0

    @property
    def called(self) -> bool:
        """Whether a complete tool call was read."""
        return False

    @property
    def num_calls(self) -> int:
        """How many calls were begun, also those that are not passed on."""
        return 0

    @property
    def in_reasoning(self) -> bool:
        return False

    @property
    def in_markup(self) -> bool:
        """Whether a call, or what may become one, was begun and not yet left behind."""
        return False

    def feed(self, tokens: Sequence[int], logprobs: Sequence[Logprobs] = ()) -> list[Piece]:
        """`logprobs` has an entry for each token, or none. Nothing is read behind a stop string."""
        if not logprobs and not self._stops.any:
            return self._read(tokens)
        pieces: list[Piece] = []
        for number, token in enumerate(tokens):
            self._num_read += 1
            self._stops.armed = self._num_read >= self._min_tokens
            if logprobs:
                pieces += self._read_scored(token, logprobs[number])
            else:
                pieces += self._read([token])
            if self.stopped_by is not None:
                break
        return pieces

    @abstractmethod
    def finish(self, *, stopped: bool) -> list[Piece]:
        """The rest. `stopped`: the model ended by itself; else it was cut off."""

    @abstractmethod
    def _read(self, tokens: Sequence[int]) -> list[Piece]: ...

    @abstractmethod
    def _read_scored(self, token: int, logprobs: Logprobs) -> list[Piece]: ...

    def _scored(
        self,
        token: int,
        logprobs: Logprobs,
        section: Literal["reasoning", "content"] = "content",
        offset: int = 0,
    ) -> Scored:
        def candidate(token: int, logprob: float) -> Candidate:
            return Candidate(token, self._tokenizer.token_bytes(token), logprob)

        top = tuple(candidate(*pair) for pair in logprobs.top)
        return Scored(candidate(token, logprobs.own), top, section, offset)


class RawPipeline(Pipeline):
    """Plain text: special tokens are spelt out, nothing is parsed."""

    def __init__(self, tokenizer: Tokenizer, stops: StopStrings, min_tokens: int = 0) -> None:
        super().__init__(tokenizer, stops, min_tokens)
        self._text = Detokenizer(tokenizer)
        self._num_characters = 0

    def finish(self, *, stopped: bool) -> list[Piece]:
        text = self._stops.feed(self._text.finish())
        return _content(text + self._stops.finish())

    def _read(self, tokens: Sequence[int]) -> list[Piece]:
        text = self._text.feed(tokens)
        self._num_characters += len(text)
        return _content(self._stops.feed(text))

    def _read_scored(self, token: int, logprobs: Logprobs) -> list[Piece]:
        scored = self._scored(token, logprobs, offset=self._num_characters)
        return [scored, *self._read([token])]


class ChatPipeline(Pipeline):
    """Reasoning, content and tool calls. Stop strings are looked for in content only."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        start: Start,
        tools: Sequence[Tool],
        stops: StopStrings,
        min_tokens: int = 0,
        *,
        continued: bool,
        parallel: bool,
        new_id: Callable[[], str],
    ) -> None:
        """Without `parallel`, calls after the first are parsed and dropped."""
        super().__init__(tokenizer, stops, min_tokens)
        special = tokenizer.special
        self._markers = {special.think_open, special.think_close, special.dsml, special.eos}
        self._parser = OutputParser(tokenizer, start, tools, continued=continued)
        self._parallel = parallel
        self._new_id = new_id
        self._waiting: list[Piece] = []  # scores of tokens whose text no piece has yet

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    @property
    def called(self) -> bool:
        return self._parser.made_call

    @property
    def num_calls(self) -> int:
        return self._parser.num_calls

    @property
    def in_reasoning(self) -> bool:
        return self._parser.section == "reasoning"

    @property
    def in_markup(self) -> bool:
        return self._parser.in_markup

    def finish(self, *, stopped: bool) -> list[Piece]:
        pieces = self._pieces(self._parser.finish(stopped=stopped))
        return self._with_scores(pieces + _content(self._stops.finish()))

    def _read(self, tokens: Sequence[int]) -> list[Piece]:
        return self._pieces(self._parser.feed(tokens))

    def _read_scored(self, token: int, logprobs: Logprobs) -> list[Piece]:
        section = self._parser.section
        if section is not None and token not in self._markers:
            self._waiting.append(self._scored(token, logprobs, section))
        pieces = self._with_scores(self._read([token]))
        dropped = self._parser.section != section or not self._parser.holds_text
        if dropped and not self._stops.holds_text:
            self._waiting.clear()
        return pieces

    def _with_scores(self, pieces: list[Piece]) -> list[Piece]:
        """Scores go before the first text: one section's text comes in one piece at most, and
        another section's scores have gone with its text."""
        for number, piece in enumerate(pieces):
            if isinstance(piece, Reasoning | Content):
                pieces[number:number] = self._waiting
                self._waiting.clear()
                break
        return pieces

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
