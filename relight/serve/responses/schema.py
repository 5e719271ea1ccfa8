"""Bodies of the protocol of items as msgspec Structs. Knows a field's shape, not what it does."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from relight.serve.schema import CachedTokens, ChatLogprob, EffortHolder, ReasoningTokens
from relight.session.request import CacheSalt, MaxTokens, Seed, Temperature, TopLogprobs, TopP


class ItemPart(msgspec.Struct, kw_only=True):
    """A part of an item's content. `type` says which of the fields count. The last two come with
    an answer, and back: they tell the model nothing."""

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: Any = None
    logprobs: Any = None


class InputItem(msgspec.Struct, kw_only=True):
    """One item of the conversation. `type` says which of the fields count; without one it is a
    message. `text` stands in parts of messages only, and is read to refuse it here. `id` and
    `status` come with the items of an answer, and back: they tell the model nothing."""

    type: str | None = None
    role: str | None = None
    content: str | list[ItemPart] | None = None
    text: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: str | list[ItemPart] | None = None
    summary: list[ItemPart] | None = None
    encrypted_content: str | None = None
    id: Any = None
    status: Any = None


class ItemTool(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A function, a custom tool that takes text, or a namespace of `tools`."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    tools: "list[ItemTool] | None" = None


class ItemToolChoice(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None
    namespace: str | None = None


class FormatBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A schema stands beside its type, and not in an object of its own."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class TextFields(msgspec.Struct, kw_only=True):
    format: FormatBody | None = None


class ResponsesCall(msgspec.Struct, kw_only=True):
    """Body of `POST /v1/responses`. `seed` and `cache_salt` are this server's own."""

    input: str | list[InputItem]
    model: str | None = None
    instructions: str | None = None
    tools: list[ItemTool] | None = None
    tool_choice: str | ItemToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: EffortHolder | None = None
    text: TextFields | None = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    max_output_tokens: MaxTokens | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_logprobs: TopLogprobs | None = None
    seed: Seed | None = None
    cache_salt: CacheSalt | None = None


class ReasoningPart(msgspec.Struct, tag="reasoning_text"):
    text: str


class TextPart(msgspec.Struct, tag="output_text"):
    text: str
    annotations: tuple[()] = ()
    logprobs: list[ChatLogprob] = []


class ReasoningItem(msgspec.Struct, tag="reasoning"):
    id: str
    status: str
    content: list[ReasoningPart]
    summary: tuple[()] = ()
    encrypted_content: str | None = None


class MessageItem(msgspec.Struct, tag="message"):
    id: str
    status: str
    role: str
    content: list[TextPart]


class FunctionCallItem(msgspec.Struct, tag="function_call"):
    id: str
    status: str
    call_id: str
    name: str
    arguments: str = ""
    namespace: str | UnsetType = UNSET


class CustomCallItem(msgspec.Struct, tag="custom_tool_call"):
    id: str
    status: str
    call_id: str
    name: str
    input: str = ""


OutputItem = ReasoningItem | MessageItem | FunctionCallItem | CustomCallItem


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseError(msgspec.Struct):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: str


class ReasoningEcho(msgspec.Struct):
    effort: str | int | float | None
    summary: None = None


class ResponseBody(msgspec.Struct, kw_only=True):
    """The whole answer, also inside of the events that tell its state. Nothing is stored."""

    id: str
    object: str = "response"
    created_at: int
    status: str
    model: str
    output: list[OutputItem]
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
    instructions: str | None
    max_output_tokens: int | None
    parallel_tool_calls: bool
    reasoning: ReasoningEcho
    temperature: float | None
    top_p: float | None
    text: dict[str, Any]
    tool_choice: str | ItemToolChoice
    tools: list[ItemTool]
    metadata: dict[str, Any]
    previous_response_id: None = None
    store: bool = False
    truncation: str = "disabled"
    top_logprobs: int | UnsetType = UNSET


class Event(msgspec.Struct, kw_only=True):
    """`sequence_number` counts the events of an answer from 0."""

    sequence_number: int


class ResponseCreated(Event, tag="response.created"):
    response: ResponseBody


class ResponseInProgress(Event, tag="response.in_progress"):
    """Also the sign of life of a stream that is silent."""

    response: ResponseBody


class ResponseCompleted(Event, tag="response.completed"):
    response: ResponseBody


class ResponseIncomplete(Event, tag="response.incomplete"):
    response: ResponseBody


class ResponseFailed(Event, tag="response.failed"):
    response: ResponseBody


class ItemEvent(Event, kw_only=True):
    output_index: int
    item: OutputItem


class ItemAdded(ItemEvent, tag="response.output_item.added"):
    pass


class ItemDone(ItemEvent, tag="response.output_item.done"):
    pass


class PlacedEvent(Event, kw_only=True):
    """What happens to an item that was added."""

    item_id: str
    output_index: int


class PartEvent(PlacedEvent, kw_only=True):
    part: ReasoningPart | TextPart
    content_index: int = 0


class PartAdded(PartEvent, tag="response.content_part.added"):
    pass


class PartDone(PartEvent, tag="response.content_part.done"):
    pass


class ReasoningDelta(PlacedEvent, tag="response.reasoning_text.delta", kw_only=True):
    delta: str
    content_index: int = 0


class ReasoningDone(PlacedEvent, tag="response.reasoning_text.done", kw_only=True):
    text: str
    content_index: int = 0


class OutputTextDelta(PlacedEvent, tag="response.output_text.delta", kw_only=True):
    delta: str
    content_index: int = 0
    logprobs: list[ChatLogprob] = []


class OutputTextDone(PlacedEvent, tag="response.output_text.done", kw_only=True):
    text: str
    content_index: int = 0
    logprobs: list[ChatLogprob] = []


class ArgumentsDelta(PlacedEvent, tag="response.function_call_arguments.delta", kw_only=True):
    delta: str


class ArgumentsDone(PlacedEvent, tag="response.function_call_arguments.done", kw_only=True):
    name: str
    arguments: str


class CustomInputDelta(PlacedEvent, tag="response.custom_tool_call_input.delta", kw_only=True):
    delta: str


class CustomInputDone(PlacedEvent, tag="response.custom_tool_call_input.done", kw_only=True):
    input: str


ResponseEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | ReasoningDelta
    | ReasoningDone
    | OutputTextDelta
    | OutputTextDone
    | ArgumentsDelta
    | ArgumentsDone
    | CustomInputDelta
    | CustomInputDone
)
