"""Learns which guesses are right, by position, and says what each depth and threshold would bring.
Knows no step and no time.

A check tells of all choices that would have had no more guesses than it had: those of its depth or
less, and of its threshold or more. Of what it did not guess nothing is known.
"""

from collections.abc import Sequence
from typing import NamedTuple

MEMORY = 64
"""About how many checks a share remembers."""
LEAST = 8
"""Checks that a share needs before anything is decided by it."""


Kind = tuple[str, str]
"""Sequences whose guesses are alike: how they are drawn, and what they are writing."""


class Choice(NamedTuple):
    """Guess `depth` tokens, fewer from the first that is less likely than `threshold`."""

    depth: int
    threshold: float


OFF = Choice(0, 0.0)


class Option(NamedTuple):
    """What a check has on average under a choice: guesses, and right ones."""

    choice: Choice
    drafted: float
    right: float


NO_GUESS = Option(OFF, 0.0, 0.0)


class Trial(NamedTuple):
    """How guesses that are still to be checked came to be. `confidence`: how likely each was
    thought to be right, if those before it are."""

    kind: Kind
    choice: Choice
    confidence: tuple[float, ...]

    @property
    def num_likely(self) -> int:
        """Guesses that the choice lets through."""
        number = 0
        for sure in self.confidence[: self.choice.depth]:
            if sure < self.choice.threshold:
                break
            number += 1
        return number

    def cut(self, depth: int) -> "Trial":
        """As if no more had been asked for."""
        choice = self.choice
        return self._replace(choice=choice._replace(depth=min(choice.depth, depth)))


class Acceptance:
    """Of sequences of one kind."""

    def __init__(self, most: int, thresholds: Sequence[float]) -> None:
        self._shares = [Shares(threshold, most) for threshold in thresholds]

    def add(self, choice: Choice, confidence: Sequence[float], right: int) -> None:
        """A check of guesses that were made under `choice`: how likely each was thought to be, and
        how many were right. There may have been none, for the threshold."""
        for shares in self._shares:
            if shares.threshold >= choice.threshold:
                shares.add(choice.depth, confidence, right)

    def forget(self) -> None:
        """What comes from now on counts for more."""
        for shares in self._shares:
            shares.forget()

    def options(self) -> list[Option]:
        """The choices of which enough is known."""
        return [option for shares in self._shares for option in shares.options()]


class Shares:
    """Under one threshold, for each position: the share of checks that had a guess there, and of
    those in which it was right, with all before it. Their ratio is the acceptance given drafted,
    the second alone the unconditional one."""

    def __init__(self, threshold: float, most: int) -> None:
        self.threshold = threshold
        self.counts = [0] * most
        self.drafted = [0.0] * most
        self.right = [0.0] * most

    def add(self, depth: int, confidence: Sequence[float], right: int) -> None:
        length = 0
        while length < len(confidence) and confidence[length] >= self.threshold:
            length += 1
        right = min(right, length)
        counts, drafted, accepted = self.counts, self.drafted, self.right
        for place in range(depth):
            count = counts[place] = min(counts[place] + 1, MEMORY)
            drafted[place] += ((place < length) - drafted[place]) / count
            accepted[place] += ((place < right) - accepted[place]) / count

    def forget(self) -> None:
        self.counts = [min(count, LEAST) for count in self.counts]

    def options(self) -> list[Option]:
        found, drafted, right = [], 0.0, 0.0
        for place, count in enumerate(self.counts):
            if count < LEAST:
                break
            drafted += self.drafted[place]
            right += self.right[place]
            found.append(Option(Choice(place + 1, self.threshold), drafted, right))
        return found
