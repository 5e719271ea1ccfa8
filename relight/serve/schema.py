"""Every body that the server reads or writes, as msgspec Structs: the one schema of the wire.
Knows the shape of a field, not what a field does.

A field that is declared in a call is honoured. What a call names besides is in `fields`.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from relight.session.request import (
    MAX_BIASES,
    MAX_STOP_IDS,
    MAX_STOPS,
    Bias,
    CacheSalt,
    Choices,
    MaxTokens,
    MinP,
    MinTokens,
    Penalty,
    RepetitionPenalty,
    Seed,
    StopString,
    Temperature,
    ThinkingBudget,
    TokenId,
    TopK,
    TopLogprobs,
    TopP,
)

Stops = StopString | Annotated[list[StopString], MAX_STOPS]
StopIds = Annotated[list[TokenId], MAX_STOP_IDS]
LogitBias = Annotated[dict[TokenId, Bias], MAX_BIASES]
MaxTokensOrNone = Annotated[int, msgspec.Meta(ge=0)]
Effort = str | int | float
UsageIn = Literal["none", "last", "every"]
"""Which chunks of a stream tell a usage."""


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchemaBody(msgspec.Struct, kw_only=True):
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormatBody(msgspec.Struct, kw_only=True):
    """`type` says which of the others is read."""

    type: str
    json_schema: JsonSchemaBody | None = None
    regex: str | None = None
    grammar: str | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The forms of vLLM, one of the first five."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_fallback: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None
    structural_tag: str | None = None


class FormFields(msgspec.Struct, kw_only=True):
    """The form of the answer, in the dialects of OpenAI, vLLM (new and old) and SGLang."""

    response_format: ResponseFormatBody | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    ebnf: str | None = None


class SamplingFields(FormFields, kw_only=True):
    """What chat and plain completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    stop: Stops | None = None
    include_stop_str_in_output: bool | None = None
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = None
    min_tokens: MinTokens | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: LogitBias | None = None
    n: Choices | None = None
    include_speculation: bool | None = None
    cache_salt: CacheSalt | None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class MessageToolCall(msgspec.Struct, kw_only=True):
    function: FunctionCall
    id: str | None = None
    type: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[str | dict[str, Any]] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    prefix: bool | None = None
    function_call: Any = None
    audio: Any = None


class Function(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(msgspec.Struct, kw_only=True):
    function: Function | None = None
    type: str = "function"


class FunctionName(msgspec.Struct, kw_only=True):
    name: str


class NamedToolChoice(msgspec.Struct, kw_only=True):
    type: str
    function: FunctionName | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """A switch, and the most tokens of reasoning before it is closed."""

    type: str
    budget_tokens: ThinkingBudget | None = None


class EffortHolder(msgspec.Struct, kw_only=True):
    effort: Effort | None = None


class TemplateFields(msgspec.Struct, kw_only=True):
    thinking: bool | None = None
    enable_thinking: bool | None = None
    reasoning_effort: Effort | None = None
    drop_thinking: bool | None = None


class PromptFields(SamplingFields, kw_only=True):
    """What decides the prompt of a conversation besides its messages."""

    tools: list[FunctionTool] | None = None
    tool_choice: str | NamedToolChoice | None = None
    reasoning_effort: Effort | None = None
    thinking: Thinking | None = None
    enable_thinking: bool | None = None
    reasoning: EffortHolder | None = None
    output_config: EffortHolder | None = None
    chat_template_kwargs: TemplateFields | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class ChatCall(PromptFields, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: list[ChatMessage]
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: ThinkingBudget | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None


class CompletionCall(SamplingFields, kw_only=True):
    """Body of `POST /v1/completions`. A list is one prompt of ids, or several prompts. `logprobs`
    false is off. With `suffix` the answer is what stands between the two; `echo` tells the prompt
    in front of it, with `logprobs` those of its tokens, and then `max_tokens` may be 0."""

    prompt: str | list[TokenId | str | list[TokenId]]
    max_tokens: MaxTokensOrNone | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: TopLogprobs | bool | None = None


class TokenizeCall(PromptFields, kw_only=True):
    """Body of `POST /tokenize`: a raw prompt, or the body of a chat completion as it stands, of
    which what does not decide the prompt has no effect."""

    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeCall(msgspec.Struct, kw_only=True):
    """Body of `POST /detokenize`."""

    tokens: list[TokenId]
    model: str | None = None


class CachedTokens(msgspec.Struct):
    cached_tokens: int


class ReasoningTokens(msgspec.Struct):
    reasoning_tokens: int


class Timing(msgspec.Struct):
    """Milliseconds in the queue, from the slot to the first token, and from there to the end."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float


class SpeculationBody(msgspec.Struct):
    """What became of guesses at the tokens of an answer, by the names of vLLM.
    `acceptance_histogram[i]` counts the steps in which i were right."""

    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_histogram: list[int]


class UsageBody(msgspec.Struct):
    """Counts in tokens. `prompt_cache_*` are DeepSeek's names for the cached part and the rest."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens
    prompt_cache_hit_tokens: int
    prompt_cache_miss_tokens: int
    timing: Timing | UnsetType = UNSET
    speculation: SpeculationBody | UnsetType = UNSET


class CalledFunction(msgspec.Struct, omit_defaults=True):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallBody(msgspec.Struct):
    id: str
    type: str
    function: CalledFunction


class ToolCallDelta(msgspec.Struct):
    """`id` and `type` are there in the first delta of a call only."""

    index: int
    function: CalledFunction
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class AnswerMessage(msgspec.Struct):
    role: str
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallBody] | UnsetType = UNSET


class TokenLogprob(msgspec.Struct):
    """`token` is text with U+FFFD where it is not UTF-8; `bytes` are exact."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(msgspec.Struct):
    """Of the tokens whose text is in the answer. DeepSeek tells those of reasoning apart."""

    content: list[ChatLogprob]
    reasoning_content: list[ChatLogprob] | UnsetType = UNSET


class TextLogprobs(msgspec.Struct):
    """One entry for each token. A token that is not UTF-8 is spelt `bytes:\\xf0`. The first token
    of an echoed prompt has no log probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class AnswerChoice(msgspec.Struct):
    index: int
    message: AnswerMessage
    finish_reason: str
    stop_reason: str | int | None = None
    logprobs: ChatLogprobs | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: UsageBody


class Delta(msgspec.Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class DeltaChoice(msgspec.Struct):
    index: int
    delta: Delta
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    logprobs: ChatLogprobs | UnsetType = UNSET


class ChatChunk(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[DeltaChoice]
    usage: UsageBody | UnsetType | None = UNSET


class TextChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET


class TextCompletion(msgspec.Struct):
    """The whole answer and each chunk of `POST /v1/completions`."""

    id: str
    object: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageBody | UnsetType | None = UNSET


class ModelCard(msgspec.Struct):
    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int
    root: str | UnsetType = UNSET


class ModelList(msgspec.Struct):
    object: str
    data: list[ModelCard]


class TokenizeAnswer(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeAnswer(msgspec.Struct):
    prompt: str


class Health(msgspec.Struct):
    state: str


class Version(msgspec.Struct):
    version: str


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct):
    error: ErrorDetail
