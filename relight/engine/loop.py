"""The main loop: plan a step, launch it, hand out what the one before it made. Knows no model and
no process.

Steps overlap if `steps` allow it: while one runs, the next is planned and launched, and then the
tokens of the first are read. Nothing in a plan needs a token that is not yet known. `InTurn` is the
slow form, which makes the same texts.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from relight.base.errors import RelightError, Unavailable
from relight.base.types import EngineStats, Request, SpecChoice, TableReads, TokenDelta
from relight.engine.cost import CostMeter, Load, Pace
from relight.engine.guides import Guides
from relight.engine.plan import Result, StepPlan
from relight.engine.scheduler import Scheduler
from relight.engine.sequence import Sequence
from relight.engine.steps import Read, Skipped, Steps
from relight.engine.wire import Abort, Add, Fault, Refused, Tokens

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launched:
    plan: StepPlan
    read: Read
    at_s: float


class Loop:
    """Owned by one thread. `dead` is the reason why there can be no further step, None while there
    can be. `awaited` is the step that it waits for and since when, for another thread to look at.
    `tables` tells what was read of tables that do not lie on the device.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        steps: Steps,
        clock: Callable[[], float] = time.monotonic,
        guides: Guides | None = None,
        tables: Callable[[], TableReads] | None = None,
    ) -> None:
        self.dead: str | None = None
        self._scheduler = scheduler
        self._steps = steps
        self._clock = clock
        self._guides = guides
        self._tables = tables
        self._launched: deque[Launched] = deque()
        self._read_s = 0.0
        self._goes_on = False  # there was work left when the last step had been read
        self.awaited: tuple[StepPlan, float] | None = None
        self._step_s = 0.0
        self._told: tuple[SpecChoice, ...] = ()
        self._meter = CostMeter()
        self._pace = Pace()

    @property
    def idle(self) -> bool:
        return not self._scheduler.has_work and not self._launched

    def add(self, request: Request) -> None:
        """Raises `BadRequest`, `TooLong`, `Overloaded`, or `Unavailable` if the engine is dead."""
        if self.dead is not None:
            raise Unavailable(self.dead)
        guide = None
        if request.constraint is not None:
            assert self._guides is not None, "nobody reads grammars here"
            guide = self._guides.guide(request)
        self._scheduler.add(request, self._clock(), guide)

    def abort(self, id: str) -> TokenDelta | None:
        """Ends a request; its pages are free when no step computes it. None if it has ended."""
        delta = self._scheduler.abort(id, self._clock())
        self._report()
        return delta

    def step(self) -> list[TokenDelta]:
        """Launches a step if one can be planned, and reads one that is due; returns a delta for
        each request that got a token or ended."""
        deltas = self._settle()
        now = self._clock()
        plan = self._scheduler.plan(now)
        if plan is not None:
            self._launched.append(Launched(plan, self._steps.launch(plan), now))
        elif not self._launched and self._guides is not None:
            self._guides.rest()  # for a grammar, if for anything
        if len(self._launched) > (0 if plan is None else self._steps.ahead):
            deltas += self._read()
        self._report()
        return deltas

    def _settle(self) -> list[TokenDelta]:
        """Waits a moment for grammars; ends the requests that cannot go on with theirs."""
        failed = self._guides.settle() if self._guides is not None else []
        ended = (self._scheduler.refuse(id, reason, self._clock()) for id, reason in failed)
        return [delta for delta in ended if delta is not None]

    def _read(self) -> list[TokenDelta]:
        """Waits for the step that was launched first."""
        step = self._launched.popleft()
        began_s = max(step.at_s, self._read_s)  # not before the one in front of it had ended
        self.awaited = step.plan, began_s
        went_on, self._goes_on = self._goes_on, False  # where this step ends otherwise
        try:
            results = step.read()
        except Skipped:
            self._scheduler.skip(step.plan)
            return []
        except Exception as error:  # whatever a kernel, a driver or a device may raise
            return self._fail(step.plan, error)
        finally:
            self.awaited = None
        now = self._clock()
        self._step_s = now - began_s
        # What lies between two steps counts as well: with guesses they do not overlap.
        interval_s = now - (self._read_s if went_on else began_s)
        self._read_s = now
        load = Load.of(step.plan)
        self._meter.observe(load, self._step_s)
        self._scheduler.cost = self._meter.cost
        made_before = self._scheduler.num_generated_tokens
        deltas = self._scheduler.commit(step.plan, results, now, interval_s)
        self._goes_on = self._scheduler.has_work
        num_made = self._scheduler.num_generated_tokens - made_before
        self._pace.observe(load.given, num_made, self._step_s)
        return deltas

    def _drain(self) -> list[TokenDelta]:
        deltas = []
        while self._launched:
            deltas += self._read()
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
        answers.append(Tokens(deltas, self._news()))
        return answers

    def _news(self) -> EngineStats:
        """What a client is told: it keeps choices that it knows, which seldom change."""
        stats = self.stats()
        if stats.spec_choices and stats.spec_choices is self._told:
            return msgspec.structs.replace(stats, spec_choices=())
        self._told = stats.spec_choices
        return stats

    def _fail(self, plan: StepPlan, error: Exception) -> list[TokenDelta]:
        reason = f"step {plan.step} failed: {type(error).__name__}: {error}"
        log.error("%s", reason, exc_info=error)
        now = self._clock()
        deltas = self._scheduler.fail(plan, reason, now)
        deltas += self._drain()
        self._steps.restart()
        if isinstance(error, Unavailable):
            self.dead = error.message
            deltas += self._scheduler.fail_all(error.message, now)
        return deltas

    def execute(self, plan: StepPlan) -> list[Result]:
        """Runs a plan that no scheduler made, for a check; what it leaves in slots and pages means
        nothing."""
        assert self.idle, "requests run"
        return list(self._steps.launch(plan)())

    def stop(self, reason: str) -> list[TokenDelta]:
        """Ends all requests with an error; none is taken any more."""
        deltas = self._drain()
        self.dead = self.dead or reason
        deltas += self._scheduler.fail_all(reason, self._clock())
        self._report()
        return deltas

    def stats(self) -> EngineStats:
        """`step_s` is the time that the last step took."""
        stats = self._scheduler.stats(self._step_s, self._pace.tokens_per_s)
        if self._tables is None:
            return stats
        return msgspec.structs.replace(stats, tables=self._tables())

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
    queued_s = (ended_s if admitted_s is None else admitted_s) - sequence.arrived_s
    name = sequence.request.id
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
