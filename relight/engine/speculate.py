"""Says how many tokens to guess ahead for a sequence, and counts what became of the guesses. Knows
no clock, no model and no step.

A guess counts only if it is what the model itself draws there, so nothing that is decided here can
change a text.
"""

from dataclasses import dataclass, field

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


class Speculation:
    """Guesses `depth` tokens ahead, fewer from the first that is less likely than `threshold`.
    Prompts longer than `max_prompt` go without, 0: none does; they are counted in `num_too_long`.
    """

    def __init__(self, depth: int, threshold: float = 0.0, max_prompt: int = 0) -> None:
        self.depth = depth
        self.threshold = threshold
        self.max_prompt = max_prompt
        self.num_too_long = 0
        self.tally = Tally()

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
        tokens = proposed.tokens[: self.depth]
        if sequence.guide is not None:
            tokens = sequence.guide.guesses(tokens)
        for place, confidence in enumerate(proposed.confidence[: len(tokens)]):
            if confidence < self.threshold:
                return tokens[:place]
        return tokens

    def _is_too_long(self, sequence: Sequence) -> bool:
        return 0 < self.max_prompt < sequence.num_prompt
