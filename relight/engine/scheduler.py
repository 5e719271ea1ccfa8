"""Decides what the next step computes and what becomes of its tokens. Knows no model, no clock and
no I/O: times and tokens are told to it.

The rules, in order:

 1. At the door a request that can never fit (context, pages, token ids) is refused by name, and one
    more than `max_queue` is told to come back. All others are answered in order of arrival.
 2. A waiting request gets a slot if its reservation fits: the pages of its prompt and of
    min(max_tokens, admit_output) tokens more, less what it finds in the cache, beside all that the
    running ones have reserved and not yet got. They are tried by priority, by what their clients
    were served, and by age. One that fits may overtake those that do not. The oldest lets only so
    many pass: then it is the only one that is tried.
 3. The oldest running request is the anchor: it reserves its whole need and is never preempted. So
    it always goes on, ends, and hands the role on: every request is answered.
 4. A step computes, for each running sequence, its next known tokens: made ones (normally the one
    drawn last, up to `made_rows` when a preempted sequence is computed again) and given ones. Rows
    never cross from one role to the other, and given rows stop where a record is to be taken.
 5. Given rows share `max_step_tokens`: the oldest prompt gets half, or all that the others leave,
    the rest goes to the prompts with the least left to read. While answers stream, they also share
    the time that is left of `step_target_s` by what the loop has learnt of costs; the oldest gets a
    page at least, and all together two fifths of the step.
 6. Pages are got as rows need them, the oldest sequence first: a free page, else the cached page
    unused for longest, else the pages of the youngest sequence that is younger and was preempted
    less than twice, else (for the anchor only) of the youngest of all. A sequence that gets none
    keeps what it has and pauses; it never displaces an older one.
 7. If the rows of a sequence reach the end of its tokens, its next token is drawn. A sequence ends
    at a stop token, at max_tokens, at the context's end, by an abort, or with a failed step.
 8. A step may be planned while the one before is in flight. Tokens that are being drawn count as
    there; if one of them ends its sequence, the rows planned behind it are void. What a step in
    flight may touch is given back by nobody: who ends or gives way leaves when its steps landed.
 9. A sequence with a grammar starts when it is compiled, and has no rows in a step in which it
    would draw without knowing yet what it may draw. Where nobody else goes on there is no such
    step: then they wait for each other, and share the next one.
10. Guesses at the next tokens of a sequence ride in the step that computes its last one. Those that
    the step itself draws count; the others have never been. Nothing is planned while such a step is
    in flight, and no sequence gives way for their rows.
11. With bounded replay only the last rows of a run of given tokens go through all layers. Where
    they begin hangs on the run alone; a prefix is used where at least so many given tokens follow.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Ordered
from typing import cast

from relight.base.errors import BadRequest
from relight.base.types import EngineStats, FinishReason, Logprobs, Request, TokenDelta
from relight.cache.prefix import GIVEN, PrefixIndex
from relight.engine.admission import MAX_PREEMPTIONS, Admission
from relight.engine.admission import Limits as Limits  # named by whoever makes a scheduler
from relight.engine.cost import FIRST_GUESS
from relight.engine.draft import Draft, Flight, Work
from relight.engine.guides import Guide
from relight.engine.holdings import Holdings
from relight.engine.plan import Drawn, Proposed, Result, Scored, StepPlan
from relight.engine.sequence import NO_SLOT, Sequence
from relight.engine.settle import kept, token_of
from relight.engine.share import share_rows
from relight.engine.speculate import Speculation, Tally
from relight.engine.waiting import WaitingRoom

MAX_IN_FLIGHT = 2
FIRST_OUTPUT = 256.0
"""Tokens that an answer is thought to have before any has ended."""


class Scheduler:
    """Each plan is ended by `commit`, `fail` or `skip`, in their order; at most two are in flight.
    Requests come and go in between.

    Sequences that have ended are left in `ended` for whoever reports on them.
    """

    def __init__(
        self, limits: Limits, index: PrefixIndex, speculation: Speculation | None = None
    ) -> None:
        self.speculation = speculation
        self.limits = limits
        self.index = index
        self.admission = Admission(limits, index.pool, index.page_tokens)
        self.holdings = Holdings(
            index,
            enabled=limits.prefix_cache,
            record_interval=limits.record_interval,
            replay_rows=limits.replay_rows,
        )
        self.running: list[Sequence] = []  # by age, as is `waiting`
        self._room = WaitingRoom()
        self.waiting = self._room.sequences
        self.leaving: list[Sequence] = []  # neither runs nor waits, and holds what it had
        self.ended: list[Sequence] = []
        self.cost = FIRST_GUESS  # whoever has a clock may tell better
        self.num_steps = 0
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_generated_tokens = 0
        self.num_bounded_tokens = 0
        self._by_id: dict[str, Sequence] = {}
        self._num_arrived = 0
        self._free_slots = list(range(limits.num_slots - 1, -1, -1))
        self._turns = self._room.turns
        self._mean_output = FIRST_OUTPUT
        self._num_planned = 0
        self._flights: deque[Flight] = deque()
        self._compiling = False  # a request that waits was passed over for its grammar

    # -- requests come and go

    def add(self, request: Request, now: float, guide: Guide | None = None) -> None:
        """Raises `BadRequest` or `TooLong` if the request can never be served, `Overloaded` if the
        queue is full."""
        if request.id in self._by_id:
            raise BadRequest(f"id {request.id} is that of a request that runs; choose another")
        self.admission.check(request, len(self.waiting))
        self._num_arrived += 1
        root = self.index.root(request.cache_salt)
        sequence = Sequence.of(request, self._num_arrived, now, root, guide)
        sequence.most = min(sequence.most, self.limits.max_context)
        self._by_id[request.id] = sequence
        self._turns.arrive(request.client)
        self._room.enter(sequence)

    def abort(self, id: str, now: float) -> TokenDelta | None:
        """Ends a request; its slot and pages are free at once, or when a step that computes it has
        landed. None if it has ended already."""
        sequence = self._by_id.get(id)
        return None if sequence is None else self._end(sequence, "abort", now)

    def refuse(self, id: str, reason: str, now: float) -> TokenDelta | None:
        """Ends a request that cannot go on. None if it has ended already."""
        sequence = self._by_id.get(id)
        return None if sequence is None else self._end(sequence, "error", now, error=reason)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting or self.leaving)

    # -- planning

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None if there is nothing to do, or not before a step has landed."""
        assert len(self._flights) < MAX_IN_FLIGHT, "no step has been committed"
        if self._flights and self._is_better_later():
            return None
        draft = Draft()
        self._admit(draft, now)
        going = [sequence for sequence in self.running if len(sequence.tokens) < sequence.most]
        if self.speculation is not None:
            self.speculation.begin(going)
        shares = share_rows(going, self.limits, self.cost, self.index.page_tokens)
        for sequence in going:
            if sequence.slot != NO_SLOT and not sequence.leaving:  # else an older one has just
                self._schedule(sequence, shares, draft)  # taken its pages
        if not any(draft.rows):
            for sequence in draft.admitted:
                self._preempt(sequence)
            assert self._flights or not self.has_work or self._is_guided(), "nobody can go on"
            return None
        flight = draft.flight(self._num_planned)
        self._num_planned += 1
        self._flights.append(flight)
        if self.speculation is not None:
            self.speculation.launch(flight.plan)
        return flight.plan

    def _is_better_later(self) -> bool:
        """Whether a step now would be for some of those only who will draw at the same pace when
        the step in flight has landed."""
        if self.speculation is not None and self._flights[-1].speculates:
            return True
        if self.waiting or not self.running:
            return False
        return all(s.guide is not None for s in self.running) and not all(
            s.may_draw for s in self.running
        )

    def _is_guided(self) -> bool:
        """Whether somebody may have to wait for a grammar."""
        return any(s.guide is not None for s in (*self.running, *self.waiting))

    def _admit(self, draft: Draft, now: float) -> None:
        if self._compiling:
            self._compiling = False
            self._room.try_again()
        while self._free_slots and (sequence := self._room.candidate()):
            if not sequence.may_start:
                self._compiling = True
                self._room.refuse(sequence)
                continue
            match = self.holdings.find(sequence)
            if not self.admission.fits(sequence, match, self.running):
                self._room.refuse(sequence)
                continue
            self._room.call(sequence)
            sequence.slot = self._free_slots.pop()
            draft.admit(sequence, self.holdings.acquire(sequence, match))
            if sequence.admitted_s is None:
                sequence.admitted_s = now
                sequence.num_cached = sequence.computed
                self.num_prompt_tokens += sequence.num_prompt
                self.num_cached_tokens += sequence.num_cached
                num_read = sequence.num_prompt - sequence.num_cached
                self._turns.read(sequence.request.client, num_read)
                if self.speculation is not None:
                    self.speculation.admit(sequence)
            insort(self.running, sequence, key=_age)

    def _schedule(self, sequence: Sequence, shares: dict[Sequence, int], draft: Draft) -> None:
        """Adds the next rows of a sequence to the plan, if it gets pages for them."""
        start, total = sequence.planned, len(sequence.tokens)
        role = sequence.roles[start]
        if role == GIVEN:
            end = start + shares[sequence]
        elif total - start == 1:  # as in all steps but the first ones after it gave way
            if total % self.index.page_tokens > 1 and self._goes_on_alone(sequence):
                draft.go_on(sequence)
                return
            end = total
        else:
            end = min(sequence.run()[1], start + self.limits.made_rows)
        if end == total and sequence.guide is not None and not sequence.may_draw:
            return
        if end > len(sequence.pages) * self.index.page_tokens:
            end = min(end, self._grow(sequence, end))
        if end <= start:
            return
        whole = 0
        if role == GIVEN and self.limits.replay_rows:
            whole = sequence.whole_from(self.limits.replay_rows)
            self.num_bounded_tokens += max(0, min(end, whole) - start)
        proposed = self._proposed(sequence, end) if sequence.proposal else ()
        take = self.holdings.take(sequence, role, end + len(proposed))
        ahead = self.speculation.wanted(sequence) if self.speculation else 0
        draft.compute(sequence, role, end, take, proposed, ahead, whole)

    def _goes_on_alone(self, sequence: Sequence) -> bool:
        """Whether inside of a page nothing comes with its last token, as in most steps."""
        return (
            self.speculation is None
            and sequence.guide is None
            and sequence.num_sent_pages == len(sequence.pages)
        )

    def _proposed(self, sequence: Sequence, end: int) -> tuple[int, ...]:
        """The guesses behind `end` that the sequence may have, one less than it may draw, and for
        which there are pages without anybody giving way."""
        proposal = sequence.proposal[: sequence.most - end - 1]
        if sequence.guide is not None:
            proposal = sequence.guide.allowed(proposal)
        room = len(sequence.pages) * self.index.page_tokens
        if end + len(proposal) > room:
            room = self.holdings.grow(sequence, end + len(proposal))
        return proposal[: room - end]

    def _grow(self, sequence: Sequence, end: int) -> int:
        """Gets pages for tokens [0, end); returns for how many tokens the sequence has pages."""
        while (room := self.holdings.grow(sequence, end)) < end:
            victim = self._victim(sequence)
            if victim is None:
                break
            self._preempt(victim)
        return room

    def _victim(self, sequence: Sequence) -> Sequence | None:
        """The youngest of those who must give way to `sequence`; all are younger than it, so none
        of them has rows in the plan yet. None, too, while pages are on their way."""
        if self.leaving:
            return None
        younger = [other for other in self.running if other.arrival > sequence.arrival]
        for other in reversed(younger):
            if other.num_preemptions < MAX_PREEMPTIONS:
                return other
        return younger[-1] if younger and sequence is self.running[0] else None

    def _preempt(self, sequence: Sequence) -> None:
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """The sequence stops running; what it holds is given back when no step may touch it."""
        self.running.remove(sequence)
        if sequence.in_flight:
            sequence.leaving = True
            self.leaving.append(sequence)
        else:
            self._let_go(sequence)

    def _land(self, sequence: Sequence) -> None:
        """A step that computed the sequence has ended, in whatever way."""
        if sequence.leaving and not sequence.in_flight:
            sequence.leaving = False
            self.leaving.remove(sequence)
            self._let_go(sequence)

    def _let_go(self, sequence: Sequence) -> None:
        self._free_slots.append(sequence.slot)
        sequence.slot = NO_SLOT
        sequence.proposal, sequence.overran = (), False
        top = next(iter(sequence.path), None)
        self.holdings.release(sequence)
        if sequence.distrusted and top is not None:
            self.index.discard(top)
        self._room.try_again()
        if sequence.finish is None:
            sequence.forget()
            self._room.enter(sequence)

    # -- what became of a step

    def commit(
        self, plan: StepPlan, results: Iterable[Result], now: float, seconds: float = 0.0
    ) -> list[TokenDelta]:
        """The step has run and gave `results`, so long after the one before, if anybody knows."""
        results = list(results)
        drawn = iter(cast("list[Drawn]", results))
        guesses = iter(cast("list[Proposed]", results[len(plan.draws) :]))
        deltas = []
        for work in self._next(plan).work:
            sequence = work.sequence
            delta = self._settle(work, drawn, now)
            if delta is not None:
                deltas.append(delta)
            if work.asks:
                proposed = next(guesses)
                if self.speculation and sequence.finish is None and not sequence.leaving:
                    sequence.proposal = self.speculation.cut(sequence, proposed)
            if sequence.guide is not None and sequence.finish is None:
                sequence.guide.go_on(sequence.proposal)
            if sequence.leaving:
                self._land(sequence)
        if self.speculation is not None:
            right = sum(max(0, len(delta.tokens) - 1) for delta in deltas)
            self.speculation.land(right, 0.0 if plan.given else seconds)
        return deltas

    def _settle(self, work: Work, drawn: Iterator[Drawn], now: float) -> TokenDelta | None:
        """What a step drew for a sequence becomes part of it, and what it computed of that is
        committed."""
        sequence = work.sequence
        if sequence.finish is not None:
            self._settle_ended(work, kept(work, drawn))
            return None
        if work.proposed:
            return self._settle_guesses(work, kept(work, drawn), now)
        if not work.draws:
            self.holdings.commit(sequence, work.end, work.take)
            return None
        result = next(drawn)
        told: tuple[Logprobs, ...] = ()
        if isinstance(result, int):
            token = result
        else:
            token, told = result.token, (result.logprobs,)
        if token < 0:
            self._distrust(work)
            return self._give_up(sequence, (), (), now)
        finish = self._learn(sequence, token, now)
        self.holdings.commit(sequence, work.end, work.take)
        if finish is not None:
            return self._end(sequence, finish, now, tokens=(token,), logprobs=told)
        return sequence.delta((token,), None, logprobs=told)

    def _settle_guesses(self, work: Work, results: Ordered[Drawn], now: float) -> TokenDelta:
        """The same where there were guesses, so that more than one draw may count."""
        sequence = work.sequence
        tokens: list[int] = []
        told: list[Logprobs] = []
        finish, is_fault = None, False
        for result in results:
            token = token_of(result)
            is_fault = token < 0
            if is_fault:
                break
            if tokens:
                sequence.expect()
            finish = self._learn(sequence, token, now)
            tokens.append(token)
            if isinstance(result, Scored):
                told.append(result.logprobs)
            if finish is not None:
                break
        accepted = max(0, len(tokens) - 1)
        sequence.planned = end = work.end + accepted
        sequence.overran = accepted < len(work.proposed)
        if self.speculation is not None:
            self.speculation.count(sequence, len(work.proposed), accepted)
        if is_fault:
            self._distrust(work)
        if tokens:
            self.holdings.commit(sequence, end, None if is_fault else work.take)
        if is_fault:
            return self._give_up(sequence, tuple(tokens), tuple(told), now)
        if finish is not None:
            return self._end(sequence, finish, now, tokens=tuple(tokens), logprobs=tuple(told))
        return sequence.delta(tuple(tokens), None, logprobs=tuple(told))

    def _settle_ended(self, work: Work, results: Ordered[Drawn]) -> None:
        """The same where nothing that was drawn counts any more."""
        if work.sequence.finish != "abort":
            self.holdings.cancel(work.sequence, work.take)  # void: it ended in the step before
        elif any(token_of(result) < 0 for result in results):
            self._distrust(work)
        else:
            self.holdings.commit(work.sequence, work.end, work.take)

    def _distrust(self, work: Work) -> None:
        """A row of the sequence gave no number."""
        work.sequence.distrusted = True
        self.holdings.cancel(work.sequence, work.take)

    def _next(self, plan: StepPlan) -> Flight:
        """The step in flight that was planned first."""
        flight = self._flights.popleft()
        assert plan is flight.plan, "another step was planned before"
        self.num_steps += 1
        for work in flight.work:
            work.sequence.in_flight -= 1
        return flight

    def _give_up(
        self, sequence: Sequence, tokens: tuple[int, ...], told: tuple[Logprobs, ...], now: float
    ) -> TokenDelta:
        """No further token could be drawn. Nobody knows since when what the sequence wrote is no
        number, so nothing that it used stays findable, but for what others hold."""
        reason = (
            f"no token can be drawn at position {sequence.num_known}: the logits are not finite "
            "(damaged weights, or a fault of a kernel or the device), or every token is banned"
        )
        return self._end(sequence, "error", now, tokens=tokens, logprobs=told, error=reason)

    def _learn(self, sequence: Sequence, token: int, now: float) -> FinishReason | None:
        """One more token of the sequence; whether it is the last."""
        sequence.learn(token)
        if self.speculation is not None:
            self.speculation.read(sequence, token)
        self._turns.made(sequence.request.client)
        self.num_generated_tokens += 1
        if sequence.first_token_s is None:
            sequence.first_token_s = now
        sampling = sequence.request.sampling
        if token in sampling.stop_token_ids and not sequence.is_forced:
            return "stop"
        if sequence.num_known >= sequence.most:
            return "length"
        if sequence.guide is not None:
            sequence.guide.learn(token)
        return None

    def fail(self, plan: StepPlan, reason: str, now: float) -> list[TokenDelta]:
        """The step has failed: nobody knows what it has written, so its requests end."""
        flight = self._next(plan)
        if self.speculation is not None:
            self.speculation.land(0, 0.0)
        for work in flight.work:
            self.holdings.cancel(work.sequence, work.take)
        touched = dict.fromkeys((*(work.sequence for work in flight.work), *flight.admitted))
        deltas = [
            self._end(sequence, "error", now, error=reason)
            for sequence in touched
            if sequence.finish is None and sequence.slot != NO_SLOT
        ]
        for sequence in touched:
            self._land(sequence)
        return deltas

    def skip(self, plan: StepPlan) -> None:
        """The step has not run, since the one before has failed. What is left of its requests gives
        way: their slots are not as they were planned to be."""
        flight = self._next(plan)
        if self.speculation is not None:
            self.speculation.land(0, 0.0)
        for work in flight.work:
            self.holdings.cancel(work.sequence, work.take)
        for sequence in dict.fromkeys((*(work.sequence for work in flight.work), *flight.admitted)):
            if sequence in self.running:
                self._preempt(sequence)
            self._land(sequence)

    def fail_all(self, reason: str, now: float) -> list[TokenDelta]:
        """The engine is gone: every request ends."""
        everyone = list(self._by_id.values())
        return [self._end(sequence, "error", now, error=reason) for sequence in everyone]

    def _end(
        self,
        sequence: Sequence,
        finish: FinishReason,
        now: float,
        *,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[Logprobs, ...] = (),
        error: str | None = None,
    ) -> TokenDelta:
        del self._by_id[sequence.request.id]
        self._turns.leave(sequence.request.client)
        sequence.finish, sequence.ended_s = finish, now
        sequence.forget()
        if finish in ("stop", "length"):
            self._mean_output += (sequence.num_made - self._mean_output) / 32
        if sequence.slot == NO_SLOT:
            self._room.leave(sequence)
        elif not sequence.leaving:
            self._leave(sequence)
        self.ended.append(sequence)
        return sequence.delta(tokens, finish, error, logprobs)

    def stats(self, step_s: float, tokens_per_s: float = 0.0) -> EngineStats:
        pool, records, speculation = self.index.pool, self.index.records, self.speculation
        tally = Tally() if speculation is None else speculation.tally
        return EngineStats(
            running=len(self.running) + len(self.leaving),
            waiting=len(self.waiting),
            steps=self.num_steps,
            pages_total=pool.total,
            pages_held=pool.num_held,
            pages_cached=pool.num_cached,
            records_total=records.total,
            records_used=records.total - records.num_free,
            prompt_tokens=self.num_prompt_tokens,
            cached_tokens=self.num_cached_tokens,
            generated_tokens=self.num_generated_tokens,
            preemptions=self.num_preemptions,
            step_s=step_s,
            tokens_per_s=tokens_per_s,
            mean_output=self._mean_output,
            spec_drafts=tally.drafts,
            spec_drafted=tuple(tally.drafted),
            spec_accepted=tuple(tally.accepted),
            spec_choices=() if speculation is None else speculation.choices(),
            spec_steps=tally.steps,
            spec_step_s=tally.step_s,
            spec_too_long=0 if speculation is None else speculation.num_too_long,
            bounded_tokens=self.num_bounded_tokens,
        )


def _age(sequence: Sequence) -> int:
    return sequence.arrival
