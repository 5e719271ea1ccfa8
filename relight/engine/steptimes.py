"""How long steps take: without guesses, and how much more with so many. Knows no sequence, no plan
and no clock.

Means without what lies far off: a step that was held up (a compiler, another process) must not
count for many.
"""

import math
from collections import deque
from statistics import fmean

MEMORY = 16
"""Steps that a mean is of."""
KEPT = 6
"""Of those, how many count beside new ones."""
LEAST_TO_CUT = 3
LEAST = 2
"""Steps that a time needs before anything is decided by it."""
BINS = 4
"""Counts of guesses that are nearer than a 2 to the power of 1 / 4 are taken together."""

GROUPS = (1, 4, 16)
"""Sequences of a step up to which it belongs to a group, and above the last."""
GROUP_NAMES = ("1", "2-4", "5-16", "17+")


def group_of(rows: int) -> int:
    return sum(rows > most for most in GROUPS)


class Recent:
    """The mean of the last values but for a quarter at each end."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=MEMORY)
        self.value = 0.0

    @property
    def count(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        self._values.append(value)
        self.value = self._middle()

    def _middle(self) -> float:
        values = sorted(self._values)
        cut = max(len(values) // 4, int(len(values) >= LEAST_TO_CUT))
        return fmean(values[cut : len(values) - cut])

    def forget(self) -> None:
        while len(self._values) > KEPT:
            self._values.popleft()


Points = list[tuple[float, float]]
"""Of a curve, by their first number."""


def between(points: Points, x: float) -> float:
    """The height at `x` of the lines through points; the first and the last go on."""
    if len(points) == 1:
        return points[0][1]
    last = len(points) - 2
    at = next((i for i in range(last) if x <= points[i + 1][0]), last)
    (x0, y0), (x1, y1) = points[at], points[at + 1]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


class Curve:
    """Seconds that guesses add to a step, by how many it checks."""

    def __init__(self) -> None:
        self._bins: dict[int, tuple[Recent, Recent]] = {}
        self._points: Points = []

    def add(self, guesses: int, seconds: float) -> None:
        number = round(BINS * math.log2(1 + guesses))
        counts, times = self._bins.setdefault(number, (Recent(), Recent()))
        counts.add(guesses)
        times.add(seconds)
        known = [(c.value, t.value) for c, t in self._bins.values() if t.count >= LEAST]
        self._points = sorted(known)

    def at(self, guesses: float) -> float:
        """Endless if nothing is known."""
        return max(0.0, between(self._points, guesses)) if self._points else math.inf


class StepTimes:
    """Of steps with made rows only."""

    def __init__(self) -> None:
        self._plain: dict[int, Recent] = {}
        self._extra: dict[int, Curve] = {}

    def add_plain(self, rows: int, seconds: float) -> None:
        """A step of so many sequences had no guesses, and asked for none."""
        self._plain.setdefault(rows, Recent()).add(seconds)

    def add_extra(self, rows: int, guesses: int, seconds: float) -> None:
        """One that asked for guesses, and checked so many, took so much longer."""
        self._extra.setdefault(group_of(rows), Curve()).add(guesses, seconds)

    def knows(self, rows: int) -> bool:
        """Whether steps without guesses of just so many sequences were measured."""
        return rows in self._plain and self._plain[rows].count >= LEAST

    def forget(self, rows: int) -> None:
        """What comes from now on counts for more."""
        if rows in self._plain:
            self._plain[rows].forget()

    def plain(self, rows: int) -> float:
        """Seconds without guesses; 0 if nothing is known."""
        if rows in self._plain:
            return self._plain[rows].value
        points = sorted((float(count), recent.value) for count, recent in self._plain.items())
        if not points:
            return 0.0
        return between(points, min(max(rows, points[0][0]), points[-1][0]))

    def extra(self, rows: int, guesses: float) -> float:
        """Seconds more where guesses are asked for and so many are checked."""
        curve = self._extra.get(group_of(rows))
        return math.inf if curve is None else curve.at(guesses)
