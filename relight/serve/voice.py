"""How a protocol says what is not an answer: that something is wrong, that work goes on. Knows no
route; here is OpenAI's way, the others have theirs beside their routes."""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from relight.base.errors import RelightError
from relight.serve import sse
from relight.serve.schema import ErrorBody, ErrorDetail

MAX_MESSAGE = 2000
"""Characters of an error's message that are sent."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as a client is told it. `request_id` is that of the response's header."""

    error: RelightError
    request_id: str

    @property
    def message(self) -> str:
        """It may quote the client, who knows what it sent."""
        text = self.error.message
        return text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + "…"


class Voice(Protocol):
    """That of one protocol, or of one answer where the protocol counts its events."""

    def body(self, problem: Problem) -> bytes:
        """The JSON body of an error."""

    def last_event(self, problem: Problem) -> bytes:
        """The event that ends a stream which failed."""

    def keep_alive(self) -> bytes:
        """What is sent into a stream that has been silent for long."""


class OpenAIVoice:
    """Chat completions, completions, and all routes that have no protocol of their own."""

    def body(self, problem: Problem) -> bytes:
        error = problem.error
        detail = ErrorDetail(problem.message, error.kind, error.param, error.code)
        return msgspec.json.encode(ErrorBody(detail))

    def last_event(self, problem: Problem) -> bytes:
        return sse.event(self.body(problem))

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE


OPENAI = OpenAIVoice()
