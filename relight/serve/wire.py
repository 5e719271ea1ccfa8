"""Pieces and answers of the session → bodies and chunks of the wire. Knows no request."""

from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from relight.base.types import Usage
from relight.serve import sse
from relight.serve.schema import (
    AnswerChoice,
    AnswerMessage,
    CachedTokens,
    CalledFunction,
    ChatChunk,
    ChatCompletion,
    Delta,
    DeltaChoice,
    ReasoningTokens,
    TextChoice,
    TextCompletion,
    ToolCallBody,
    ToolCallDelta,
    UsageBody,
)
from relight.session import Answer, CallStart, Finish, Piece
from relight.text.parse import Content, Reasoning, ToolCallArguments


@dataclass(frozen=True, slots=True)
class Head:
    """What every body and chunk of one answer repeats. With `include_usage` every chunk has a
    usage, null but in the last."""

    id: str
    created: int
    model: str
    include_usage: bool = False

    def chat_chunk(self, choices: list[DeltaChoice], usage: Usage | None = None) -> bytes:
        return sse.event(
            msgspec.json.encode(
                ChatChunk(
                    id=self.id,
                    object="chat.completion.chunk",
                    created=self.created,
                    model=self.model,
                    choices=choices,
                    usage=self._usage(usage),
                )
            )
        )

    def text_chunk(self, choices: list[TextChoice], usage: Usage | None = None) -> bytes:
        return sse.event(msgspec.json.encode(self.text(choices, self._usage(usage))))

    def text(
        self, choices: list[TextChoice], usage: UsageBody | UnsetType | None
    ) -> TextCompletion:
        return TextCompletion(
            id=self.id,
            object="text_completion",
            created=self.created,
            model=self.model,
            choices=choices,
            usage=usage,
        )

    def _usage(self, usage: Usage | None) -> UsageBody | UnsetType | None:
        if not self.include_usage:
            return UNSET
        return None if usage is None else usage_body(usage)


def usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=CachedTokens(usage.cached_tokens),
        completion_tokens_details=ReasoningTokens(usage.reasoning_tokens),
        prompt_cache_hit_tokens=usage.cached_tokens,
        prompt_cache_miss_tokens=usage.prompt_tokens - usage.cached_tokens,
    )


def first_choice() -> DeltaChoice:
    return DeltaChoice(0, Delta(role="assistant", content=""))


def delta_choice(piece: Piece) -> DeltaChoice | None:
    """The piece as a delta of choice 0, or None for what has no trace on the wire."""
    match piece:
        case Reasoning(text=text):
            delta = Delta(reasoning_content=text)
        case Content(text=text):
            delta = Delta(content=text)
        case CallStart(index=index, id=call_id, name=name):
            function = CalledFunction(name=name, arguments="")
            call = ToolCallDelta(index=index, id=call_id, type="function", function=function)
            delta = Delta(tool_calls=[call])
        case ToolCallArguments(index=index, text=text):
            call = ToolCallDelta(index=index, function=CalledFunction(arguments=text))
            delta = Delta(tool_calls=[call])
        case Finish():
            return DeltaChoice(0, Delta(), piece.reason, piece.stopped_by)
        case _:
            return None
    return DeltaChoice(0, delta)


def chat_completion(head: Head, answer: Answer, *, include_reasoning: bool) -> ChatCompletion:
    assert answer.finish is not None, "a whole answer has a finish"
    calls = [
        ToolCallBody(call.id, "function", CalledFunction(name=call.name, arguments=call.arguments))
        for call in answer.calls
    ]
    message = AnswerMessage(
        role="assistant",
        content=None if calls and not answer.content else answer.content,
        reasoning_content=answer.reasoning if answer.reasoning and include_reasoning else UNSET,
        tool_calls=calls or UNSET,
    )
    finish = answer.finish
    return ChatCompletion(
        id=head.id,
        object="chat.completion",
        created=head.created,
        model=head.model,
        choices=[AnswerChoice(0, message, finish.reason, finish.stopped_by)],
        usage=usage_body(finish.usage),
    )
