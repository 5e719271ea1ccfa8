"""Errors and signs of life in Anthropic's protocol. Knows no answer."""

import msgspec

from relight.base.errors import TooLong
from relight.serve import sse
from relight.serve.messages.schema import MessageError, MessageErrorDetail, Ping
from relight.serve.voice import Problem

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def event(body: msgspec.Struct) -> bytes:
    """An event is named by its own type."""
    name = str(body.__struct_config__.tag).encode()
    return b"event: " + name + b"\n" + sse.event(msgspec.json.encode(body))


class MessagesVoice:
    def body(self, problem: Problem) -> bytes:
        return msgspec.json.encode(_error(problem))

    def last_event(self, problem: Problem) -> bytes:
        return event(_error(problem))

    def keep_alive(self) -> bytes:
        return event(Ping())


def _error(problem: Problem) -> MessageError:
    """Clients shorten the conversation when a sentence begins as this one does."""
    message = problem.message
    if isinstance(problem.error, TooLong) and problem.error.limit:
        error = problem.error
        message = f"prompt is too long: {error.num_tokens} tokens > {error.limit} maximum"
    elif isinstance(problem.error, TooLong):
        message = f"prompt is too long: {message}"
    kind = _KINDS.get(problem.error.status, "api_error")
    return MessageError(MessageErrorDetail(kind, message), problem.request_id)
