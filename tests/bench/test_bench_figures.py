"""Definitions and statistics give the figures that published tables imply."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.bench import definitions as d
from relight.bench import stats
from relight.bench.verdict import abba, decide, noise_floor

RUNS = [820.25, 811.97, 827.90]
REAL = [0.532, 0.291, 0.164, 0.098, 0.063, 0.041, 0.024]


@pytest.mark.parametrize(
    ("row", "in_system", "decoding"),
    [
        ((689.75, 2.12, 0.0867, 512), 62.5, 59.7),
        ((563.8, 28.56, 0.0540, 512), 61.8, 30.4),
        ((583.5, 1.45, 0.0505, 512), 31.1, 29.4),
    ],
)
def test_littles_law_tells_the_slots_that_a_row_needs(
    row: tuple[float, float, float, int], in_system: float, decoding: float
) -> None:
    rate, ttft, tpot, tokens = row
    assert d.in_system(rate, ttft, tpot, tokens) == pytest.approx(in_system, abs=0.06)
    assert d.implied_running(rate, tpot * (tokens - 1), tokens) == pytest.approx(decoding, abs=0.06)


def test_a_row_above_its_slot_ceiling_is_inconsistent() -> None:
    assert d.slot_ceiling(32, 0.0867) == pytest.approx(369.1, abs=0.05)
    assert d.slot_ceiling(32, 0.0867) < 689.75
    assert d.slot_ceiling(32, 0.0540) == pytest.approx(592.6, abs=0.05)
    assert d.slot_ceiling(32, 0.0540) > 563.8


def test_acceptance_figures_of_published_depths() -> None:
    assert d.acceptance_length(7, 0.4511) == pytest.approx(4.1577)
    assert d.acceptance_length(6, 0.52) == pytest.approx(4.12)
    assert d.acceptance_length(5, 0.5611) == pytest.approx(3.8055)
    wanted = [1.532, 1.823, 1.987, 2.085, 2.148, 2.189, 2.213]
    assert [d.advance(REAL[:k]) for k in range(1, 8)] == pytest.approx(wanted)
    steps = {7: 0.3605, 6: 0.3564, 5: 0.3310}
    assert d.best_depth(REAL, steps) == 5
    rates = [d.advance(REAL[:k]) / steps[k] for k in (5, 6, 7)]
    assert rates == pytest.approx([6.489, 6.142, 6.139], abs=0.003)


def test_two_weightings_of_acceptance_are_two_figures() -> None:
    """16.62 % of drafts is 2.163 tokens; the sum over positions is 2.213."""
    pooled, by_position = d.acceptance_length(7, 0.1662), d.advance(REAL)
    assert (pooled, by_position) == (pytest.approx(2.163, abs=1e-3), pytest.approx(2.213))
    assert d.conditional([0.5, 0.25, 0.0]) == [0.5, 0.5, 0.0]


def test_a_point_with_a_fixed_cost_is_implausible() -> None:
    assert d.implausible([(65536, 7.35), (131072, 9.47)]) == [65536]
    assert d.implausible([(65536, 10.17), (131072, 22.40)]) == []


def test_time_per_token_counts_tokens_and_not_chunks() -> None:
    chunks = [(1.0, 4), (1.4, 4), (1.8, 4)]
    assert d.tpot(chunks, 12) == pytest.approx(0.1)
    assert d.icl(chunks) == pytest.approx([0.4, 0.4])
    assert d.itl(chunks) == pytest.approx([0.1] * 8)
    assert d.itl([(1.0, 0), (1.4, 0)]) is None
    assert d.tpot([(1.0, 0)], 1) is None
    assert d.stalls([0.1, 0.1, 0.1, 2.0]) == 1


def test_repeated_runs_give_the_published_intervals() -> None:
    assert statistics.fmean(RUNS) == pytest.approx(820.04, abs=0.005)
    assert statistics.stdev(RUNS) == pytest.approx(7.967, abs=0.001)
    assert stats.mean_halfwidth(RUNS) == pytest.approx(19.79, abs=0.01)
    half = stats.prediction_halfwidth(RUNS)
    assert half == pytest.approx(39.58, abs=0.01)
    inside = [abs(value - statistics.fmean(RUNS)) < half for value in (806, 718, 695)]
    assert inside == [True, False, False]


def test_geometric_mean_of_the_published_ratios() -> None:
    ratios = [13.799 / 13.178, 14.822 / 14.213, 18.821 / 17.797]
    assert stats.geomean(ratios) == pytest.approx(1.04915, abs=5e-6)


@pytest.mark.parametrize(
    ("df", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (8, 2.3060), (30, 2.0423)]
)
def test_student_quantiles(df: int, quantile: float) -> None:
    assert stats.t_quantile(df) == pytest.approx(quantile, abs=1e-4)


def test_blocks_and_differences_that_a_spread_allows() -> None:
    needed = [stats.blocks_needed(*x) for x in ((0.025, 0.03), (0.025, 0.02), (0.1, 0.03))]
    assert needed == [11, 25, 175]
    assert stats.smallest_visible(1.0, 3) == pytest.approx(2.27, abs=0.005)
    assert stats.smallest_visible(1.0, 5) == pytest.approx(1.46, abs=0.005)
    assert stats.smallest_visible(0.00972, 1, df=2) == pytest.approx(0.0591, abs=1e-4)


def test_a_percentile_is_told_only_where_the_samples_carry_it() -> None:
    assert [stats.samples_needed(q) for q in (0.5, 0.9, 0.95, 0.99)] == [5, 29, 59, 299]
    short = stats.summary(range(58))
    assert short is not None
    assert (short.p95, short.p99) == (None, None)
    assert short.p90 == pytest.approx(51.3)
    full = stats.summary(range(299))
    assert full is not None
    assert full.p99 == pytest.approx(295.02)
    assert stats.summary([]) is None


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=400))
def test_percentiles_lie_in_order_between_the_ends(values: list[float]) -> None:
    told = stats.summary(values)
    assert told is not None
    known = [p for p in (told.p50, told.p90, told.p95, told.p99) if p is not None]
    assert [*known, told.max] == sorted([*known, told.max])
    assert told.max == max(values)


def test_arms_alternate_and_a_drift_acts_on_both() -> None:
    order = abba(4)
    assert order == [("A", "B"), ("B", "A"), ("A", "B"), ("B", "A")]
    drift, pairs = iter(range(100, 108)), []
    for block in order:
        value = {arm: next(drift) for arm in block}
        pairs.append((value["A"], value["B"]))
    assert decide(pairs, lower_is_better=True).word == "equivalent"


@pytest.mark.parametrize(
    ("ratios", "floor", "word"),
    [
        ([0.90, 0.91, 0.89, 0.90], 0.0, "faster"),
        ([1.10, 1.11, 1.09, 1.10], 0.0, "slower"),
        ([1.00, 1.01, 0.99, 1.00], 0.0, "equivalent"),
        ([0.80, 1.20, 0.90, 1.10], 0.0, "noise"),
        ([0.90, 0.91, 0.89, 0.90], 0.15, "noise"),
        ([0.90, 0.91, 0.89], 0.0, "noise"),
    ],
)
def test_verdicts(ratios: list[float], floor: float, word: str) -> None:
    told = decide([(10.0, 10.0 * r) for r in ratios], lower_is_better=True, floor=floor)
    assert told.word == word
    assert (told.blocks_needed is not None) == (word == "noise")


@given(st.lists(st.floats(0.5, 2), min_size=4, max_size=8), st.booleans())
def test_swapping_the_arms_mirrors_the_verdict(ratios: list[float], lower: bool) -> None:
    mirrored = {"faster": "slower", "slower": "faster"}
    forth = decide([(1.0, r) for r in ratios], lower_is_better=lower, delta=1e-9)
    back = decide([(r, 1.0) for r in ratios], lower_is_better=lower, delta=1e-9)
    assert back.word == mirrored.get(forth.word, forth.word)
    assert back.ratio == pytest.approx(1 / forth.ratio)


def test_permutations_and_several_questions() -> None:
    assert stats.sign_flip([1.0, 1.0, 1.0, 1.0]) == pytest.approx(2 / 16)
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_the_noise_floor_holds_what_equal_arms_showed() -> None:
    floor = noise_floor([(1.0, 1.02), (1.0, 0.98), (1.0, 1.01), (1.0, 0.99)])
    assert math.isclose(floor, 0.029, abs_tol=0.003)
