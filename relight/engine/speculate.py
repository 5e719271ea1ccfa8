"""Says how many tokens to guess ahead for a sequence, and counts what became of the guesses. Knows
no clock, no model and no step.

A guess counts only if it is what the model itself draws there, so nothing that is decided here can
change a text.
"""

from collections import deque
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

from relight.engine.depth import DepthChoice
from relight.engine.plan import Proposed
from relight.engine.sequence import Sequence


@dataclass(slots=True)
class Tally:
    """`drafts`: how often guesses were checked. By position: how many there were, and how many of
    them were right, with all before them."""

    drafts: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

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


WIDTHS = (1, 4, 16)
"""Sequences of a step up to which it is of one kind, and above the last."""

Kind = tuple[str, int]
"""Steps whose guesses are alike: how tokens are drawn, and how many sequences there are."""


def kind_of(sequences: Ordered[Sequence]) -> Kind:
    greedy = {sequence.request.sampling.temperature == 0 for sequence in sequences}
    name = "mixed" if len(greedy) > 1 else "greedy" if True in greedy else "sampled"
    return name, sum(len(sequences) > width for width in WIDTHS)


class Speculation:
    """Guesses `depth` tokens ahead, fewer from the first that is less likely than `threshold`.
    Prompts longer than `max_prompt` go without, 0: none does; they are counted in `num_too_long`.

    With `adapts`, `most` is what `depth` may be: each kind of step has the one that pays, by the
    times that it is told.
    """

    def __init__(
        self, most: int, threshold: float = 0.0, max_prompt: int = 0, *, adapts: bool = False
    ) -> None:
        self.most = most
        self.depth = 0 if adapts else most
        self.adapts = adapts
        self.threshold = threshold
        self.max_prompt = max_prompt
        self.num_too_long = 0
        self.tally = Tally()
        self._choices: dict[Kind, DepthChoice] = {}
        self._kind: Kind = ("mixed", 0)
        self._launched: deque[tuple[Kind, int]] = deque()
        self._before = 0

    def begin(self, running: Ordered[Sequence]) -> None:
        """A step for these is about to be planned."""
        if self.adapts:
            self._kind = kind_of(running)
            self.depth = self._choices.setdefault(self._kind, DepthChoice(self.most)).depth

    def launch(self) -> None:
        """The step has been planned."""
        self._launched.append((self._kind, self.depth))

    def land(self, accepted: Ordered[int], seconds: float) -> None:
        """The step that was planned first has ended; of each sequence with a made row so many
        guesses were right. 0 seconds: nothing is to be learnt of it."""
        kind, depth = self._launched.popleft()
        before, self._before = self._before, depth
        if self.adapts and seconds:
            self._choices[kind].observe(depth, before, accepted, seconds)

    def admit(self, sequence: Sequence) -> None:
        """The sequence starts to run for the first time."""
        self.num_too_long += self._is_too_long(sequence)

    def wanted(self, sequence: Sequence) -> int:
        """How many tokens to guess behind the one that is drawn next.

        What may be drawn must not hang on the tokens before it: neither on how often each was made
        (penalties, budgets), nor on a grammar that has begun.
        """
        if (
            (sequence.guide is not None and not sequence.guide.is_free)
            or sequence.request.sampling.counted
            or self._is_too_long(sequence)
        ):
            return 0
        # Behind the token that is drawn next, and before the last one that it may have.
        return max(0, min(self.depth, sequence.most - len(sequence.tokens) - 2))

    def cut(self, sequence: Sequence, proposed: Proposed) -> tuple[int, ...]:
        """The guesses that are worth a row, and that no mask hangs on."""
        tokens = proposed.tokens[: self.most]
        if sequence.guide is not None:
            tokens = sequence.guide.guesses(tokens)
        for place, confidence in enumerate(proposed.confidence[: len(tokens)]):
            if confidence < self.threshold:
                return tokens[:place]
        return tokens

    def _is_too_long(self, sequence: Sequence) -> bool:
        return 0 < self.max_prompt < sequence.num_prompt
