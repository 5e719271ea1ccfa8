"""Means, intervals and percentiles, told only where the samples carry them. Knows no latency."""

import math
import random
import statistics
from collections.abc import Sequence

import msgspec

CONFIDENCE = 0.95
Z_SUM = 1.96 + 0.84
"""Two-sided 95 % confidence and 80 % power."""


class Summary(msgspec.Struct, frozen=True):
    """A percentile is None below the samples that it needs."""

    n: int
    mean: float
    sd: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float


def samples_needed(quantile: float) -> int:
    """Samples that hold, with 95 % probability, one value above the quantile: 5 for p50, 299 for
    p99. With fewer the percentile is only another name for the largest value."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(quantile))


def percentile(ordered: Sequence[float], quantile: float) -> float | None:
    """Linear between the neighbours in `ordered`; None below the samples needed."""
    if len(ordered) < samples_needed(quantile):
        return None
    place = quantile * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(values: Sequence[float]) -> Summary | None:
    """None of no values: an empty figure is not 0."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p90, p95, p99 = (percentile(ordered, q) for q in (0.5, 0.9, 0.95, 0.99))
    sd = statistics.stdev(values) if len(values) > 1 else None
    return Summary(len(values), statistics.fmean(values), sd, p50, p90, p95, p99, ordered[-1])


def geomean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def t_quantile(df: int, confidence: float = CONFIDENCE) -> float:
    """The two-sided quantile of Student's t, by halving on its distribution function."""
    low, high = 0.0, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        if _within(middle, df) < confidence:
            low = middle
        else:
            high = middle
    return high


def _within(t: float, df: int) -> float:
    """P(|T| < t): the finite sums for whole df (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(df))
    cos2 = math.cos(angle) ** 2
    term, total = (math.cos(angle), 0.0) if df % 2 else (1.0, 0.0)
    for k in range(3 if df % 2 else 2, df + 1, 2):
        total += term
        term *= cos2 * (k - 1) / k
    if df % 2:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


def mean_halfwidth(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of two or more values."""
    return t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def prediction_halfwidth(values: Sequence[float]) -> float:
    """Half of the 95 % interval that one more run falls in."""
    return t_quantile(len(values) - 1) * statistics.stdev(values) * math.sqrt(1 + 1 / len(values))


def smallest_visible(cv: float, runs: int, df: int | None = None) -> float:
    """The smallest relative difference that two arms of `runs` runs each can show, for a
    coefficient of variation known with `df` degrees of freedom (default: from these runs)."""
    return t_quantile(df or 2 * runs - 2) * math.sqrt(2 / runs) * cv


def blocks_needed(cv: float, delta: float) -> int:
    """Runs of each arm that show a relative difference `delta` in four cases of five."""
    return math.ceil(2 * (Z_SUM * cv / delta) ** 2)


def sign_flip(differences: Sequence[float]) -> float:
    """Share of all sign patterns whose sum is at least as far from 0: the exact p of a paired
    permutation test. At most 2^16 patterns: the first 16 differences."""
    sums = [0.0]
    for difference in differences[:16]:
        sums = [value + signed for value in sums for signed in (difference, -difference)]
    seen = abs(sums[0]) * (1 - 1e-12)
    return sum(abs(value) >= seen for value in sums) / len(sums)


def bootstrap(pairs: Sequence[tuple[float, float]], draws: int = 2000) -> tuple[float, float]:
    """The 95 % interval of mean(b) / mean(a) by drawing whole pairs again, of one fixed seed: for
    figures such as p95, whose own distribution is nobody's guess."""
    draw = random.Random(1)
    ratios = sorted(
        sum(b for _, b in chosen) / sum(a for a, _ in chosen)
        for chosen in (draw.choices(pairs, k=len(pairs)) for _ in range(draws))
    )
    tail = round(draws * (1 - CONFIDENCE) / 2)
    return ratios[tail], ratios[-tail - 1]


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p values for several questions asked of one experiment."""
    order = sorted(range(len(ps)), key=ps.__getitem__)
    adjusted, largest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, ps[index] * (len(ps) - rank)))
        adjusted[index] = largest
    return adjusted
