"""The chat protocol of OpenAI as its servers speak it: bodies out, chunks in. Knows no socket.

It reads leniently, since dialects differ: what is unknown is passed over.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from relight.base.errors import BadSetting, StepFailed, Unavailable
from relight.base.types import Usage
from relight.chat.dialogue import wire_message
from relight.chat.source import Ask, Event
from relight.session import CallStart
from relight.text.conversation import Tool
from relight.text.parse import Content, Reasoning, ToolCallArguments

MAX_SHOWN = 500
"""Characters of a server's message that are shown."""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Text(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    delta: _Text | None = None
    message: _Text | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


def chat_body(ask: Ask, model: str) -> bytes:
    """Only what was asked for is sent: a strict server refuses fields that it does not know."""
    options = ask.options
    body: dict[str, Any] = {
        "model": model,
        "messages": [wire_message(message) for message in ask.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [_tool(tool) for tool in ask.tools] or None,
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "seed": options.seed,
        "reasoning_effort": ask.effort,
    }
    if ask.thinking is not None:  # DeepSeek's switch, and that of templates in vLLM and SGLang
        body["thinking"] = {"type": "enabled" if ask.thinking else "disabled"}
        body["chat_template_kwargs"] = {
            "thinking": ask.thinking,
            "enable_thinking": ask.thinking,
        }
    return msgspec.json.encode({name: value for name, value in body.items() if value is not None})


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {
        "type": "function",
        "function": {name: value for name, value in function.items() if value is not None},
    }


class _ToolEntry(msgspec.Struct):
    function: Tool


def read_tools(file: Path) -> tuple[Tool, ...]:
    """The value of a request's `tools`, from a file. Raises `BadSetting`."""
    try:
        entries = msgspec.json.decode(file.read_bytes(), type=list[_ToolEntry])
    except OSError as problem:
        raise BadSetting(f"tools {file} cannot be read: {problem.strerror}") from problem
    except (msgspec.DecodeError, msgspec.ValidationError) as problem:
        raise BadSetting(
            f'tools {file}: {problem}; wanted a JSON list of {{"type": "function", "function": …}}'
        ) from problem
    return tuple(entry.function for entry in entries)


class Reader:
    """Chunks of one answer → events. `finish` and `usage` are what they told so far."""

    def __init__(self) -> None:
        self.finish: str | None = None
        self.usage: Usage | None = None
        self._num_calls = 0

    def read(self, payload: bytes, name: bytes = b"") -> Iterator[Event]:
        """Raises `StepFailed` for an error inside the stream, `Unavailable` for no chunk."""
        try:
            chunk = _decode(payload)
        except (msgspec.DecodeError, msgspec.ValidationError) as problem:
            raise Unavailable(f"the server sent what is no part of an answer: {problem}") from None
        if chunk.error is not None or name == b"error":
            raise StepFailed(f"the answer failed at the server: {told(payload)}")
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage)
        for choice in (chunk.choices or ())[:1]:
            yield from self._text(choice.delta or choice.message or _Text())
            self.finish = choice.finish_reason or self.finish

    def _text(self, text: _Text) -> Iterator[Event]:
        if reasoning := text.reasoning_content or text.reasoning:
            yield Reasoning(reasoning)
        if text.content:
            yield Content(text.content)
        for number, call in enumerate(text.tool_calls or ()):
            yield from self._call(number if call.index is None else call.index, call)

    def _call(self, index: int, call: _Call) -> Iterator[Event]:
        function = call.function or _Function()
        if index >= self._num_calls:
            self._num_calls = index + 1
            yield CallStart(index, call.id or f"call_{index}", function.name or "")
        if function.arguments:
            yield ToolCallArguments(index, function.arguments)


def _usage(usage: _Usage) -> Usage | None:
    if usage.completion_tokens is None:
        return None
    prompt = usage.prompt_tokens_details or _PromptDetails()
    output = usage.completion_tokens_details or _OutputDetails()
    return Usage(
        prompt_tokens=usage.prompt_tokens or 0,
        completion_tokens=usage.completion_tokens,
        cached_tokens=prompt.cached_tokens or usage.prompt_cache_hit_tokens or 0,
        reasoning_tokens=output.reasoning_tokens or 0,
    )


def told(body: bytes) -> str:
    """The message in an error's body, whatever its shape, on one line."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = body.decode("utf-8", "replace")
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    return " ".join(text.split())[:MAX_SHOWN] or "no reason given"
