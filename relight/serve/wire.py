"""Pieces and answers of the session → bodies and chunks of the wire. Knows no request."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import msgspec
from msgspec import UNSET, UnsetType

from relight.base.types import Guessed, Usage
from relight.serve import sse
from relight.serve.schema import (
    AnswerChoice,
    AnswerMessage,
    CachedTokens,
    CalledFunction,
    ChatChunk,
    ChatCompletion,
    ChatLogprob,
    ChatLogprobs,
    Delta,
    DeltaChoice,
    ReasoningTokens,
    SpeculationBody,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    Timing,
    TokenLogprob,
    ToolCallBody,
    ToolCallDelta,
    UsageBody,
    UsageIn,
)
from relight.session import Answer, CallStart, Candidate, Finish, Job, Piece, Scored
from relight.text.parse import Content, Reasoning, ToolCallArguments


@dataclass(frozen=True, slots=True)
class Head:
    """What every body and chunk of one answer repeats. Where a stream tells its usage, each chunk
    has one: null but in the last, or that of its answer so far. `speculation`: and in it what
    became of guesses."""

    created: int
    model: str
    usage_in: UsageIn = "none"
    speculation: bool = False
    id: str = ""

    def named(self, kind: str, job: Job) -> "Head":
        """With the id by which the engine's log knows the request."""
        return replace(self, id=f"{kind}-{job.request.id}")

    def so_far(self, job: Job) -> Usage | None:
        """What a chunk of this answer tells."""
        return job.usage if self.usage_in == "every" else None

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
        if self.usage_in == "none":
            return UNSET
        return None if usage is None else self.usage(usage)

    def usage(self, usage: Usage) -> UsageBody:
        body = _usage_body(usage)
        if self.speculation:
            body.speculation = _speculation(usage)
        return body


def _usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=CachedTokens(usage.cached_tokens),
        completion_tokens_details=ReasoningTokens(usage.reasoning_tokens),
        prompt_cache_hit_tokens=usage.cached_tokens,
        prompt_cache_miss_tokens=usage.prompt_tokens - usage.cached_tokens,
        timing=_timing(usage),
    )


def _timing(usage: Usage) -> Timing | UnsetType:
    """Left out where no engine has told it."""
    if not usage.prefill_s:
        return UNSET
    times = (usage.queue_s, usage.prefill_s, usage.decode_s)
    return Timing(*(round(1000 * seconds, 3) for seconds in times))


def _speculation(usage: Usage) -> SpeculationBody:
    guessed = usage.guessed or Guessed(0, ())
    return SpeculationBody(
        num_spec_steps=sum(guessed.checks),
        num_draft_tokens=guessed.drafted,
        num_accepted_tokens=sum(right * times for right, times in enumerate(guessed.checks)),
        acceptance_histogram=list(guessed.checks),
    )


def total_usage(usages: Sequence[tuple[Job, Usage]]) -> Usage:
    """Of all answers of one call; a prompt counts once, whatever the number of its answers, and of
    times the longest."""
    prompts = [usage for job, usage in usages if not job.is_later_choice]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in prompts),
        completion_tokens=sum(usage.completion_tokens for _, usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in prompts),
        reasoning_tokens=sum(usage.reasoning_tokens for _, usage in usages),
        queue_s=max(job.times.queue_s for job, _ in usages),
        prefill_s=max(job.times.prefill_s for job, _ in usages),
        decode_s=max(job.times.decode_s for job, _ in usages),
        guessed=_total_guessed([usage.guessed for _, usage in usages if usage.guessed]),
    )


def _total_guessed(all_guessed: Sequence[Guessed]) -> Guessed:
    checks = [sum(row) for row in zip_longest(*(g.checks for g in all_guessed), fillvalue=0)]
    return Guessed(sum(guessed.drafted for guessed in all_guessed), tuple(checks))


def first_choice(index: int) -> DeltaChoice:
    return DeltaChoice(index, Delta(role="assistant", content=""))


def delta_choice(index: int, piece: Piece, scores: Sequence[Scored]) -> DeltaChoice | None:
    """The piece as a delta of a choice, or None for what has no trace on the wire."""
    choice = _delta_choice(index, piece)
    if choice is not None and scores:
        choice.logprobs = chat_logprobs(scores)
    return choice


def _delta_choice(number: int, piece: Piece) -> DeltaChoice | None:
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
            return DeltaChoice(number, Delta(), piece.reason, piece.stopped_by)
        case _:
            return None
    return DeltaChoice(number, delta)


def chat_completion(head: Head, choices: Sequence[AnswerChoice], usage: Usage) -> ChatCompletion:
    return ChatCompletion(
        id=head.id,
        object="chat.completion",
        created=head.created,
        model=head.model,
        choices=list(choices),
        usage=head.usage(usage),
    )


def answer_choice(
    index: int, answer: Answer, *, include_reasoning: bool, logprobs: bool
) -> AnswerChoice:
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
    choice = AnswerChoice(index, message, answer.finish.reason, answer.finish.stopped_by)
    if logprobs:
        told = [s for s in answer.scores if include_reasoning or s.section == "content"]
        choice.logprobs = chat_logprobs(told)
    return choice


def chat_logprobs(scores: Sequence[Scored]) -> ChatLogprobs:
    sections: dict[str, list[ChatLogprob]] = {"content": [], "reasoning": []}
    for scored in scores:
        own, top = _token_logprob(scored.token), [_token_logprob(other) for other in scored.top]
        entry = ChatLogprob(own.token, own.logprob, own.bytes, top)
        sections[scored.section].append(entry)
    return ChatLogprobs(sections["content"], sections["reasoning"] or UNSET)


def _token_logprob(token: Candidate) -> TokenLogprob:
    text = token.bytes.decode("utf-8", "replace")
    return TokenLogprob(text, token.logprob, list(token.bytes))


def text_logprobs(scores: Sequence[Scored], first: bytes | None = None) -> TextLogprobs:
    """The drawn token is among the best ones even where it is not: so OpenAI tells it. `first`: the
    first token of an echoed prompt stands before them."""
    told = TextLogprobs(
        tokens=[_spelt(scored.token.bytes) for scored in scores],
        token_logprobs=[scored.token.logprob for scored in scores],
        top_logprobs=[
            {_spelt(token.bytes): token.logprob for token in (*scored.top, scored.token)}
            for scored in scores
        ],
        text_offset=[scored.offset for scored in scores],
    )
    if first is not None:
        told.tokens.insert(0, _spelt(first))
        told.token_logprobs.insert(0, None)
        told.top_logprobs.insert(0, None)
        told.text_offset.insert(0, 0)
    return told


def _spelt(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
