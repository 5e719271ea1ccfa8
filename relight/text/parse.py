"""Turns the tokens of an answer into reasoning, content and tool calls: one state machine for the
markup of V4 and V4.1. Knows nothing of requests, stop strings or HTTP.

Markers are recognised by token id only. The same characters made of ordinary tokens are text. Tags
are recognised in the text that follows the marker `｜DSML｜`, since the tokenizer fuses a tag's `>`
with what comes next. The machine moves one token at a time: no split of the stream changes a thing.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from itertools import groupby
from typing import Literal

import msgspec

from relight.text.arguments import Arguments
from relight.text.conversation import Start, Tool
from relight.text.detokenize import Utf8Stream
from relight.text.markup import Tag, may_become_tag, read_tag
from relight.text.schema import ParameterTypes
from relight.text.tokenizer import SPELLING, Tokenizer

MAX_HELD = 1000
"""Characters, blanks all but the last, that wait for what comes after them. Without a bound a model
that writes nothing but blanks would have all of them read again with every token."""


class Reasoning(msgspec.Struct, frozen=True):
    text: str


class Content(msgspec.Struct, frozen=True):
    text: str


class ToolCallStart(msgspec.Struct, frozen=True):
    index: int
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True):
    """A piece of the JSON text of the arguments."""

    index: int
    text: str


class ToolCallEnd(msgspec.Struct, frozen=True):
    """The arguments are a whole object now. `complete` is False if the model stopped inside the
    call and the object was closed for it. A call that a limit cuts off has no end."""

    index: int
    complete: bool = True


Event = Reasoning | Content | ToolCallStart | ToolCallArguments | ToolCallEnd


class State(Enum):
    REASONING = auto()
    CONTENT = auto()
    TOOLS = auto()  # inside a block, or after one: text counts only as the body of a call
    VALUE = auto()  # inside a parameter


class OutputParser:
    """Reads one answer. `start` and `continued` come with the prompt. Without `tools` calls are
    read and dropped, so that no markup reaches the client."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        start: Start,
        tools: Sequence[Tool] = (),
        *,
        continued: bool = False,
    ) -> None:
        self._special = tokenizer.special
        self._token_bytes = tokenizer.token_bytes
        self._types = {tool.name: ParameterTypes(tool.parameters or {}) for tool in tools}
        self._drop_calls = not tools
        self._marker_text = SPELLING["dsml"] if tools else ""
        self._state = State[start.upper()]
        self._fresh = not continued  # no text yet in this section: newlines are dropped
        self._absorb_open = start == "reasoning" and not continued  # no token yet
        self._utf8 = Utf8Stream()
        self._held = ""  # text that may yet be dropped, or begin a tag
        self._tag: str | None = None  # what follows the marker, while it may become a tag
        self._closing = False  # whether that tag began with `</`
        self._call: Arguments | None = None
        self._num_calls = 0
        self._ended = False
        self._events: list[Event] = []
        self.reasoning_tokens = 0  # without markers; blank lines that are not sent count too
        self.made_call = False  # a complete call was read

    @property
    def in_content(self) -> bool:
        """Whether text that comes next would be content, where stop strings act."""
        return self._state is State.CONTENT

    @property
    def section(self) -> Literal["reasoning", "content"] | None:
        """What text that comes next would be; None inside and after calls."""
        if self._state is State.REASONING:
            return "reasoning"
        return "content" if self.in_content else None

    @property
    def in_markup(self) -> bool:
        """Whether a call, or what may become one, was begun and not yet left behind."""
        return not self._in_prose or self._tag is not None

    @property
    def num_calls(self) -> int:
        """How many calls were begun, dropped ones too."""
        return self._num_calls + (self._call is not None)

    @property
    def holds_text(self) -> bool:
        """Whether there is text that may yet become part of an event."""
        return bool(self._held) or self._tag is not None or self._utf8.pending

    def feed(self, ids: Iterable[int]) -> list[Event]:
        for token in ids:
            self._token(token)
        return self._take_events()

    def finish(self, *, stopped: bool | None = None) -> list[Event]:
        """The rest, once no token will come. `stopped` says that the model ended by itself; by
        default it did if its last token was EOS. Then an open call is closed as if its tags had
        come, so that its arguments parse; a call that was cut off stays as it is."""
        self._text(self._utf8.finish())
        if self._state in (State.REASONING, State.CONTENT):
            if self._tag is None:
                self._emit_prose(self._held)
        elif self._call and (self._ended if stopped is None else stopped):
            if self._state is State.VALUE:
                self._emit_arguments(self._call.value(self._held))
                self._end_parameter()
            self._end_call(complete=False)
        self._held, self._tag = "", None
        return self._take_events()

    # Tokens

    def _token(self, token: int) -> None:
        special = self._special
        self._ended = token == special.eos
        if self._ended:
            return
        if token == special.think_close:
            self._text(self._utf8.finish())
            self._close_reasoning()
        elif token == special.think_open:
            self._text(self._utf8.finish())
            self._open_reasoning()
        elif token == special.dsml:
            self._text(self._utf8.finish())
            self._read_marker()
        else:
            self._text(self._utf8.feed(self._token_bytes(token)))
            if self._state is State.REASONING and self._tag is None:
                self.reasoning_tokens += 1
        self._absorb_open = False

    def _close_reasoning(self) -> None:
        self._give_up_tag()
        if self._state is State.VALUE:
            self._plain_text(SPELLING["think_close"])
        elif self._state is State.REASONING:
            self._emit_prose(self._held.rstrip("\n"))  # not empty if it holds a `<`
            self._enter(State.CONTENT)

    def _open_reasoning(self) -> None:
        self._give_up_tag()
        if self._state is State.CONTENT:
            self._emit_prose(self._held)
            self._enter(State.REASONING)
        elif self._state is not State.TOOLS and not self._absorb_open:
            self._plain_text(SPELLING["think_open"])

    def _read_marker(self) -> None:
        """`｜DSML｜` begins a tag if `<` or `</` stands before it. Prose has nothing to close, so
        there it begins an opening tag only."""
        self._give_up_tag()
        for opening, closing in (("</", True), ("<", False)):
            if self._held.endswith(opening) and not (closing and self._in_prose):
                self._held = self._held.removesuffix(opening)
                self._tag, self._closing = "", closing
                return
        self._plain_text(self._marker_text)

    # Text

    @property
    def _in_prose(self) -> bool:
        return self._state is State.REASONING or self._state is State.CONTENT

    def _text(self, text: str) -> None:
        """Text from ordinary tokens, which completes a tag or is plain."""
        while text and self._tag is not None:
            text = self._read_tag(text)
        if text:
            self._plain_text(text)

    def _read_tag(self, text: str) -> str:
        """Adds to the tag that is being read; returns the text that stands after it."""
        assert self._tag is not None
        self._tag += text
        found = read_tag(self._tag)
        if found and self._takes(found[0]):
            self._tag, self._held = None, ""
            self._obey(found[0])
            return found[1]
        if found or not may_become_tag(self._tag):
            self._give_up_tag()
        return ""

    def _give_up_tag(self) -> None:
        """What was read as a tag is text."""
        if self._tag is not None:
            opening = "</" if self._closing else "<"
            text, self._tag = opening + self._marker_text + self._tag, None
            self._plain_text(text)

    def _plain_text(self, text: str) -> None:
        text = self._held + text
        if self._in_prose:
            if self._fresh:
                text = text.lstrip("\n")
                self._fresh = not text
            blank = "\n" if self._state is State.REASONING else None
            text, self._held = _split_tail(text, blank)
            if (excess := len(self._held) - MAX_HELD) > 0:
                text, self._held = text + self._held[:excess], self._held[excess:]
            self._emit_prose(text)
            return
        text, self._held = _split_tail(text, "")
        if self._call and self._state is State.VALUE:
            self._emit_arguments(self._call.value(text))
        elif self._call:
            self._call.body(text)

    # Tags

    def _takes(self, tag: Tag) -> bool:
        """Inside a value only the end of the value is a tag, or the start of the next parameter."""
        if self._state is not State.VALUE:
            return True
        return tag.kind == "parameter" and (self._closing or tag.name is not None)

    def _obey(self, tag: Tag) -> None:
        if self._state is State.VALUE:
            self._end_parameter()
        elif self._state is not State.TOOLS:
            self._enter(State.TOOLS)
        if tag.kind == "block" or tag.kind == "invoke":
            self._end_call()
        if self._closing or tag.name is None:
            return
        if tag.kind == "invoke":
            self._start_call(tag.name)
        elif tag.kind == "parameter" and self._call:
            self._state = State.VALUE
            self._emit_arguments(self._call.begin(tag.name, tag.is_string))
        if tag.empty:
            self._end_parameter() if self._state is State.VALUE else self._end_call()

    def _enter(self, state: State) -> None:
        self._state = state
        self._fresh = True
        self._held = ""

    # Calls

    def _start_call(self, name: str) -> None:
        types = self._types.get(name) or ParameterTypes(None)
        self._call = Arguments(types)
        self._emit(ToolCallStart(self._num_calls, name))

    def _end_parameter(self) -> None:
        assert self._call
        self._emit_arguments(self._call.end())
        self._state = State.TOOLS

    def _end_call(self, complete: bool = True) -> None:
        if self._call is None:
            return
        self._emit_arguments(self._call.close())
        self._emit(ToolCallEnd(self._num_calls, complete))
        self._call = None
        self._num_calls += 1
        self.made_call |= complete and not self._drop_calls

    # Events

    def _emit_prose(self, text: str) -> None:
        if not text:
            return
        kind = Reasoning if self._state is State.REASONING else Content
        self._emit(kind(text))

    def _emit_arguments(self, text: str) -> None:
        if text:
            self._emit(ToolCallArguments(self._num_calls, text))

    def _emit(self, event: Event) -> None:
        if not self._drop_calls or isinstance(event, Reasoning | Content):
            self._events.append(event)

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events if len(events) < 2 else list(_merge_texts(events))


def _merge_texts(events: list[Event]) -> Iterator[Event]:
    """Joins texts of one kind that follow each other, once, so that a long feed stays linear."""
    for _, group in groupby(events, key=type):
        run = list(group)
        texts = [event.text for event in run if not isinstance(event, ToolCallStart | ToolCallEnd)]
        if texts:  # arguments of two calls never meet: an end and a start stand between them
            yield msgspec.structs.replace(run[0], text="".join(texts))
        else:
            yield from run


def _split_tail(text: str, blank: str | None) -> tuple[str, str]:
    """Cuts off what may begin a tag (`<` or `</`) and the blanks before it, which are dropped if a
    tag follows. `blank` is as for `str.rstrip`."""
    body = text
    for opening in ("</", "<"):
        if text.endswith(opening):
            body = text.removesuffix(opening)
            break
    body = body.rstrip(blank)
    return body, text[len(body) :]
