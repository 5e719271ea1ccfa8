"""What a step costs in time: as the scheduler uses it, and as it is learnt. Knows no clock.

    seconds = step_s + made_s · made rows + given_s · given rows + pair_s · pairs

where the pairs of a given row are its position: the rows before it that it attends to. Attention of
made rows is part of `made_s`, since a step has few of them.
"""

import math
from typing import NamedTuple

from relight.engine.plan import StepPlan


class StepCost(NamedTuple):
    """Seconds for each step, made row, given row, and pair of a given row and one before it."""

    step_s: float
    made_s: float
    given_s: float
    pair_s: float

    def seconds(self, load: "Load") -> float:
        return sum(cost * count for cost, count in zip(self, load, strict=True))

    def rows_seconds(self, start: int, count: int) -> float:
        """What given rows at positions `start`, `start` + 1, … add to a step."""
        return count * (self.given_s + self.pair_s * (start + count / 2))

    def rows_within(self, seconds: float, start: int) -> int:
        """The most given rows from position `start` on that add no more than that."""
        if seconds <= 0:
            return 0
        # The positive root of pair_s / 2 · n² + each · n = seconds, in the form that does not
        # subtract nearly equal numbers.
        each = self.given_s + self.pair_s * start
        return int(2 * seconds / (each + math.sqrt(each * each + 2 * self.pair_s * seconds)))


class Load(NamedTuple):
    """How much of everything that costs time a step has. The fields are those of `StepCost`."""

    steps: int
    made: int
    given: int
    pairs: int

    @classmethod
    def of(cls, plan: StepPlan) -> "Load":
        made = given = pairs = 0
        for rows in plan.made:
            made += len(rows.tokens)
        for rows in plan.given:
            count = len(rows.tokens)
            given += count
            pairs += count * rows.start + count * count // 2
        return cls(1, made, given, pairs)


FIRST_GUESS = StepCost(0.02, 1.35e-4, 1.35e-4, 5.7e-10)
"""Measured for the full model on eight accelerators; only its proportions matter for long."""

VARIANCE = 0.25
"""Of the first guess: one cost may well be twice what its proportion to the others says."""
NOISE = 0.01
"""Variance of a measured time, relative to it: 10 %."""
DRIFT = 1e-4
"""What costs change from step to step, as a relative variance: they follow the load in about 100
steps."""
LARGEST_JUMP = 4.0
"""A time that is more than so many times what was expected counts as that: a step that was held up
once (a compiler, another process) must not count for many."""
LEAST = 1e-4
"""No cost falls below this share of the first guess."""


class CostMeter:
    """Learns a `StepCost` from measured steps: a Kalman filter over the four costs.

    Times are taken relative to what was measured, costs relative to the first guess, so that steps
    of a millisecond and of ten seconds count alike and all numbers are near 1.
    """

    def __init__(self, guess: StepCost = FIRST_GUESS) -> None:
        self._guess = guess
        self._scale = [1.0] * 4
        self._covariance = [[VARIANCE * (i == j) for j in range(4)] for i in range(4)]
        self._is_new = True
        self.cost = guess

    def observe(self, load: Load, seconds: float) -> None:
        """A step of that load has taken so long. Without a measurable time nothing is learnt."""
        if seconds <= 0:
            return
        scale, covariance = self._scale, self._covariance
        g0, g1, g2, g3 = self._guess
        steps, made, given, pairs = load
        p0, p1, p2, p3 = g0 * steps, g1 * made, g2 * given, g3 * pairs
        expected = scale[0] * p0 + scale[1] * p1 + scale[2] * p2 + scale[3] * p3
        if self._is_new:
            self._is_new = False
            scale[:] = [s * seconds / expected for s in scale]
            expected = seconds
        seconds = min(max(seconds, expected / LARGEST_JUMP), expected * LARGEST_JUMP)
        z0, z1, z2, z3 = p0 / seconds, p1 / seconds, p2 / seconds, p3 / seconds
        gain = [a * z0 + b * z1 + c * z2 + d * z3 for a, b, c, d in covariance]
        k0, k1, k2, k3 = gain
        total = NOISE + k0 * z0 + k1 * z1 + k2 * z2 + k3 * z3
        error = (1 - expected / seconds) / total
        for i, k in enumerate(gain):
            a, b, c, d = covariance[i]
            share = k / total
            row = covariance[i] = [a - share * k0, b - share * k1, c - share * k2, d - share * k3]
            s = scale[i] = max(scale[i] + k * error, LEAST)
            if row[i] < VARIANCE * s * s:
                row[i] += DRIFT * s * s
        s0, s1, s2, s3 = scale
        self.cost = StepCost(g0 * s0, g1 * s1, g2 * s2, g3 * s3)


MEMORY_S = 30.0
"""How long ago a step was that counts little for the pace."""


class Pace:
    """Tokens read and made in a second of steps, of late."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self._tokens / self._seconds if self._seconds else 0.0

    def observe(self, read: int, made: int, seconds: float) -> None:
        """Made tokens are those that count, not the rows: guesses may have been wrong."""
        keep = max(0.0, 1 - seconds / MEMORY_S)
        self._tokens = keep * self._tokens + read + made
        self._seconds = keep * self._seconds + seconds
