"""Pieces of an answer → the blocks of a message, as events and as a whole. Knows no request.

A message starts before its prompt is looked up in the cache, so that clients see at once that it
was accepted: `message_start` counts the whole prompt as new, `message_delta` tells what was found.
"""

from collections.abc import Iterator

import msgspec

from relight.base.types import Usage
from relight.serve.messages.schema import (
    AnswerBlock,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputJsonDelta,
    MessageBody,
    MessageDelta,
    MessageEnd,
    MessageStart,
    MessageStop,
    MessageUsage,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from relight.serve.messages.voice import MessagesVoice, event
from relight.session import CallStart, Finish, Job, Piece
from relight.text.parse import Content, Reasoning, ToolCallArguments, ToolCallEnd

SIGNATURE = "relight"
"""Clients send thinking back only if it is signed. Nothing here reads it."""

_NO_INPUT = msgspec.Raw(b"{}")


class MessageTeller(MessagesVoice):
    """`_block` is the block that grows, if any; `_parts` its text so far."""

    def __init__(self, job: Job, model: str) -> None:
        self._message = MessageBody(
            id=f"msg_{job.request.id}",
            role="assistant",
            model=model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=MessageUsage(len(job.request.prompt), 0, 0),
        )
        self._num_blocks = 0
        self._block: AnswerBlock | None = None
        self._parts: list[str] = []
        self._called = False  # the call that grows is complete

    def begin(self) -> Iterator[bytes]:
        yield event(MessageStart(self._message))

    def tell(self, piece: Piece) -> Iterator[bytes]:
        match piece:
            case Reasoning(text=text):
                if not isinstance(self._block, ThinkingBlock):
                    yield from self._open(ThinkingBlock("", ""))
                yield self._grow(text, ThinkingDelta(text))
            case Content(text=text):
                if not isinstance(self._block, TextBlock):
                    yield from self._open(TextBlock(""))
                yield self._grow(text, TextDelta(text))
            case CallStart():
                yield from self._open(ToolUseBlock(piece.id, piece.name, _NO_INPUT))
            case ToolCallArguments(text=text):
                yield self._grow(text, InputJsonDelta(text))
            case ToolCallEnd():
                self._called = True
                yield from self._close()
            case Finish():
                yield from self._close()
                yield from self._end(piece)

    def whole(self) -> MessageBody:
        return self._message

    def _open(self, block: AnswerBlock) -> Iterator[bytes]:
        yield from self._close()
        self._block, self._parts, self._called = block, [], False
        yield event(BlockStart(self._num_blocks, block))

    def _grow(
        self, text: str, delta: ThinkingDelta | TextDelta | SignatureDelta | InputJsonDelta
    ) -> bytes:
        self._parts.append(text)
        return event(BlockDelta(self._num_blocks, delta))

    def _close(self) -> Iterator[bytes]:
        """A call that was cut off is no part of the whole."""
        block, text = self._block, "".join(self._parts)
        if block is None:
            return
        match block:
            case ThinkingBlock():
                yield self._grow("", SignatureDelta(SIGNATURE))
                self._message.content.append(ThinkingBlock(text, SIGNATURE))
            case TextBlock():
                self._message.content.append(TextBlock(text))
            case ToolUseBlock():
                if self._called:
                    arguments = msgspec.Raw(text.encode())
                    self._message.content.append(ToolUseBlock(block.id, block.name, arguments))
        yield event(BlockStop(self._num_blocks))
        self._num_blocks += 1
        self._block = None

    def _end(self, finish: Finish) -> Iterator[bytes]:
        message = self._message
        reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
        message.stop_reason = reasons[finish.reason]
        if isinstance(finish.stopped_by, str):
            message.stop_reason, message.stop_sequence = "stop_sequence", finish.stopped_by
        message.usage = _usage(finish.usage)
        end = MessageEnd(message.stop_reason, message.stop_sequence)
        yield event(MessageDelta(end, message.usage))
        yield event(MessageStop())


def _usage(usage: Usage) -> MessageUsage:
    cached = usage.cached_tokens
    return MessageUsage(usage.prompt_tokens - cached, usage.completion_tokens, cached)
