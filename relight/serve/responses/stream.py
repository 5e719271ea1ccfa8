"""Pieces of an answer → items, as events and as a whole. Knows no request."""

from collections.abc import Iterator
from typing import Any

import msgspec

from relight.base.errors import BadRequest, Overloaded
from relight.base.types import Usage
from relight.serve import sse
from relight.serve.responses import schema
from relight.serve.responses.growing import (
    Growing,
    GrowingCall,
    GrowingCustomCall,
    GrowingReasoning,
    GrowingText,
    Told,
)
from relight.serve.responses.tools import Tools
from relight.serve.schema import CachedTokens, ReasoningTokens
from relight.serve.voice import OpenAIVoice, Problem
from relight.serve.wire import chat_logprobs
from relight.session import CallStart, Finish, Piece, Scored
from relight.text.parse import Content, Reasoning, ToolCallArguments, ToolCallEnd


class ResponseTeller(OpenAIVoice):
    """`response` is told as it stands in the events that tell its state. `_item` grows, if any.
    With `sealed` reasoning also comes in the form for clients that read none."""

    def __init__(self, response: schema.ResponseBody, tools: Tools, *, sealed: bool) -> None:
        self._response = response
        self._tools = tools
        self._sealed = sealed
        self._num_events = 0
        self._num_items = 0
        self._item: Growing | None = None
        self._scores: list[Scored] = []  # told with the text that they belong to

    def begin(self) -> Iterator[bytes]:
        yield self._state(schema.ResponseCreated)
        yield self._state(schema.ResponseInProgress)

    def tell(self, piece: Piece) -> Iterator[bytes]:
        match piece:
            case Reasoning(text=text):
                if not isinstance(self._item, GrowingReasoning):
                    id = self._new_id("rs")
                    yield from self._open(GrowingReasoning(id, sealed=self._sealed))
                yield from self._grow(text)
            case Scored(section="content"):
                self._scores.append(piece)
            case Content(text=text):
                yield from self._say(text)
            case CallStart():
                yield from self._open(self._call(piece))
            case ToolCallArguments(text=text):
                yield from self._grow(text)
            case ToolCallEnd():
                assert isinstance(self._item, GrowingCall), "what ends has begun"
                self._item.complete = True
                yield from self._close("completed")
            case Finish(reason=reason):
                yield from self._close("incomplete" if reason == "length" else "completed")
                yield self._end(piece)

    def whole(self) -> schema.ResponseBody:
        return self._response

    def keep_alive(self) -> bytes:
        """An event with data, since some clients count comments as silence."""
        return self._state(schema.ResponseInProgress)

    def last_event(self, problem: Problem) -> bytes:
        error = problem.error
        code = "server_error"
        if isinstance(error, BadRequest | Overloaded):
            code = error.code
        self._response.status = "failed"
        self._response.error = schema.ResponseError(code, problem.message)
        return self._state(schema.ResponseFailed)

    def _call(self, start: CallStart) -> GrowingCall:
        exposed = self._tools.exposed(start.name)
        kind, make = ("ctc", GrowingCustomCall) if exposed.is_custom else ("fc", GrowingCall)
        return make(self._new_id(kind), start.id, exposed)

    def _open(self, item: Growing) -> Iterator[bytes]:
        yield from self._close("completed")
        self._item = item
        yield self._event(schema.ItemAdded, self._about(item.item("in_progress")))
        yield from self._placed(item.begin())

    def _say(self, text: str) -> Iterator[bytes]:
        item = self._item
        if not isinstance(item, GrowingText):
            item = GrowingText(self._new_id("msg"))
            yield from self._open(item)
        scores, self._scores = self._scores, []
        yield from self._placed(item.add(text, chat_logprobs(scores).content))

    def _grow(self, text: str) -> Iterator[bytes]:
        assert self._item is not None, "an item is open"
        yield from self._placed(self._item.add(text))

    def _close(self, status: str) -> Iterator[bytes]:
        """A call that was cut off is no part of the whole."""
        if self._item is None:
            return
        yield from self._placed(self._item.end())
        if isinstance(self._item, GrowingCall) and not self._item.complete:
            status = "incomplete"
        item = self._item.item(status)
        if not isinstance(self._item, GrowingCall) or self._item.complete:
            self._response.output.append(item)
        yield self._event(schema.ItemDone, self._about(item))
        self._num_items += 1
        self._item = None

    def _end(self, finish: Finish) -> bytes:
        response = self._response
        response.usage = _usage(finish.usage)
        if finish.reason == "length":
            response.status = "incomplete"
            response.incomplete_details = schema.IncompleteDetails("max_output_tokens")
            return self._state(schema.ResponseIncomplete)
        response.status = "completed"
        return self._state(schema.ResponseCompleted)

    def _new_id(self, kind: str) -> str:
        """The number of the item before that of the answer, which other ids end in."""
        number = self._num_items + (self._item is not None)
        return f"{kind}_{number}_{self._response.id.removeprefix('resp_')}"

    def _about(self, item: schema.OutputItem) -> dict[str, Any]:
        return {"output_index": self._num_items, "item": item}

    def _placed(self, told: Iterator[Told]) -> Iterator[bytes]:
        assert self._item is not None, "an item is open"
        place = {"item_id": self._item.id, "output_index": self._num_items}
        for kind, fields in told:
            yield self._event(kind, place | fields)

    def _state(self, kind: type[schema.Event]) -> bytes:
        return self._event(kind, {"response": self._response})

    def _event(self, kind: type[schema.Event], fields: dict[str, Any]) -> bytes:
        """An event is named by its own type."""
        event = kind(sequence_number=self._num_events, **fields)
        self._num_events += 1
        name = str(kind.__struct_config__.tag).encode()
        return b"event: " + name + b"\n" + sse.event(msgspec.json.encode(event))


def _usage(usage: Usage) -> schema.ResponseUsage:
    return schema.ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=CachedTokens(usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=ReasoningTokens(usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
