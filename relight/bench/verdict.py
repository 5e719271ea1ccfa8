"""Whether B differs from A: paired log-ratios of blocks, and a verdict that may be `noise`. Knows
no run, only one value of a metric for each."""

import math
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from relight.bench import stats

Word = Literal["faster", "slower", "equivalent", "noise"]
MIN_BLOCKS = 4


class Verdict(msgspec.Struct, frozen=True):
    """`ratio` is B over A with its 95 % interval; `blocks_needed` is how many blocks in all would
    likely decide, told with `noise` only."""

    word: Word
    ratio: float
    low: float
    high: float
    p: float
    blocks: int
    blocks_needed: int | None
    noise_floor: float


def abba(blocks: int) -> list[tuple[str, str]]:
    """The order of arms: AB, BA, AB … so that a drift acts on both alike."""
    return [("A", "B") if index % 2 == 0 else ("B", "A") for index in range(blocks)]


def log_ratios(pairs: Sequence[tuple[float, float]]) -> list[float]:
    return [math.log(b / a) for a, b in pairs]


def noise_floor(pairs: Sequence[tuple[float, float]]) -> float:
    """From runs of A against A: the relative difference that this machine shows for nothing. The
    end of the interval that lies farther from 0."""
    ratios = log_ratios(pairs)
    return math.expm1(abs(statistics.fmean(ratios)) + stats.mean_halfwidth(ratios))


def decide(
    pairs: Sequence[tuple[float, float]],
    *,
    lower_is_better: bool,
    delta: float = 0.02,
    floor: float = 0.0,
) -> Verdict:
    """`pairs` are (A, B) of each block, two or more. Fewer than four blocks decide nothing, and no
    difference below the noise `floor` counts."""
    ratios = log_ratios(pairs)
    mean, half = statistics.fmean(ratios), stats.mean_halfwidth(ratios)
    word = _word(mean, half, len(pairs), delta, floor, lower_is_better)
    needed = None
    if word == "noise":
        spread = statistics.stdev(ratios)
        # Paired: the deviation of a log-ratio is that of a run times the root of 2.
        needed = max(MIN_BLOCKS, stats.blocks_needed(spread / math.sqrt(2), delta))
    return Verdict(
        word,
        math.exp(mean),
        math.exp(mean - half),
        math.exp(mean + half),
        stats.sign_flip(ratios),
        len(pairs),
        needed,
        floor,
    )


def _word(
    mean: float, half: float, blocks: int, delta: float, floor: float, lower_is_better: bool
) -> Word:
    if blocks < MIN_BLOCKS:
        return "noise"
    if mean - half > math.log1p(-delta) and mean + half < math.log1p(delta):
        return "equivalent"
    if abs(mean) <= half or math.expm1(abs(mean)) <= floor:
        return "noise"
    return "faster" if (mean < 0) == lower_is_better else "slower"
