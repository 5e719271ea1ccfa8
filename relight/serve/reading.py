"""Reads bodies where they hold nobody up. Knows no protocol."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Small messages are read at some 3 MB a second, checks and translation included: a body of this
# size in 10 ms. A larger one goes to a thread, so that streams go on beside it.
INLINE_BYTES = 32_768


async def aside(read: Callable[[], T], body: bytes) -> T:
    """What `read` makes of `body`."""
    if len(body) <= INLINE_BYTES:
        return read()
    return await asyncio.to_thread(read)
