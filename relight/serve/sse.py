"""Frames of a server-sent event stream. Knows bytes, and no answer."""

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx and its kin hold a response back until it is whole unless told not to.
    (b"x-accel-buffering", b"no"),
)
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def event(data: bytes) -> bytes:
    """One event. `data` is JSON as msgspec writes it: no line break in it."""
    return b"data: " + data + b"\n\n"
