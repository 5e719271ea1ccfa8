"""What all spellings of one assistant message share. Knows no tokens and no template.

A client stores an answer in its own form and sends it back from there: JSON is written anew by
another library, keys change places, a number loses a zero, blanks at the ends go. None of this
changes what was said.
"""

import json
from hashlib import blake2b
from typing import Any

import msgspec

from relight.text.conversation import Message
from relight.text.dsml import parse_arguments


class Fingerprint(msgspec.Struct, frozen=True):
    """One of each part, so that it can be told which one differs. Ids of calls do not count: no
    prompt has them."""

    reasoning: bytes
    content: bytes
    calls: bytes


def fingerprint(message: Message) -> Fingerprint:
    calls = [[call.name, _plain(parse_arguments(call.arguments))] for call in message.tool_calls]
    return Fingerprint(
        _digest((message.reasoning or "").strip()),
        _digest((message.content or "").strip()),
        _digest(json.dumps(calls, sort_keys=True) if calls else ""),
    )


def _plain(value: Any) -> Any:
    """With whole numbers as such: some languages have no other."""
    match value:
        case dict():
            return {str(key): _plain(child) for key, child in value.items()}
        case list():
            return [_plain(child) for child in value]
        case float() if value.is_integer():
            return int(value)
    return value


def _digest(text: str) -> bytes:
    """Empty for no text."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=16).digest() if text else b""
