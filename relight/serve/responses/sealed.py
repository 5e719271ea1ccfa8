"""Reasoning in a form that clients keep and send back unread. Knows no item.

Some clients send no reasoning back that they can read, only what a server calls encrypted. There
is nothing to hide: sealed is the text itself, so that it survives a restart and needs no store.
"""

import base64
import binascii
import zlib

PREFIX = "relight.1."
MAX_CHARACTERS = 8 * 2**20
"""More than any context holds; what unpacks to more was not made here."""


def seal(text: str) -> str:
    packed = zlib.compress(text.encode(), 1)
    return PREFIX + base64.urlsafe_b64encode(packed).decode()


def unseal(sealed: str) -> str | None:
    """None for what was not sealed here."""
    if not sealed.startswith(PREFIX):
        return None
    unpacker = zlib.decompressobj()
    try:
        packed = base64.b64decode(sealed.removeprefix(PREFIX), b"-_", validate=True)
        text = unpacker.decompress(packed, MAX_CHARACTERS).decode()
    except (binascii.Error, zlib.error, ValueError):
        return None
    return text if unpacker.eof else None
