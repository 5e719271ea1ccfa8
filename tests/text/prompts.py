"""Short names for messages, and the digest of a prompt, for worked examples of any encoding."""

import hashlib
from typing import Any

from relight.text.conversation import Conversation, Message, Tool, ToolCall
from relight.text.prompt import PromptEncoder
from relight.text.writer import Prompt

WEATHER = Tool(
    "get_weather",
    "Weather now",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
PARIS = ToolCall("a", "get_weather", '{"city": "Paris"}')
ROME = ToolCall("b", "get_weather", '{"city": "Rome", "days": 2}')


def system(text: str) -> Message:
    return Message("system", text)


def user(text: str) -> Message:
    return Message("user", text)


def assistant(
    content: str | None = None, reasoning: str | None = None, *calls: ToolCall
) -> Message:
    return Message("assistant", content, reasoning, calls)


def result(id: str, text: str) -> Message:
    return Message("tool", text, tool_call_id=id)


def render(encoder: PromptEncoder, *messages: Message, **options: Any) -> Prompt:
    return encoder.encode(Conversation(messages=messages, **options))


def digest(prompt: Prompt) -> str:
    """The first half of the SHA-256 of its text."""
    return hashlib.sha256(prompt.text.encode()).hexdigest()[:32]
