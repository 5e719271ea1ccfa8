"""The main loop: plan a step, run it, hand out what it made. Knows no model and no process.

The steps are synchronous: a step is planned when the one before has been committed. Nothing in a
plan needs the value of a token that is not yet known, so they may overlap one day.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from relight.base.errors import RelightError, Unavailable
from relight.base.types import EngineStats, Request, TokenDelta
from relight.engine.cost import CostMeter, Load
from relight.engine.plan import Drawn, StepPlan
from relight.engine.scheduler import Scheduler
from relight.engine.sequence import Sequence
from relight.engine.wire import Abort, Add, Fault, Refused, Tokens

log = logging.getLogger(__name__)


class Runner(Protocol):
    def execute(self, plan: StepPlan) -> Iterable[Drawn]:
        """Runs a step and returns what came of each of its draws. An exception fails the requests
        in the step; `Unavailable` says that there can be no further step."""
        ...


class Loop:
    """Owned by one thread. `dead` is the reason why there can be no further step, None while there
    can be."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.dead: str | None = None
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._step_s = 0.0
        self._meter = CostMeter()

    @property
    def idle(self) -> bool:
        return not self._scheduler.has_work

    def add(self, request: Request) -> None:
        """Raises `BadRequest`, `TooLong`, `Overloaded`, or `Unavailable` if the engine is dead."""
        if self.dead is not None:
            raise Unavailable(self.dead)
        self._scheduler.add(request, self._clock())

    def abort(self, id: str) -> TokenDelta | None:
        """Ends a request between two steps, and its pages are free; None if it has ended."""
        delta = self._scheduler.abort(id, self._clock())
        self._report()
        return delta

    def step(self) -> list[TokenDelta]:
        """Runs one step if there is work; returns a delta for each request that got a token or
        ended."""
        start = self._clock()
        plan = self._scheduler.plan(start)
        if plan is None:
            return []
        try:
            tokens = self._runner.execute(plan)
        except Exception as error:  # whatever a kernel, a driver or a device may raise
            deltas = self._fail(plan, error)
        else:
            now = self._clock()
            self._step_s = now - start
            self._meter.observe(Load.of(plan), self._step_s)
            self._scheduler.cost = self._meter.cost
            deltas = self._scheduler.commit(plan, tokens, now)
        self._report()
        return deltas

    def turn(self, messages: Iterable[Add | Abort]) -> list[Refused | Tokens]:
        """Takes what came since the last turn, runs one step, and tells what came of both."""
        answers: list[Refused | Tokens] = []
        for message in messages:
            if isinstance(message, Abort):
                self.abort(message.id)
                continue
            try:
                self.add(message.request)
            except RelightError as error:
                answers.append(Refused(message.request.id, Fault.of(error)))
        deltas = self.step()
        answers.append(Tokens(deltas, self.stats()))
        return answers

    def _fail(self, plan: StepPlan, error: Exception) -> list[TokenDelta]:
        reason = f"step {plan.step} failed: {type(error).__name__}: {error}"
        log.error("%s", reason, exc_info=error)
        now = self._clock()
        deltas = self._scheduler.fail(plan, reason, now)
        if isinstance(error, Unavailable):
            self.dead = error.message
            deltas += self._scheduler.fail_all(error.message, now)
        return deltas

    def stop(self, reason: str) -> list[TokenDelta]:
        """Ends all requests with an error; none is taken any more."""
        self.dead = reason
        deltas = self._scheduler.fail_all(reason, self._clock())
        self._report()
        return deltas

    def stats(self) -> EngineStats:
        """`step_s` is the time that the last step took."""
        return self._scheduler.stats(self._step_s)

    def _report(self) -> None:
        ended = self._scheduler.ended
        if ended:
            for sequence in ended:
                log.info("%s", summary(sequence))
            ended.clear()


def summary(sequence: Sequence) -> str:
    """One line about a request that has ended: what it read, what it made, how long both took."""
    prompt, cached, made = sequence.num_prompt, sequence.num_cached, sequence.num_made
    admitted_s, first_s, ended_s = sequence.admitted_s, sequence.first_token_s, sequence.ended_s
    name, queued_s = sequence.request.id, (admitted_s or ended_s) - sequence.arrived_s
    if admitted_s is None or first_s is None:
        state = "in the queue" if admitted_s is None else "while reading"
        return f"{name}: {sequence.finish} {state}, {prompt} tokens, after {_ms(queued_s)} queued"
    rate = f", {(made - 1) / (ended_s - first_s):.1f}/s" if made > 1 and ended_s > first_s else ""
    again = f", preempted {sequence.num_preemptions}x" if sequence.num_preemptions else ""
    return (
        f"{name}: {prompt} tokens = {cached} reused + {prompt - cached} read "
        f"in {_ms(first_s - admitted_s)} after {_ms(queued_s)} queued; "
        f"{made} made in {_ms(ended_s - first_s)}{rate}{again}; {sequence.finish}"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
