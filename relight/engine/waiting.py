"""The requests that wait for a slot, and which of them is tried next. Knows no page and no slot."""

from bisect import insort

from relight.engine.sequence import Sequence
from relight.engine.turns import Turns

MAX_OVERTAKEN = 16
"""How many requests may get a slot before the oldest one that waits."""
MAX_TRIED = 64
"""How many of those that wait are looked at while nothing is given back."""


class WaitingRoom:
    """`sequences` are by age; `turns` says in which order they are tried."""

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.turns = Turns()
        self._refused: set[Sequence] = set()  # nothing was given back since

    def enter(self, sequence: Sequence) -> None:
        """It is new, or it gave way."""
        insort(self.sequences, sequence, key=_age)

    def candidate(self) -> Sequence | None:
        """The next request to be tried; None if no other can fit."""
        refused = self._refused
        if len(refused) >= min(len(self.sequences), MAX_TRIED):
            return None
        oldest = self.sequences[0]
        if oldest.num_overtaken >= MAX_OVERTAKEN:
            return None if oldest in refused else oldest
        return next((s for s in self.turns.order(self.sequences) if s not in refused), None)

    def refuse(self, sequence: Sequence) -> None:
        """It does not fit, and will not until something is given back."""
        self._refused.add(sequence)

    def try_again(self) -> None:
        """Something was given back."""
        self._refused.clear()

    def call(self, sequence: Sequence) -> None:
        """It gets a slot, perhaps before the oldest."""
        oldest = self.sequences[0]
        oldest.num_overtaken += sequence is not oldest
        self.sequences.remove(sequence)

    def leave(self, sequence: Sequence) -> None:
        """It has ended without a slot."""
        self.sequences.remove(sequence)
        self._refused.discard(sequence)


def _age(sequence: Sequence) -> int:
    return sequence.arrival
