"""Finds what parsers of JSON tell badly: an escape that is half of a character. Knows no schema.

JSON writes a character beyond U+FFFF as two escapes. A client that cuts a text between them, as
languages with 16-bit characters do, sends a half, which no UTF-8 can hold.
"""

import re
from collections.abc import Iterator

import msgspec

from relight.base.errors import BadRequest

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89abcdefABCDEF][0-9a-fA-F]{2})|.)", re.DOTALL
)
# A body is looked at escape by escape, some 2 million a second: this one in a quarter of one.
MAX_BYTES = 2**20
MAX_PATH = 100
# Noncharacters: no client means them.
_MARK, _ESCAPED_MARK = "\ufdd0\ufdd1", rb"\ufdd0\ufdd1"


def half_pair(body: bytes) -> BadRequest | None:
    """The error that names the first one of a body, and the field if all else is JSON."""
    if len(body) > MAX_BYTES:
        return None
    half = next((found for found in _ESCAPE.finditer(body) if found[1]), None)
    if half is None:
        return None
    param = _place(body[: half.start()] + _ESCAPED_MARK + body[half.end() :])
    return BadRequest(
        f"{param or 'the body'} has half of a surrogate pair, {half[0].decode()} at byte "
        f"{half.start()}: a text was cut inside of a character; send whole characters",
        param=param,
    )


def _place(body: bytes) -> str | None:
    """Where the mark stands. None for a key, and for a body that is no JSON besides."""
    try:
        level: list[tuple[str, object]] = [("", msgspec.json.decode(_whole(body)))]
    except (msgspec.DecodeError, RecursionError):
        return None
    while level:
        for path, value in level:
            if isinstance(value, str) and _MARK in value:
                return path if 0 < len(path) <= MAX_PATH else None
        level = [child for path, value in level for child in _children(path, value)]
    return None


def _whole(body: bytes) -> bytes:
    """With a character in place of each half that is left."""
    return _ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], body)


def _children(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((f"{path}.{key}".lstrip("."), child) for key, child in value.items())
    elif isinstance(value, list):
        yield from ((f"{path}[{i}]", child) for i, child in enumerate(value))
