"""A call of Anthropic's protocol → the chat call that asks the same. Knows no answer, and decides
nothing that the chat call decides."""

from collections.abc import Iterator, Sequence

from relight.base.errors import BadRequest, Unsupported
from relight.serve.chat_only import chat_only
from relight.serve.decode import shown
from relight.serve.fields import Refused
from relight.serve.messages.schema import (
    Block,
    InputTool,
    MessagesCall,
    OutputConfig,
    PromptCall,
    ToolChoiceBody,
    Turn,
)
from relight.serve.names import Names
from relight.serve.schema import (
    ChatCall,
    ChatMessage,
    Function,
    FunctionCall,
    FunctionName,
    FunctionTool,
    JsonSchemaBody,
    MessageToolCall,
    NamedToolChoice,
    ResponseFormatBody,
)

REFUSED = chat_only(
    MessagesCall,
    max_completion_tokens="max_tokens",
    stop="stop_sequences",
    reasoning="output_config.effort",
    reasoning_effort="output_config.effort",
    response_format="output_config.format",
    thinking_token_budget="thinking.budget_tokens",
    enable_thinking="thinking.type",
    parallel_tool_calls="tool_choice.disable_parallel_tool_use",
) | {
    "container": Refused(),
    "output_format": Refused((), "send output_config.format"),
    "mcp_servers": Refused(([],), "call the server's tools on your side"),
}
"""Fields of the protocol that are not built."""

BILLING = "x-anthropic-billing-header:"
"""Begins a block of the system text that an agent addresses to its provider. It is another one in
every request: a model that read it would find nothing in its cache."""

_WORDS = (
    (r"(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
    (r"(tools\[\d+\])\.function\.", r"\1."),
    (r"\.tool_call_id", ".tool_use_id"),
    (r"\.tool_calls\b", ".content"),
    (r"\btool_calls\b", "tool_use blocks"),
    (r"\btool messages\b", "tool_result blocks"),
    (r"\btool message\b", "tool_result block"),
    (r"\btool result\b", "tool_result"),
    (r"reasoning_effort", "output_config.effort"),
    (r"response_format(\.json_schema)?", "output_config.format"),
)

Placed = tuple[str, ChatMessage]
"""A message, and where it stood in the body."""


def chat_call(call: PromptCall) -> tuple[ChatCall, Names]:
    """Raises `BadRequest` and `Unsupported` that name the field as it was sent."""
    placed = list(_system(call))
    for i, turn in enumerate(call.messages):
        placed += _turn(turn, f"messages[{i}]")
    choice = call.tool_choice
    asked = ChatCall(
        model=call.model,
        messages=[message for _, message in placed],
        tools=[_tool(tool, f"tools[{i}]") for i, tool in enumerate(call.tools or ())],
        tool_choice=_tool_choice(choice) if choice else None,
        parallel_tool_calls=False if choice and choice.disable_parallel_tool_use else None,
        thinking=call.thinking,
        output_config=call.output_config,
        response_format=_format(call.output_config),
    )
    if isinstance(call, MessagesCall):
        asked.max_tokens = call.max_tokens
        asked.stop = call.stop_sequences
        asked.stream = call.stream
        asked.temperature = call.temperature
        asked.top_p = call.top_p
        asked.top_k = call.top_k
        asked.seed = call.seed
        asked.cache_salt = call.cache_salt
    return asked, Names([place for place, _ in placed], words=_WORDS)


def _system(call: PromptCall) -> Iterator[Placed]:
    content = _texts(call.system or "", "system")
    if isinstance(content, list):
        content = [text for text in content if not str(text).startswith(BILLING)]
    if content:
        yield "system", ChatMessage(role="system", content=content)


def _turn(turn: Turn, where: str) -> Iterator[Placed]:
    if turn.role == "assistant":
        yield where, _assistant(turn.content, where)
    elif turn.role == "user":
        yield from _user(turn.content, where)
    elif turn.role == "system":
        yield where, ChatMessage(role="system", content=_texts(turn.content, f"{where}.content"))
    else:
        raise BadRequest(
            f"{where}.role is {shown(turn.role)}; send user, assistant or system",
            param=f"{where}.role",
        )


def _user(content: str | Sequence[Block], where: str) -> Iterator[Placed]:
    """Results go first: so the protocol has it, and the prompt needs it."""
    if isinstance(content, str):
        yield where, ChatMessage(role="user", content=content)
        return
    texts = []
    for i, block in enumerate(content):
        place = f"{where}.content[{i}]"
        if block.type == "tool_result":
            yield place, _result(block, place)
        else:
            texts.append(_text(block, place))
    if texts or not content:
        yield where, ChatMessage(role="user", content=list(texts))


def _result(block: Block, where: str) -> ChatMessage:
    if not block.tool_use_id:
        raise _missing(f"{where}.tool_use_id", "repeat the id of the tool_use that it answers")
    content = _texts(block.content or "", f"{where}.content")
    return ChatMessage(role="tool", content=content, tool_call_id=block.tool_use_id)


def _assistant(content: str | Sequence[Block], where: str) -> ChatMessage:
    if isinstance(content, str):
        return ChatMessage(role="assistant", content=content)
    thoughts, texts, calls = [], [], []
    for i, block in enumerate(content):
        place = f"{where}.content[{i}]"
        if block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            calls.append(_call(block, place))
        elif block.type != "redacted_thinking":
            texts.append(_text(block, place))
    return ChatMessage(
        role="assistant",
        content=list(texts) if texts else None,
        reasoning_content="\n\n".join(thoughts) if thoughts else None,
        tool_calls=calls or None,
    )


def _call(block: Block, where: str) -> MessageToolCall:
    if not block.name:
        raise _missing(f"{where}.name", "name the tool")
    if not block.id:
        raise _missing(f"{where}.id", "repeat the id as it was sent")
    return MessageToolCall(
        id=block.id, function=FunctionCall(name=block.name, arguments=block.input or {})
    )


def _texts(content: str | Sequence[Block], where: str) -> str | list[str | dict[str, object]]:
    if isinstance(content, str):
        return content
    return [_text(block, f"{where}[{i}]") for i, block in enumerate(content)]


def _text(block: Block, where: str) -> str:
    if block.type != "text":
        raise Unsupported(
            f"{where} is of type {shown(block.type)}, which cannot stand here: this model reads "
            "text only; send blocks of type text",
            param=where,
        )
    if block.text is None:
        raise _missing(f"{where}.text", "send a string")
    return block.text


def _tool(tool: InputTool, where: str) -> FunctionTool:
    if tool.type not in (None, "custom"):
        raise Unsupported(
            f"{where} is of type {shown(tool.type)}, a tool that a server runs; this one runs "
            "none: describe a tool of your own with name and input_schema",
            param=where,
        )
    if not tool.name:
        raise _missing(f"{where}.name", "name the tool")
    function = Function(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return FunctionTool(function=function)


def _tool_choice(choice: ToolChoiceBody) -> str | NamedToolChoice:
    words = {"auto": "auto", "any": "required", "none": "none"}
    if choice.type in words:
        return words[choice.type]
    if choice.type != "tool":
        raise BadRequest(
            f"tool_choice.type is {shown(choice.type)}; send auto, any, tool or none",
            param="tool_choice.type",
        )
    if not choice.name:
        raise _missing("tool_choice.name", "name the tool")
    return NamedToolChoice(type="function", function=FunctionName(name=choice.name))


def _format(config: OutputConfig | None) -> ResponseFormatBody | None:
    """A schema is followed to the letter."""
    if config is None or config.format is None:
        return None
    schema = JsonSchemaBody(schema=config.format.schema, strict=True)
    return ResponseFormatBody(type=config.format.type, json_schema=schema)


def _missing(param: str, remedy: str) -> BadRequest:
    return BadRequest(f"{param} is missing; {remedy}", param=param)
