"""One request as it was measured: the row of the results file. Knows no server and no statistics.

Times are seconds since the run began; `chunks` are (time, tokens) of each token chunk, with 0
tokens where the server does not say. A text is never kept: only its hash, and what it scored.
"""

from typing import Literal

import msgspec

from relight.bench import definitions

Failure = Literal[
    "unreachable",  # no connection
    "refused",  # 429 or 503: the server said no
    "http",  # any other status than 200
    "in_band",  # an error as an event, after a 200
    "truncated",  # the body ended before `[DONE]`
    "no_finish",  # no finish reason
    "no_usage",  # no count of tokens
    "protocol",  # what came is no such stream, or contradicts itself
    "length",  # not the fixed number of tokens, or another reason than `length`
    "stalled",  # no token for too long
    "cancelled",  # we ended it
]


class ServerTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of this request as the server told them beside the answer."""

    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None
    ttft: float | None = None


class Drafts(msgspec.Struct, frozen=True, kw_only=True):
    """Speculation within one answer: verifications, drafted and accepted tokens, and where it is
    told, how many verifications accepted 0, 1, 2 … drafts."""

    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    histogram: tuple[int, ...] = ()

    @property
    def advance(self) -> float | None:
        """Tokens a verification yielded, its own included."""
        if self.steps and self.accepted is not None:
            return 1 + self.accepted / self.steps
        return None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    kind: str
    t_sched: float
    t_send: float | None = None
    t_headers: float | None = None
    t_first_any: float | None = None
    t_first_answer: float | None = None
    t_last: float | None = None
    t_end: float | None = None
    chunks: tuple[tuple[float, int], ...] = ()
    n_in: int | None = None
    n_cached: int | None = None
    n_reasoning: int | None = None
    n_out: int | None = None
    n_wanted: int | None = None
    finish: str | None = None
    failure: Failure | None = None
    error: str = ""
    output_hash: str = ""
    looping: bool = False
    needle: bool | None = None
    needle_kind: str | None = None
    needle_depth: float | None = None
    needle_score: float | None = None
    session: int | None = None
    turn: int | None = None
    n_in_wanted: int | None = None
    server: ServerTimes | None = None
    drafts: Drafts | None = None

    @property
    def ok(self) -> bool:
        return self.failure is None

    def since_send(self, moment: float | None) -> float | None:
        return None if moment is None or self.t_send is None else moment - self.t_send

    @property
    def ttft(self) -> float | None:
        """Client TTFT: to the first token of any kind."""
        return self.since_send(self.t_first_any)

    @property
    def ttft_queue(self) -> float | None:
        """From when it was due, not from when it was sent: what an open-loop user feels."""
        return None if self.t_first_any is None else self.t_first_any - self.t_sched

    @property
    def ttfa(self) -> float | None:
        """To the first token of the answer proper."""
        return self.since_send(self.t_first_answer)

    @property
    def e2e(self) -> float | None:
        return self.since_send(self.t_last)

    @property
    def decode(self) -> float | None:
        both = self.t_last is not None and self.t_first_any is not None
        return self.t_last - self.t_first_any if both else None  # type: ignore[operator]

    @property
    def tpot(self) -> float | None:
        return definitions.tpot(self.chunks, self.n_out or 0)

    @property
    def send_lag(self) -> float | None:
        return None if self.t_send is None else self.t_send - self.t_sched
