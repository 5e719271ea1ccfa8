"""A request that may be run, and what is told of it. Knows no engine and no text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from relight.base.types import FinishReason, Guessed, Request, TokenDelta, Usage
from relight.session.memory import Opening
from relight.session.pieces import Finish
from relight.session.request import Options
from relight.text.conversation import Start, Tool


@dataclass(slots=True)
class Times:
    """How long a request waited for its slot, was read, and was made, and how it ended; set when it
    has ended by itself. The numbers of tokens count from the first on: those that were found in the
    cache, those that were made, and those of reasoning among them; `guessed` is of all of them."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    finish: Finish | None = None
    num_cached: int = 0
    num_made: int = 0
    num_reasoning: int = 0
    guessed: Guessed | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A request that may be run. `start` is where the output begins, raw: it is not parsed;
    `continued`: text of the client stands before it; `scored`: the prompt is told with the answer,
    and all of it but the first token is made. `arrived` is in the session's seconds."""

    request: Request
    options: Options
    start: Start | Literal["raw"]
    arrived: float
    tools: tuple[Tool, ...] = ()
    continued: bool = False
    opening: Opening | None = None
    scored: bool = False
    times: Times = field(default_factory=Times, compare=False)

    @property
    def num_forced(self) -> int:
        """Tokens of the prompt that are made, so that they are scored."""
        return len(self.request.sampling.forced)

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt) + self.num_forced

    @property
    def usage(self) -> Usage:
        """What was read and made so far."""
        times = self.times
        return Usage(
            prompt_tokens=self.num_prompt,
            completion_tokens=times.num_made,
            cached_tokens=times.num_cached,
            reasoning_tokens=times.num_reasoning,
            guessed=times.guessed,
        )

    @property
    def is_later_choice(self) -> bool:
        return self.request.sampling.choice > 0


class Observer(Protocol):
    """Is told of each job, for metrics."""

    def delta(self, job: Job, delta: TokenDelta) -> None: ...

    def ended(self, job: Job, reason: FinishReason) -> None: ...


def stop_token(job: Job, delta: TokenDelta) -> int | None:
    """The token that ended the answer, if one did."""
    if delta.finish != "stop" or not delta.tokens:
        return None
    token = delta.tokens[-1]
    return token if token in job.request.sampling.stop_token_ids else None


def text_tokens(job: Job, delta: TokenDelta) -> Sequence[int]:
    """The tokens of a delta without the one that ended the answer."""
    return delta.tokens if stop_token(job, delta) is None else delta.tokens[:-1]
