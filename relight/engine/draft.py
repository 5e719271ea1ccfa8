"""A plan while it is made, and what it stands for until its step is committed. Decides nothing."""

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

import msgspec

from relight.cache.prefix import MADE
from relight.engine.holdings import Take
from relight.engine.plan import (
    LAST_SAMPLED,
    Draw,
    PageWrite,
    RecordMove,
    Rows,
    SetCounts,
    SetLength,
    StepPlan,
)
from relight.engine.sequence import Sequence

NOT_KNOWN = (LAST_SAMPLED,)


class Work(msgspec.Struct, frozen=True):
    """What a step does for one sequence: it will be computed up to `end`, and as far beyond as the
    guesses in `proposed` are right. `asks`: for guesses."""

    sequence: Sequence
    end: int
    draws: bool
    take: Take | None
    proposed: tuple[int, ...] = ()
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that was planned and is not committed. `work` with draws is in the order of the plan's
    draws; `admitted` got their slots in it, perhaps without rows."""

    plan: StepPlan
    work: Ordered[Work]
    admitted: Ordered[Sequence]

    @property
    def speculates(self) -> bool:
        """Whether what comes next hangs on what came of it."""
        return any(work.proposed or work.asks for work in self.work)


@dataclass(slots=True)
class Draft:
    """Work is kept by segment, as the tokens of a step come back."""

    admitted: list[Sequence] = field(default_factory=list)
    lengths: list[SetLength] = field(default_factory=list)
    counts: list[SetCounts] = field(default_factory=list)
    restores: list[RecordMove] = field(default_factory=list)
    pages: list[PageWrite] = field(default_factory=list)
    rows: tuple[list[Rows], list[Rows]] = field(default_factory=lambda: ([], []))  # by role
    draws: tuple[list[Draw], list[Draw]] = field(default_factory=lambda: ([], []))
    work: tuple[list[Work], list[Work]] = field(default_factory=lambda: ([], []))
    takes: list[RecordMove] = field(default_factory=list)

    def admit(self, sequence: Sequence, restore: RecordMove | None) -> None:
        slot = sequence.slot
        self.lengths.append(SetLength(slot, sequence.computed))
        if sequence.request.sampling.counted:
            made = tuple(sequence.tokens[sequence.num_prompt :])
            self.counts.append(SetCounts(slot, made))
        if restore:
            self.restores.append(restore)
        self.admitted.append(sequence)

    def compute(
        self,
        sequence: Sequence,
        role: int,
        end: int,
        take: Take | None,
        proposed: tuple[int, ...] = (),
        propose: int = 0,
        whole_from: int = 0,
    ) -> None:
        """Adds the rows up to `end`, and a draw if nothing is known beyond them, with rows and
        draws for guesses."""
        slot, start, total = sequence.slot, sequence.planned, len(sequence.tokens)
        if sequence.overran:
            self.lengths.append(SetLength(slot, start))
            if sequence.awaits_budget:
                self.counts.append(SetCounts(slot, sequence.closings()))
            sequence.overran = False
        if sequence.num_sent_pages < len(sequence.pages):
            first = sequence.num_sent_pages
            self.pages.append(PageWrite(slot, first, tuple(sequence.pages[first:])))
            sequence.num_sent_pages = len(sequence.pages)
        tokens: tuple[int, ...]
        if end - start == 1:
            tokens = (sequence.tokens[start],) if end <= sequence.num_known else NOT_KNOWN
        elif end <= sequence.num_known:
            tokens = tuple(sequence.tokens[start:end])
        else:
            tokens = (*sequence.tokens[start : end - 1], LAST_SAMPLED)
        draws = end == total
        assert not proposed or end == total == sequence.num_known, "guesses at what is known"
        propose = propose if draws else 0
        rows = Rows(slot, start, tokens + proposed, draws, len(proposed), propose, whole_from)
        self.rows[role].append(rows)
        if draws:
            if proposed or sequence.guide is not None:
                self.draws[role].extend(_draws(sequence, len(proposed)))
            else:
                made = total - sequence.num_prompt
                self.draws[role].append(Draw(slot, total, sequence.request.sampling, made))
            sequence.expect()
        if take:
            self.takes.append(take.move)
        self.work[role].append(Work(sequence, end, draws, take, proposed, propose > 0))
        sequence.planned, sequence.proposal = end, ()
        sequence.in_flight += 1

    def go_on(self, sequence: Sequence) -> None:
        """The same for its last token, where neither pages, a record, guesses nor a grammar come
        with it."""
        slot, start, sampling = sequence.slot, sequence.planned, sequence.request.sampling
        end = start + 1
        tokens = (sequence.tokens[start],) if end <= sequence.num_known else NOT_KNOWN
        self.rows[MADE].append(Rows(slot, start, tokens, True))
        self.draws[MADE].append(Draw(slot, end, sampling, end - sequence.num_prompt))
        self.work[MADE].append(Work(sequence, end, True, None))
        sequence.expect()
        sequence.planned = end
        sequence.in_flight += 1

    def flight(self, step: int) -> Flight:
        (given, made), (given_draws, made_draws) = self.rows, self.draws
        plan = StepPlan(
            step=step,
            made=tuple(made),
            given=tuple(given),
            draws=(*made_draws, *given_draws),
            lengths=tuple(self.lengths),
            counts=tuple(self.counts),
            pages=tuple(self.pages),
            restores=tuple(self.restores),
            takes=tuple(self.takes),
        )
        return Flight(plan, self.work[1] + self.work[0], self.admitted)


def _draws(sequence: Sequence, num_guesses: int) -> list[Draw]:
    """Behind the last token of the sequence, and behind each of so many guesses."""
    slot, total, sampling = sequence.slot, len(sequence.tokens), sequence.request.sampling
    draws = []
    for place in range(num_guesses + 1):
        mask, made = sequence.mask(place), total + place - sequence.num_prompt
        if mask is not None and mask.closing:
            made = max(made, sampling.min_tokens)  # it cannot be longer
        draws.append(Draw(slot, total + place, sampling, made, mask))
    return draws
