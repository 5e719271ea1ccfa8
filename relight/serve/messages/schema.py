"""Bodies of Anthropic's protocol as msgspec Structs. Knows a field's shape, not what it does."""

from typing import Annotated, Any

import msgspec

from relight.serve.schema import EffortHolder, Thinking
from relight.session.request import (
    MAX_STOPS,
    CacheSalt,
    MaxTokens,
    Seed,
    StopString,
    Temperature,
    TopK,
    TopP,
)


class Block(msgspec.Struct, kw_only=True):
    """One part of a message. `type` says which of the fields count. `signature` comes with the
    thinking of an answer, and back: it proves what needs no proof here."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: Any = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None


class Turn(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[Block]


class InputTool(msgspec.Struct, kw_only=True):
    """A function of the client. A `type` other than custom names a tool of the server."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoiceBody(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    type: str
    schema: dict[str, Any] | bool | None = None


class OutputConfig(EffortHolder, kw_only=True):
    format: OutputFormat | None = None


class PromptCall(msgspec.Struct, kw_only=True):
    """Body of `POST /v1/messages/count_tokens`, which may be that of a call as it stands."""

    messages: list[Turn]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[InputTool] | None = None
    tool_choice: ToolChoiceBody | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesCall(PromptCall, kw_only=True):
    """Body of `POST /v1/messages`. `seed` and `cache_salt` are this server's own."""

    max_tokens: MaxTokens | None = None
    stop_sequences: Annotated[list[StopString], MAX_STOPS] | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    cache_salt: CacheSalt | None = None


class ThinkingBlock(msgspec.Struct, tag="thinking"):
    thinking: str
    signature: str


class TextBlock(msgspec.Struct, tag="text"):
    text: str


class ToolUseBlock(msgspec.Struct, tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw


AnswerBlock = ThinkingBlock | TextBlock | ToolUseBlock


class MessageUsage(msgspec.Struct):
    """In tokens. `input_tokens` are those of the prompt that were not found in the cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class MessageBody(msgspec.Struct, tag="message"):
    id: str
    role: str
    model: str
    content: list[AnswerBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(msgspec.Struct):
    input_tokens: int


class MessageStart(msgspec.Struct, tag="message_start"):
    message: MessageBody


class BlockStart(msgspec.Struct, tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class ThinkingDelta(msgspec.Struct, tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, tag="signature_delta"):
    signature: str


class TextDelta(msgspec.Struct, tag="text_delta"):
    text: str


class InputJsonDelta(msgspec.Struct, tag="input_json_delta"):
    partial_json: str


class BlockDelta(msgspec.Struct, tag="content_block_delta"):
    index: int
    delta: ThinkingDelta | SignatureDelta | TextDelta | InputJsonDelta


class BlockStop(msgspec.Struct, tag="content_block_stop"):
    index: int


class MessageEnd(msgspec.Struct):
    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag="message_delta"):
    delta: MessageEnd
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag="message_stop"):
    pass


class Ping(msgspec.Struct, tag="ping"):
    pass


class MessageErrorDetail(msgspec.Struct):
    type: str
    message: str


class MessageError(msgspec.Struct, tag="error"):
    error: MessageErrorDetail
    request_id: str


MessageEvent = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping
)
