"""The conversation of a chat: what was said, what the next turn sends. Knows no source, no view."""

import json
from dataclasses import dataclass, field
from typing import Any

from relight.chat.source import Ask
from relight.session import Options
from relight.text.conversation import Message, Tool, ToolCall


@dataclass(slots=True)
class Dialogue:
    """`messages` alternate: what is said and its answer. An answer with calls is followed by one
    result a call before it is the model's turn again."""

    system: str = ""
    thinking: bool | None = None
    effort: str | None = None
    tools: tuple[Tool, ...] = ()
    options: Options = field(default_factory=Options)
    messages: list[Message] = field(default_factory=list)

    @property
    def open_call(self) -> ToolCall | None:
        """The first call of the last answer that has no result yet."""
        told = []
        for message in reversed(self.messages):
            if message.role != "tool":
                calls = [c for c in message.tool_calls if c.id not in told]
                return calls[0] if calls else None
            told.append(message.tool_call_id)
        return None

    @property
    def answer_due(self) -> bool:
        last = self.messages[-1].role if self.messages else "assistant"
        return last != "assistant" and self.open_call is None

    def say(self, text: str) -> None:
        """The text is the result of the open call, if there is one."""
        call = self.open_call
        if call is None:
            self.messages.append(Message("user", text))
        else:
            self.messages.append(Message("tool", text, tool_call_id=call.id))

    def take_back(self) -> str:
        """Unsays what was said last and got no answer."""
        assert self.messages, "nothing was said"
        return self.messages.pop().content or ""

    @property
    def whole(self) -> list[Message]:
        """With the system message."""
        return [Message("system", self.system), *self.messages] if self.system else self.messages

    def ask(self) -> Ask:
        """Earlier reasoning belongs to a prompt with tools, and to no other."""
        return Ask(
            messages=tuple(map(self._sent, self.whole)),
            tools=self.tools,
            thinking=self.thinking,
            effort=self.effort,
            options=self.options,
        )

    def _sent(self, message: Message) -> Message:
        if self.tools or message.reasoning is None:
            return message
        return Message(message.role, message.content, None, message.tool_calls)


def wire_message(message: Message) -> dict[str, Any]:
    """As the OpenAI protocol has it, with DeepSeek's `reasoning_content`."""
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        body["reasoning_content"] = message.reasoning
    if message.tool_calls:
        body["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    return body


def as_json(messages: list[Message]) -> str:
    return json.dumps([wire_message(m) for m in messages], ensure_ascii=False, indent=2) + "\n"


def as_markdown(messages: list[Message]) -> str:
    return "\n".join(_section(message) for message in messages)


def _section(message: Message) -> str:
    parts = [f"## {message.role}"]
    if message.reasoning:
        parts.append("\n".join(f"> {line}".rstrip() for line in message.reasoning.splitlines()))
    if message.content:
        parts.append(message.content)
    parts += [f"calls `{call.name}({call.arguments})`" for call in message.tool_calls]
    return "\n\n".join(parts) + "\n"
