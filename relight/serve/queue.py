"""Who may still come in: counts the work that waits for its first token, and refuses more than is
allowed or can be done in time. Knows no HTTP."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from relight.base.errors import Overloaded
from relight.base.types import EngineStats, FinishReason, TokenDelta
from relight.session import Job, Observer

LONGEST_RETRY_S = 600


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Prompt tokens that may wait, and seconds that a request may have to wait by what is known
    when it comes; 0: no bound. A request is never refused for being alone."""

    tokens: int = 0
    wait_s: int = 0


class Queue:
    """That of one engine. It hears of its jobs in place of `observer`, and tells it."""

    def __init__(self, limits: QueueLimits, observer: Observer) -> None:
        self._limits = limits
        self._observer = observer
        self._waiting: dict[str, Job] = {}
        self._stats = EngineStats()

    @property
    def num_tokens(self) -> int:
        return sum(len(job.request.prompt) for job in self._waiting.values())

    def wait_s(self, stats: EngineStats) -> float:
        """How long the work that waits will take at the pace of late. Answers count where slots are
        short, since a request that waits for one waits for answers to end."""
        if not stats.tokens_per_s:
            return 0.0
        work = float(self.num_tokens)
        if stats.waiting:
            limits = (job.request.sampling.max_tokens for job in self._waiting.values())
            work += sum(min(limit, stats.mean_output) for limit in limits)
        return work / stats.tokens_per_s

    @property
    def retry_s(self) -> int:
        """When one that is refused may come again, by the engine's state of late."""
        return max(1, min(math.ceil(self.wait_s(self._stats)), LONGEST_RETRY_S))

    def enter(self, jobs: Sequence[Job], stats: EngineStats) -> None:
        """Counts the jobs at once, so that a burst sees itself. Raises `Overloaded`."""
        self._stats = stats
        if self._waiting:
            self._check(jobs, stats)
        self._waiting.update((job.request.id, job) for job in jobs)

    def _check(self, jobs: Sequence[Job], stats: EngineStats) -> None:
        wait_s, retry_s, limits = self.wait_s(stats), self.retry_s, self._limits
        tokens = self.num_tokens + sum(len(job.request.prompt) for job in jobs)
        if limits.tokens and tokens > limits.tokens:
            raise Overloaded(
                f"{tokens:,} prompt tokens would wait and the most is {limits.tokens:,} "
                f"(--max-queue-tokens); send the request again in {retry_s} s",
                retry_after_s=retry_s,
            )
        if limits.wait_s and wait_s > limits.wait_s:
            raise Overloaded(
                f"the wait would be about {wait_s:.0f} s and the longest is {limits.wait_s} s "
                f"(--max-queue-wait); send the request again in {retry_s} s",
                retry_after_s=retry_s,
            )
        deadline_s = min((job.request.deadline_s for job in jobs), default=0.0)
        if deadline_s and wait_s > deadline_s:
            raise Overloaded(
                f"the wait would be about {wait_s:.0f} s and the request gives {deadline_s:g} s; "
                f"allow more, or send it again in {retry_s} s",
                retry_after_s=retry_s,
            )

    def leave(self, id: str) -> None:
        """The job waits no more; it may have left before."""
        self._waiting.pop(id, None)

    def delta(self, job: Job, delta: TokenDelta) -> None:
        self.leave(job.request.id)
        self._observer.delta(job, delta)

    def ended(self, job: Job, reason: FinishReason) -> None:
        self.leave(job.request.id)
        self._observer.ended(job, reason)
