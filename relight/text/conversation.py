"""What a chat request asks for, free of any wire format: messages, tools, thinking, effort.
Knows no token and no template."""

from typing import Any, Literal

import msgspec

from relight.base.errors import BadRequest, Unsupported

ToolChoice = Literal["auto", "none", "required"]
ResponseFormat = Literal["text", "json_object", "json_schema"]

Start = Literal["reasoning", "content", "tools"]
"""Where in the answer the model's first token stands; the prompt decides it."""

TEXT_PARTS = ("text", "input_text", "output_text")


class ToolCall(msgspec.Struct, frozen=True):
    """A call that an earlier assistant message made. `arguments` is what the client sent, usually
    a JSON object as text; anything else is accepted and never refused."""

    id: str
    name: str
    arguments: str | dict[str, Any] = ""


class Message(msgspec.Struct, frozen=True):
    """One message. `role` is system, developer, user, assistant, tool or latest_reminder."""

    role: str
    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class Tool(msgspec.Struct, frozen=True):
    """A function that the model may call. `parameters` is a JSON schema whose key order counts.
    `strict`: arguments follow the schema to the letter, or the call is refused."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides a chat prompt.

    `effort` is read in thinking mode only; None is the model's default. `continue_final` goes on
    with the last assistant message instead of opening a new turn. `tool_choice` "required" opens
    the tool block in the prompt, unless the model thinks first; `forced_tool` names the only tool
    that it may call then.
    `keep_reasoning` shows the reasoning of all turns, as tools do.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    forced_tool: str | None = None
    thinking: bool = True
    effort: str | int | float | None = None
    continue_final: bool = False
    keep_reasoning: bool = False
    response_format: ResponseFormat = "text"
    response_schema: Any = None

    @property
    def usable_tools(self) -> tuple[Tool, ...]:
        return () if self.tool_choice == "none" else self.tools


def content_text(content: str | list[Any] | None, *, param: str) -> str | None:
    """The text of a message's content. Text parts are joined by an empty line, as the hosted
    encoder does; a part that is not text is refused by its place, never dropped."""
    if content is None or isinstance(content, str):
        return content
    return "\n\n".join(_part_text(part, f"{param}[{i}]") for i, part in enumerate(content))


def _part_text(part: Any, param: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in TEXT_PARTS:
        raise Unsupported(
            f"{param} is of type {kind!r}; this model reads text only; send parts of type 'text'",
            param=param,
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise BadRequest(f"{param}.text is {text!r}; wanted a string", param=f"{param}.text")
    return text
