"""Decides what the next step computes and what becomes of its tokens. Knows no model, no clock and
no I/O: times and tokens are told to it.

The rules, in order:

 1. At the door a request that can never fit (context, pages, token ids) is refused by name, and one
    more than `max_queue` is told to come back. All others are answered in order of arrival.
 2. A waiting request gets a slot, the oldest first, if its reservation fits: the pages of its
    prompt and of min(max_tokens, admit_output) tokens more, less what it finds in the cache, beside
    all that the running ones have reserved and not yet got. One that fits may overtake those that
    do not, but the oldest lets so many pass and no more.
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
 7. If the rows of a sequence reach the end of its known tokens, its next token is drawn. A sequence
    ends at a stop token, at max_tokens, at the context's end, by an abort, or with a failed step.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from relight.base.errors import BadRequest
from relight.base.types import EngineStats, FinishReason, Logprobs, Request, TokenDelta
from relight.cache.prefix import GIVEN, PrefixIndex
from relight.engine.admission import MAX_OVERTAKEN, MAX_PREEMPTIONS, MAX_TRIED, Admission
from relight.engine.admission import Limits as Limits  # named by whoever makes a scheduler
from relight.engine.cost import FIRST_GUESS
from relight.engine.holdings import Holdings, Take
from relight.engine.plan import (
    Draw,
    Drawn,
    PageWrite,
    RecordMove,
    Rows,
    SetCounts,
    SetLength,
    StepPlan,
)
from relight.engine.sequence import NO_SLOT, Sequence
from relight.engine.share import budget, share


@dataclass(frozen=True, slots=True)
class Work:
    """What a planned step does for one sequence: it will be computed up to `end`."""

    sequence: Sequence
    end: int
    draws: bool
    take: Take | None


@dataclass(slots=True)
class Draft:
    """A plan while it is made. Work is kept by segment, as the tokens of a step come back."""

    lengths: list[SetLength] = field(default_factory=list)
    counts: list[SetCounts] = field(default_factory=list)
    restores: list[RecordMove] = field(default_factory=list)
    pages: list[PageWrite] = field(default_factory=list)
    rows: tuple[list[Rows], list[Rows]] = field(default_factory=lambda: ([], []))  # by role
    draws: tuple[list[Draw], list[Draw]] = field(default_factory=lambda: ([], []))
    work: tuple[list[Work], list[Work]] = field(default_factory=lambda: ([], []))
    takes: list[RecordMove] = field(default_factory=list)


class Scheduler:
    """`plan` and `commit` (or `fail`) alternate; requests come and go between the steps.

    Sequences that have ended are left in `ended` for whoever reports on them.
    """

    def __init__(self, limits: Limits, index: PrefixIndex) -> None:
        self.limits = limits
        self.index = index
        self.admission = Admission(limits, index.pool, index.page_tokens)
        self.holdings = Holdings(
            index, enabled=limits.prefix_cache, record_interval=limits.record_interval
        )
        self.running: list[Sequence] = []  # by age, as is `waiting`
        self.waiting: list[Sequence] = []
        self.ended: list[Sequence] = []
        self.cost = FIRST_GUESS  # whoever has a clock may tell better
        self.num_steps = 0
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_generated_tokens = 0
        self._by_id: dict[str, Sequence] = {}
        self._num_arrived = 0
        self._free_slots = list(range(limits.num_slots - 1, -1, -1))
        self._num_tried = (
            0  # of the waiting, how many did not fit, and nothing was given back since
        )
        self._admitted: list[Sequence] = []  # in the step that is planned
        self._planned: StepPlan | None = None
        self._work: list[Work] = []

    # -- requests come and go

    def add(self, request: Request, now: float) -> None:
        """Raises `BadRequest` or `TooLong` if the request can never be served, `Overloaded` if the
        queue is full."""
        if request.id in self._by_id:
            raise BadRequest(f"id {request.id} is that of a request that runs; choose another")
        self.admission.check(request, len(self.waiting))
        self._num_arrived += 1
        root = self.index.root(request.cache_salt)
        sequence = Sequence.of(request, self._num_arrived, now, root)
        self._by_id[request.id] = sequence
        self.waiting.append(sequence)

    def abort(self, id: str, now: float) -> TokenDelta | None:
        """Ends a request; its slot and pages are free at once. None if it has ended already."""
        assert self._planned is None, "a step is under way"
        sequence = self._by_id.get(id)
        return None if sequence is None else self._end(sequence, "abort", now)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    # -- planning

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None if there is nothing to do."""
        assert self._planned is None, "the step before has not been committed"
        if not self.has_work:
            return None
        draft = Draft()
        self._admit(draft, now)
        shares = self._share()
        for sequence in tuple(self.running):
            if sequence.slot != NO_SLOT:  # else an older one has just taken its pages
                self._schedule(sequence, shares, draft)
        (given, made), (given_draws, made_draws) = draft.rows, draft.draws
        assert given or made, "no sequence can go on, not even the oldest"
        self._work = draft.work[1] + draft.work[0]
        self._planned = StepPlan(
            step=self.num_steps,
            made=tuple(made),
            given=tuple(given),
            draws=(*made_draws, *given_draws),
            lengths=tuple(draft.lengths),
            counts=tuple(draft.counts),
            pages=tuple(draft.pages),
            restores=tuple(draft.restores),
            takes=tuple(draft.takes),
        )
        return self._planned

    def _admit(self, draft: Draft, now: float) -> None:
        self._admitted = []
        while self._free_slots and (sequence := self._candidate()):
            match = self.holdings.find(sequence)
            if not self.admission.fits(sequence, match, self.running):
                self._num_tried += 1
                continue
            self.waiting[0].num_overtaken += sequence is not self.waiting[0]
            self.waiting.remove(sequence)
            sequence.slot = self._free_slots.pop()
            restore = self.holdings.acquire(sequence, match)
            draft.lengths.append(SetLength(sequence.slot, sequence.computed))
            if sequence.request.sampling.penalised:
                made = tuple(sequence.tokens[sequence.num_prompt :])
                draft.counts.append(SetCounts(sequence.slot, made))
            if restore:
                draft.restores.append(restore)
            if sequence.admitted_s is None:
                sequence.admitted_s = now
                sequence.num_cached = sequence.computed
                self.num_prompt_tokens += sequence.num_prompt
                self.num_cached_tokens += sequence.num_cached
            insort(self.running, sequence, key=_age)
            self._admitted.append(sequence)

    def _candidate(self) -> Sequence | None:
        """The next request that may be given a slot; None if there is none."""
        tried = self._num_tried
        if tried >= min(len(self.waiting), MAX_TRIED):
            return None
        if tried and self.waiting[0].num_overtaken >= MAX_OVERTAKEN:
            return None
        return self.waiting[tried]

    def _share(self) -> dict[Sequence, int]:
        """Given rows of the sequences whose next tokens are given."""
        limits = self.limits
        wants, num_made = [], 0
        for sequence in self.running:
            if sequence.roles[sequence.computed] == GIVEN:
                wants.append((sequence, self._wanted(sequence)))
            else:
                num_made += min(sequence.num_unread, limits.made_rows)
        if not wants:
            return {}
        parts = budget(
            self.cost,
            num_made,
            limits.step_target_s,
            limits.max_step_tokens,
            self.index.page_tokens,
        )
        return share(wants, parts, self.cost)

    def _wanted(self, sequence: Sequence) -> int:
        """Given rows that may follow without a stop: to the end of the run or to a record."""
        _, end = sequence.run()
        if sequence.boundaries:
            end = min(end, sequence.boundaries[-1])
        return end - sequence.computed

    def _schedule(self, sequence: Sequence, shares: dict[Sequence, int], draft: Draft) -> None:
        """Adds the next rows of a sequence to the plan, if it gets pages for them."""
        start, slot = sequence.computed, sequence.slot
        role = sequence.roles[start]
        if role == GIVEN:
            end = start + shares[sequence]
        else:
            end = min(sequence.run()[1], start + self.limits.made_rows)
        end = min(end, self._grow(sequence, end))
        if end <= start:
            return
        if sequence.num_sent_pages < len(sequence.pages):
            first = sequence.num_sent_pages
            draft.pages.append(PageWrite(slot, first, tuple(sequence.pages[first:])))
            sequence.num_sent_pages = len(sequence.pages)
        known = len(sequence.tokens)
        draws = end == known
        draft.rows[role].append(Rows(slot, start, tuple(sequence.tokens[start:end]), draws))
        if draws:
            sampling = sequence.request.sampling
            draft.draws[role].append(Draw(slot, known, sampling, sequence.num_made))
        take = self.holdings.take(sequence, role, end)
        if take:
            draft.takes.append(take.move)
        draft.work[role].append(Work(sequence, end, draws, take))

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
        of them has rows in the plan yet."""
        younger = [other for other in self.running if other.arrival > sequence.arrival]
        for other in reversed(younger):
            if other.num_preemptions < MAX_PREEMPTIONS:
                return other
        return younger[-1] if younger and sequence is self.running[0] else None

    def _preempt(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        insort(self.waiting, sequence, key=_age)

    def _leave(self, sequence: Sequence) -> None:
        """The sequence stops running and gives back all that it holds."""
        self.running.remove(sequence)
        self._free_slots.append(sequence.slot)
        sequence.slot = NO_SLOT
        self.holdings.release(sequence)
        self._num_tried = 0

    # -- what became of a step

    def commit(self, plan: StepPlan, results: Iterable[Drawn], now: float) -> list[TokenDelta]:
        """The step has run and drew `results`, one for each of `plan.draws`."""
        assert plan is self._planned, "another step was planned"
        self._planned = None
        self.num_steps += 1
        drawn = iter(results)
        deltas = []
        for work in self._work:
            result = next(drawn) if work.draws else 0
            token = result if isinstance(result, int) else result.token
            if token < 0:
                deltas.append(self._give_up(work, now))
                continue
            self.holdings.commit(work.sequence, work.end, work.take)
            if work.draws:
                told = () if isinstance(result, int) else (result.logprobs,)
                deltas.append(self._append(work.sequence, token, told, now))
        return deltas

    def _give_up(self, work: Work, now: float) -> TokenDelta:
        """No token could be drawn. Nobody knows since when what the sequence wrote is no number, so
        nothing that it used stays findable, but for what others hold."""
        sequence, top = work.sequence, next(iter(work.sequence.path), None)
        self.holdings.cancel(sequence, work.take)
        reason = (
            f"no token can be drawn at position {len(sequence.tokens)}: the logits are not finite "
            "(damaged weights, or a fault of a kernel or the device), or every token is banned"
        )
        delta = self._end(sequence, "error", now, error=reason)
        if top is not None:
            self.index.discard(top)
        return delta

    def _append(
        self, sequence: Sequence, token: int, told: tuple[Logprobs, ...], now: float
    ) -> TokenDelta:
        sequence.append(token)
        self.num_generated_tokens += 1
        if sequence.first_token_s is None:
            sequence.first_token_s = now
        sampling = sequence.request.sampling
        if token in sampling.stop_token_ids:
            return self._end(sequence, "stop", now, tokens=(token,), logprobs=told)
        if (
            sequence.num_made >= sampling.max_tokens
            or len(sequence.tokens) >= self.limits.max_context
        ):
            return self._end(sequence, "length", now, tokens=(token,), logprobs=told)
        return sequence.delta((token,), None, logprobs=told)

    def fail(self, plan: StepPlan, reason: str, now: float) -> list[TokenDelta]:
        """The step has failed: nobody knows what it has written, so its requests end."""
        assert plan is self._planned, "another step was planned"
        self._planned = None
        self.num_steps += 1
        for work in self._work:
            self.holdings.cancel(work.sequence, work.take)
        touched = {id(work.sequence): work.sequence for work in self._work}
        touched.update((id(sequence), sequence) for sequence in self._admitted)
        return [
            self._end(sequence, "error", now, error=reason)
            for sequence in touched.values()
            if sequence.slot != NO_SLOT
        ]

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
        if sequence.slot == NO_SLOT:
            self.waiting.remove(sequence)
            self._num_tried = 0
        else:
            self._leave(sequence)
        sequence.finish, sequence.ended_s = finish, now
        self.ended.append(sequence)
        return sequence.delta(tokens, finish, error, logprobs)

    def stats(self, step_s: float) -> EngineStats:
        pool, records = self.index.pool, self.index.records
        return EngineStats(
            running=len(self.running),
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
        )


def _age(sequence: Sequence) -> int:
    return sequence.arrival
