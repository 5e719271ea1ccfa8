"""Says how many tokens to guess ahead for a sequence, and counts what became of the guesses. Knows
no clock, no model and no step.

A guess counts only if it is what the model itself draws there, so nothing that is decided here can
change a text.
"""

from collections import Counter, deque
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

from relight.base.types import SpecChoice
from relight.engine.acceptance import OFF, Choice, Kind, Trial
from relight.engine.depth import Depths, Policy, Step
from relight.engine.plan import Proposed, StepPlan
from relight.engine.sequence import Sequence
from relight.engine.steptimes import GROUP_NAMES

THRESHOLDS = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Those that are tried where none is set."""
SEARCHED = 4096
"""Tokens at the end of a prompt in which the start of its last section is looked for."""
CONTENT = "content"


@dataclass(slots=True)
class Tally:
    """`drafts`: how often guesses were checked. By position: how many there were, and how many of
    them were right, with all before them. `steps`: those that checked some, and how long they took.
    """

    drafts: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    steps: int = 0
    step_s: float = 0.0

    def count(self, num_proposed: int, num_accepted: int) -> None:
        if not num_proposed:
            return
        self.drafts += 1
        missing = num_proposed - len(self.drafted)
        self.drafted += [0] * missing
        self.accepted += [0] * missing
        for place in range(num_proposed):
            self.drafted[place] += 1
            self.accepted[place] += place < num_accepted


class Speculation:
    """Guesses `most` tokens ahead, fewer from the first that is less likely than `threshold`.
    Prompts longer than `max_prompt` go without, 0: none does; they are counted in `num_too_long`.

    With `adapts`, each kind of sequence has as many as pay, up to `most`, and unless one is set the
    threshold that pays. `sections` are the tokens behind which a sequence writes something else.
    """

    def __init__(
        self,
        most: int,
        threshold: float = 0.0,
        max_prompt: int = 0,
        *,
        adapts: bool = False,
        sections: Mapping[int, str] | None = None,
    ) -> None:
        self.most = most
        self.max_prompt = max_prompt
        self.num_too_long = 0
        self.tally = Tally()
        self._fixed = Choice(most, threshold)
        thresholds = (threshold,) if threshold else THRESHOLDS
        self._depths = Depths(most, thresholds) if adapts else None
        self._chosen: object = None  # what `_choices` tells of
        self._choices: tuple[SpecChoice, ...] = ()
        if not adapts:
            self._choices = (SpecChoice("all", "all", "all", *self._fixed),)
        self._sections = sections or {}
        self._policy = Policy({})
        self._launched: deque[Step] = deque()

    # -- what a sequence is like

    def admit(self, sequence: Sequence) -> None:
        """The sequence starts to run for the first time."""
        self.num_too_long += self._is_too_long(sequence)
        end = sequence.tokens[-SEARCHED:]
        found = (self._sections[token] for token in reversed(end) if token in self._sections)
        sequence.section = next(found, CONTENT)

    def read(self, sequence: Sequence, token: int) -> None:
        """The sequence went on with this token."""
        section = self._sections.get(token)
        if section is not None:
            sequence.section = section

    def _kind(self, sequence: Sequence) -> Kind:
        is_greedy = sequence.request.sampling.temperature == 0
        return "greedy" if is_greedy else "sampled", sequence.section

    def _may(self, sequence: Sequence) -> bool:
        """What may be drawn must not hang on the tokens before it: neither on how often each was
        made (penalties), nor on a grammar that nobody has looked at."""
        return not (
            (sequence.guide is not None and not sequence.guide.may_guess)
            or sequence.request.sampling.penalised
            or self._is_too_long(sequence)
        )

    def _is_too_long(self, sequence: Sequence) -> bool:
        return 0 < self.max_prompt < sequence.num_prompt

    # -- a step

    def begin(self, running: Ordered[Sequence]) -> None:
        """A step for these is about to be planned. Of the guesses that a sequence had asked for it
        keeps as many as it may have now."""
        if self._depths is None:
            return
        making = [s for s in running if s.planned >= s.num_prompt]
        counts = Counter(self._kind(s) for s in making if self._may(s))
        reading = len(making) < len(running)
        self._policy = self._depths.choose(counts, len(making), reading=reading)
        for sequence in making:
            if sequence.proposal and sequence.trial is not None and self._may(sequence):
                depth = self._choice(sequence).depth
                sequence.proposal = sequence.proposal[:depth]
                sequence.trial = sequence.trial.cut(depth)

    def launch(self, plan: StepPlan) -> None:
        """The step has been planned."""
        checked = asked = 0
        for rows in plan.made:
            checked += rows.proposed
            asked += rows.propose
        self._launched.append(Step(len(plan.made), checked, asked > 0, self._policy.script))

    def land(self, right: int, seconds: float) -> None:
        """The step that was planned first has ended; so many guesses were right. 0 seconds: its
        time tells nothing of them."""
        step = self._launched.popleft()
        if step.checked and seconds:
            self.tally.steps += 1
            self.tally.step_s += seconds
        if self._depths is not None:
            self._depths.observe(step, right, seconds)

    def _choice(self, sequence: Sequence) -> Choice:
        if self._depths is None:
            return self._fixed
        return self._policy.choices.get(self._kind(sequence), OFF)

    # -- guesses of a sequence

    def wanted(self, sequence: Sequence) -> int:
        """How many tokens to guess behind the one that is drawn next."""
        if not self._may(sequence):
            return 0
        # Behind the token that is drawn next, and before the last one that it may have.
        left = sequence.most - len(sequence.tokens) - 2
        return max(0, min(self._choice(sequence).depth, left))

    def cut(self, sequence: Sequence, proposed: Proposed) -> tuple[int, ...]:
        """The guesses that are worth a row; a grammar that has begun is still to be asked."""
        tokens = proposed.tokens[: _num_before_budget(sequence)]
        if sequence.guide is not None:
            tokens = sequence.guide.guesses(tokens)
        choice = self._choice(sequence)._replace(depth=len(tokens))
        trial = sequence.trial = Trial(self._kind(sequence), choice, proposed.confidence)
        if not trial.num_likely and tokens:
            self._learn(trial, 0, 0)  # they take no row, and bring nothing
        return tokens[: trial.num_likely]

    def count(self, sequence: Sequence, num_proposed: int, num_accepted: int) -> None:
        """Guesses of the sequence have been checked."""
        self.tally.count(num_proposed, num_accepted)
        sequence.drafted += num_proposed
        sequence.checks += [0] * (num_accepted + 1 - len(sequence.checks))
        sequence.checks[num_accepted] += 1
        if sequence.trial is not None:
            self._learn(sequence.trial, num_proposed, num_accepted)

    def _learn(self, trial: Trial, num_proposed: int, num_accepted: int) -> None:
        """Of guesses that pages, a budget or a grammar have cut off nothing is learnt: neither that
        they were unlikely nor that they were wrong."""
        if self._depths is not None:
            if num_proposed < trial.num_likely:
                trial = trial.cut(num_proposed)
            self._depths.learn(trial, num_proposed, num_accepted)

    # -- what is told of it

    def choices(self) -> tuple[SpecChoice, ...]:
        """The same tuple until they change."""
        if self._depths is not None and self._chosen is not self._depths.chosen:
            self._chosen = self._depths.chosen
            self._choices = tuple(
                SpecChoice(*kind, GROUP_NAMES[group], *choice)
                for (kind, group), choice in self._depths.chosen.items()
            )
        return self._choices


def _num_before_budget(sequence: Sequence) -> int | None:
    """How many guesses leave the draw at which a thinking budget ends to a later step: what is
    drawn there hangs on the tokens before. None: any."""
    budget = sequence.request.sampling.think_budget
    if budget is None or sequence.num_made >= budget:
        return None
    return budget - sequence.num_made - 1
