"""A chunk of a streamed answer, as servers of several dialects write it. Knows what is there to be
read, not what it means.
"""

from typing import Any

import msgspec


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    function: Function | None = None


class Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct):
    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class Timing(msgspec.Struct):
    """Ours, beside usage."""

    queue_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None


class Speculation(msgspec.Struct):
    num_spec_steps: int | None = None
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None
    acceptance_histogram: list[int] | dict[str, int] | None = None


class Usage(msgspec.Struct):
    timing: Timing | None = None
    speculation: Speculation | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: OutputDetails | None = None


class Metrics(msgspec.Struct):
    """vLLM's, where it was started to tell them."""

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    queue_time_ms: float | None = None
    speculative_decoding: Speculation | None = None


class Timings(msgspec.Struct):
    """llama.cpp's."""

    prompt_ms: float | None = None
    predicted_ms: float | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None


class Chunk(msgspec.Struct):
    metrics: Metrics | None = None
    timings: Timings | None = None
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: str | None = None


decode = msgspec.json.Decoder(Chunk).decode
