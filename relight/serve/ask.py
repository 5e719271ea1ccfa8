"""A call of the wire → what the session is asked: a conversation and options. Knows no answer."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast, get_args

from relight.base.errors import BadRequest, Unsupported
from relight.serve.decode import check_depth, shown
from relight.serve.form import read_format
from relight.serve.schema import (
    ChatCall,
    ChatMessage,
    CompletionCall,
    Effort,
    FormFields,
    FunctionTool,
    NamedToolChoice,
    PromptFields,
    SamplingFields,
    UsageIn,
)
from relight.session import Options
from relight.text.conversation import (
    Conversation,
    Message,
    ResponseFormat,
    Tool,
    ToolCall,
    ToolChoice,
    content_text,
)

PART = frozenset({"type", "text"})
"""What is read of a part of a message."""
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]+")


def conversation(messages: Sequence[ChatMessage], call: PromptFields) -> Conversation:
    """Raises `BadRequest` or `Unsupported` that names the field by its path."""
    tools = tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(call.tools or ()))
    _check_unique(tools)
    kwargs = call.chat_template_kwargs
    choice, forced_tool = _tool_choice(call.tool_choice, tools)
    told, schema = _told_format(call)
    return Conversation(
        messages=tuple(_message(message, f"messages[{i}]") for i, message in enumerate(messages)),
        tools=tools,
        tool_choice=choice,
        forced_tool=forced_tool,
        response_format=told,
        response_schema=schema,
        thinking=_thinking(call),
        effort=_effort(call),
        continue_final=_continue_final(messages, call),
        keep_reasoning=bool(kwargs and kwargs.drop_thinking is False),
    )


def options(call: SamplingFields) -> Options:
    stop = [call.stop] if isinstance(call.stop, str) else call.stop or []
    most = call.max_tokens if call.max_completion_tokens is None else call.max_completion_tokens
    parallel = call.parallel_tool_calls is not False if isinstance(call, ChatCall) else True
    return Options(
        max_tokens=most,
        temperature=call.temperature,
        top_p=call.top_p,
        top_k=call.top_k,
        min_p=call.min_p,
        seed=call.seed,
        stop=tuple(stop),
        include_stop=bool(call.include_stop_str_in_output),
        stop_token_ids=tuple(call.stop_token_ids or ()),
        ignore_eos=bool(call.ignore_eos),
        min_tokens=call.min_tokens or 0,
        frequency_penalty=call.frequency_penalty or 0.0,
        presence_penalty=call.presence_penalty or 0.0,
        repetition_penalty=call.repetition_penalty or 1.0,
        logit_bias=call.logit_bias or {},
        logprobs=_logprobs(call),
        n=call.n or 1,
        parallel_tool_calls=parallel,
        cache_salt=call.cache_salt or "",
        thinking_budget=_thinking_budget(call),
        format=read_format(call),
    )


def _told_format(call: FormFields) -> tuple[ResponseFormat, Any]:
    """What the prompt says of the form of the answer: of the fields for it only OpenAI's is for
    the model, too."""
    if call.response_format is None or (format := read_format(call)) is None:
        return "text", None
    if format.kind == "json_schema":
        return "json_schema", format.value
    return ("json_object" if format.kind == "json_object" else "text"), None


def ignored(call: SamplingFields) -> Iterator[str]:
    """Members of parts of messages that have no place in a prompt, and of options that have no
    effect as they stand."""
    messages = getattr(call, "messages", None) or ()
    contents = (m.content for m in messages if isinstance(m.content, list))
    parts = (part for content in contents for part in content if isinstance(part, dict))
    names = {name for part in parts for name in part.keys() - PART if part[name] is not None}
    yield from (f"messages.content.{name}" for name in sorted(names))
    streams = call.stream_options
    if streams and streams.continuous_usage_stats and not streams.include_usage:
        yield "stream_options.continuous_usage_stats"
    if call.include_speculation and call.stream and usage_in(call) == "none":
        yield "include_speculation"


def _thinking_budget(call: SamplingFields) -> int | None:
    if not isinstance(call, ChatCall):
        return None
    if call.thinking_token_budget is not None:
        return call.thinking_token_budget
    return call.thinking.budget_tokens if call.thinking else None


def _logprobs(call: SamplingFields) -> int | None:
    """How many of the best tokens are told with each; None: no log probabilities."""
    if isinstance(call, ChatCall):
        if call.top_logprobs and not call.logprobs:
            raise BadRequest(
                f"top_logprobs is {call.top_logprobs} and logprobs is not true; set logprobs to "
                "true or leave top_logprobs out",
                param="top_logprobs",
            )
        return call.top_logprobs or 0 if call.logprobs else None
    asked = call.logprobs if isinstance(call, CompletionCall) else None
    if asked is True:
        raise BadRequest(
            "logprobs is true; send how many of the best tokens to tell with each, 0 to 20",
            param="logprobs",
        )
    return None if asked is False else asked


def usage_in(call: SamplingFields) -> UsageIn:
    """Raises `BadRequest` for options of a stream where there is none."""
    if call.stream_options is None:
        return "none"
    if not call.stream:
        raise BadRequest(
            "stream_options is for streams only; set stream to true or leave stream_options out",
            param="stream_options",
        )
    if not call.stream_options.include_usage:
        return "none"
    return "every" if call.stream_options.continuous_usage_stats else "last"


def _message(message: ChatMessage, param: str) -> Message:
    if message.function_call is not None:
        raise Unsupported(
            f"{param}.function_call is the retired form; use tool_calls",
            param=f"{param}.function_call",
        )
    if message.audio is not None:
        raise Unsupported(
            f"{param}.audio is not served: this model reads text only; send its text",
            param=f"{param}.audio",
        )
    calls = message.tool_calls or ()
    if calls and message.role != "assistant":
        raise BadRequest(
            f"{param}.tool_calls stands in a message of role {shown(message.role)}; "
            "only an assistant message can hold calls",
            param=f"{param}.tool_calls",
        )
    reasoning = message.reasoning_content
    return Message(
        role=message.role,
        content=content_text(message.content, param=f"{param}.content"),
        reasoning=message.reasoning if reasoning is None else reasoning,
        tool_calls=tuple(
            _past_call(
                call.id, call.function.name, call.function.arguments, f"{param}.tool_calls[{i}]"
            )
            for i, call in enumerate(calls)
        ),
        tool_call_id=message.tool_call_id,
    )


def _past_call(
    call_id: str | None, name: str, arguments: str | dict[str, Any] | None, param: str
) -> ToolCall:
    if not call_id:
        raise BadRequest(
            f"{param}.id is missing; repeat the id of the call as it was sent", param=f"{param}.id"
        )
    check_depth(arguments, f"{param}.function.arguments")
    return ToolCall(call_id, name, "" if arguments is None else arguments)


def _tool(tool: FunctionTool, param: str) -> Tool:
    if tool.type == "function" and tool.function is None:
        raise BadRequest(
            f'{param}.function is missing; send {{"name": …, "parameters": …}} in it',
            param=f"{param}.function",
        )
    if tool.function is None or tool.type != "function":
        raise Unsupported(
            f'{param} is of type {shown(tool.type)}; send {{"type": "function", "function": …}}',
            param=param,
        )
    function = tool.function
    if not _TOOL_NAME.fullmatch(function.name):
        raise BadRequest(
            f"{param}.function.name is {shown(function.name)}; use letters, digits, _ and - only",
            param=f"{param}.function.name",
        )
    check_depth(function.parameters, f"{param}.function.parameters")
    kind = (function.parameters or {}).get("type", "object")
    if kind != "object":
        raise BadRequest(
            f'{param}.function.parameters.type is {shown(kind)}; it must be "object"',
            param=f"{param}.function.parameters",
        )
    return Tool(function.name, function.description, function.parameters, bool(function.strict))


def _check_unique(tools: Sequence[Tool]) -> None:
    taken = set()
    for i, tool in enumerate(tools):
        if tool.name in taken:
            raise BadRequest(
                f"tools[{i}].function.name {shown(tool.name)} is taken by an earlier tool; "
                "rename one",
                param=f"tools[{i}].function.name",
            )
        taken.add(tool.name)


def _tool_choice(
    choice: str | NamedToolChoice | None, tools: Sequence[Tool]
) -> tuple[ToolChoice, str | None]:
    """The choice, and the name of the tool that is forced."""
    if isinstance(choice, str) and choice in get_args(ToolChoice):
        return cast(ToolChoice, choice), None
    if choice is None:
        return "auto", None
    if not isinstance(choice, NamedToolChoice) or choice.type != "function" or not choice.function:
        found = shown(choice if isinstance(choice, str) else choice.type)
        raise BadRequest(
            f'tool_choice is {found}; send "auto", "none", "required", or '
            '{"type": "function", "function": {"name": …}}',
            param="tool_choice",
        )
    name = choice.function.name
    if name not in [tool.name for tool in tools]:
        raise BadRequest(
            f"tool_choice names {shown(name)}, which is not among tools; name one of them",
            param="tool_choice",
        )
    return "required", name


def _thinking(call: PromptFields) -> bool:
    """The first switch that is present decides; a word of effort is the weakest."""
    kwargs = call.chat_template_kwargs
    flags = [kwargs.thinking, kwargs.enable_thinking] if kwargs else []
    if any(flag is not None for flag in flags):
        return any(flags)
    if call.thinking is not None:
        kinds = {"enabled": True, "adaptive": True, "disabled": False}
        if call.thinking.type not in kinds:
            raise BadRequest(
                f"thinking.type is {shown(call.thinking.type)}; send one of {', '.join(kinds)}",
                param="thinking.type",
            )
        return kinds[call.thinking.type]
    if call.enable_thinking is not None:
        return call.enable_thinking
    return _effort(call) != "none"


def _effort(call: PromptFields) -> Effort | None:
    kwargs = call.chat_template_kwargs
    holders = (call.reasoning, call.output_config)
    found = [
        kwargs.reasoning_effort if kwargs else None,
        call.reasoning_effort,
        *(holder.effort if holder else None for holder in holders),
    ]
    return next((effort for effort in found if effort is not None), None)


def _continue_final(messages: Sequence[ChatMessage], call: PromptFields) -> bool:
    """Whether the answer goes on with the last message. Two dialects: `prefix` in the message, or
    `continue_final_message` together with `add_generation_prompt: false`."""
    for i, message in enumerate(messages):
        if message.prefix and (i < len(messages) - 1 or message.role != "assistant"):
            raise BadRequest(
                f"messages[{i}].prefix belongs to an assistant message at the end of messages",
                param=f"messages[{i}].prefix",
            )
    if call.continue_final_message and call.add_generation_prompt:
        raise BadRequest(
            "continue_final_message and add_generation_prompt exclude each other; send one",
            param="continue_final_message",
        )
    if call.continue_final_message and (not messages or messages[-1].role != "assistant"):
        raise BadRequest(
            "continue_final_message needs an assistant message at the end of messages",
            param="continue_final_message",
        )
    goes_on = bool(call.continue_final_message or (messages and messages[-1].prefix))
    if call.add_generation_prompt is False and not goes_on:
        raise Unsupported(
            "add_generation_prompt false is supported with continue_final_message only",
            param="add_generation_prompt",
        )
    return goes_on
