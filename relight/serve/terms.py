"""On what terms a request is served: its class, its deadline and whose it is. Knows no body.

They are headers, so that a proxy can set them whatever the protocol of the body is:

    x-relight-priority     interactive (the default) or batch, which gives way to it
    x-relight-deadline-ms  when the request is given up; the server's own limit holds beside it
    x-relight-client       whose share this counts to; else the address it comes from
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from relight.base.errors import BadRequest
from relight.session import Job

PRIORITIES = ("interactive", "batch")
MAX_NAME = 64
MAX_DEADLINE_MS = 24 * 3600 * 1000

Header = Callable[[bytes], bytes | None]


def on_terms(jobs: Sequence[Job], header: Header, peer: str, timeout_s: float) -> list[Job]:
    """The jobs with the terms of their request. `timeout_s` is the server's limit, 0 for none.
    Raises `BadRequest` that names the header."""
    terms = {
        "priority": _priority(header),
        "deadline_s": _deadline_s(header, timeout_s),
        "client": _client(header) or peer,
    }
    return [replace(job, request=msgspec.structs.replace(job.request, **terms)) for job in jobs]


def _text(header: Header, name: str) -> str:
    return (header(name.encode()) or b"").decode("latin-1").strip()


def _priority(header: Header) -> int:
    name = "x-relight-priority"
    text = _text(header, name) or PRIORITIES[0]
    if text not in PRIORITIES:
        raise BadRequest(
            f"header {name} is {text[:MAX_NAME]!r}; send {' or '.join(PRIORITIES)}", param=name
        )
    return PRIORITIES.index(text)


def _deadline_s(header: Header, timeout_s: float) -> float:
    name = "x-relight-deadline-ms"
    text = _text(header, name)
    if not text:
        return timeout_s
    digits = text.lstrip("0")[: len(str(MAX_DEADLINE_MS)) + 1]  # int() refuses thousands of them
    if not text.isdecimal() or not digits or int(digits) > MAX_DEADLINE_MS:
        raise BadRequest(
            f"header {name} is {text[:MAX_NAME]!r}; send a whole number from 1 to "
            f"{MAX_DEADLINE_MS}",
            param=name,
        )
    deadline_s = int(digits) / 1000
    return min(deadline_s, timeout_s) if timeout_s else deadline_s


def _client(header: Header) -> str:
    name = "x-relight-client"
    text = _text(header, name)
    if len(text) > MAX_NAME:
        raise BadRequest(
            f"header {name} has {len(text)} characters; the most is {MAX_NAME}", param=name
        )
    return text
