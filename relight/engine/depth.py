"""Finds out how many tokens it pays to guess ahead in steps of one kind. Knows no sequence, no
model and no clock: it is told what each step brought and how long it took.

After a few steps without and with guesses it goes on with the number that brings most tokens in a
second, none if guesses do not pay. Behind that probing the loss is bounded:

    debt = sum of (a step's time in steps without guesses - tokens that it brought a sequence)

over the worst run of steps. Guesses end before it can pass 1.9 steps, which are 3 % of 64.
"""

import math
from collections.abc import Sequence

PROBES = (8, 12, 11, 1)
"""Steps without guesses, with as many as can be, with half of them, and one that checks the last.
"""
MEMORY = 16
"""About how many steps a mean remembers."""
LEAST_GAIN = 1.03
"""By how much guesses must seem better than none, as both are measured."""
WINDOW = 64
MOST_DEBT = 1.3
"""Less than 3 % of the window, since a step more may be lost before it is noticed."""
SCATTER = 3.0
"""Deviations below the mean that what a step brings hardly ever has."""
REST = 256
"""Steps without guesses after they lost, doubled each time, and between looks at the other way."""
LONGEST_REST = 4096
LOOK = 2
"""Steps of a look: the first one only asks for guesses, and one more checks the last ones."""


class Mean:
    """Of all at first, then of the last ones."""

    def __init__(self) -> None:
        self.value = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) / min(self.count, MEMORY)


class DepthChoice:
    """`depth` is what the next step of the kind should guess; 0 to `most`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.depth = 0
        self._advance = [Mean() for _ in range(most + 1)]
        self._squares = [Mean() for _ in range(most + 1)]
        self._seconds = [Mean() for _ in range(most + 1)]
        half = max(1, most // 2)
        depths = (0, most, half, 0)
        self._ahead = [d for d, count in zip(depths, PROBES, strict=True) for _ in range(count)]
        self._num_probes = len(self._ahead)
        self._debt = 0.0
        self._left = REST  # steps until the next look
        self._rest = REST

    @property
    def is_probing(self) -> bool:
        return self._num_probes > 0

    def observe(self, depth: int, before: int, accepted: Sequence[int], seconds: float) -> None:
        """A step has asked for `depth` guesses, and the one before it for those that it checked. Of
        each sequence so many of these were right."""
        if seconds <= 0 or not accepted:
            return
        if depth == before:
            self._learn(depth, accepted, seconds)
        if not self._seconds[0].count:
            return
        if self.is_probing:
            self._num_probes -= 1
        elif depth or before:
            advance = 1 + sum(accepted) / len(accepted)
            self._debt = max(0.0, self._debt + self._relative(seconds) - advance)
        else:  # the window moves on
            self._debt = max(0.0, self._debt - MOST_DEBT / WINDOW)
        self._left -= 1
        self._decide(was_ahead=bool(self._ahead))

    def _decide(self, *, was_ahead: bool) -> None:
        if was_ahead:
            self._ahead.pop(0)
            self.depth = self._ahead[0] if self._ahead else self._best()
        if self.is_probing:
            return
        if self.depth and self._debt + 2 * self._risk(self.depth) > MOST_DEBT:
            # By bad luck, if guesses seem to pay all the same.
            pays = self._best() > 0
            self._left = WINDOW if pays else self._rest
            self._rest = REST if pays else min(2 * self._rest, LONGEST_REST)
            self.depth, self._ahead = 0, []
        elif self._left <= 0:
            self._look()

    def _relative(self, seconds: float) -> float:
        return seconds / self._seconds[0].value

    def _risk(self, depth: int) -> float:
        """The debt of an unlucky step; the one that checks the last guesses may be such, too."""
        mean = self._advance[depth].value
        deviation = math.sqrt(max(0.0, self._squares[depth].value - mean * mean))
        least = max(1.0, mean - SCATTER * deviation)
        return max(0.0, self._relative(self._seconds_at(depth)) - least)

    def _learn(self, depth: int, accepted: Sequence[int], seconds: float) -> None:
        self._seconds[depth].add(seconds)
        # The same guesses, cut shorter, would have brought these.
        for cut in range(depth + 1):
            right = sum(min(count, cut) for count in accepted)
            advance = 1 + right / len(accepted)
            self._advance[cut].add(advance)
            self._squares[cut].add(advance**2)

    def _look(self) -> None:
        """At guesses, if there are none now and it costs little; or at none."""
        if self.depth:
            self._left, self.depth = REST, 0
            self._ahead = [0] * LOOK
            return
        self._left = self._rest
        cost = self._relative(self._seconds_at(1)) - 1
        if self._debt + (LOOK + 1) * cost < MOST_DEBT:
            self.depth = 1
            self._ahead = [1] * LOOK

    def _best(self) -> int:
        off = 1 / self._seconds[0].value
        safe = [k for k in range(1, self.most + 1) if 2 * self._risk(k) <= MOST_DEBT]
        best = max(safe, key=self._rate, default=0)
        return best if best and self._rate(best) > LEAST_GAIN * off else 0

    def _rate(self, depth: int) -> float:
        """Tokens a second and sequence."""
        mean = self._advance[depth]
        return mean.value / self._seconds_at(depth) if mean.count else 0.0

    def _seconds_at(self, depth: int) -> float:
        """Measured, or between what was measured on both sides."""
        known = [k for k, mean in enumerate(self._seconds) if mean.count]
        low = max(k for k in known if k <= depth)
        high = min((k for k in known if k >= depth), default=low)
        a, b = self._seconds[low].value, self._seconds[high].value
        return a if high == low else a + (b - a) * (depth - low) / (high - low)
