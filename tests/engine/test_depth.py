"""The number of guesses against models of known costs and acceptance: it never loses for long, and
finds what pays, for each kind of sequence."""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import accumulate

import pytest

from relight.engine.acceptance import Kind, Trial
from relight.engine.depth import PROBES, Depths, Step
from relight.engine.steptimes import group_of

MOST = 5
NUM_PROBES = sum(PROBES)
TALK: Kind = ("sampled", "content")
CALL: Kind = ("sampled", "tool")
THRESHOLDS = (0.0, 0.2, 0.4, 0.6, 0.8)

Chance = Callable[[Kind, int, random.Random], float]
"""Of a guess of a kind in a step; the draft knows it."""


class Simulated:
    """A step takes 1 second, `draft` more to ask for guesses, and `cost` of those it checks, on
    average over its sequences."""

    def __init__(
        self,
        kinds: Mapping[Kind, int],
        chance: Chance,
        cost: Callable[[float], float],
        draft: float = 0.1,
        *,
        noise: Callable[[random.Random], float] = lambda rng: rng.uniform(0.98, 1.02),
        thresholds: tuple[float, ...] = (0.0,),
        seed: int = 0,
    ) -> None:
        self.depths = Depths(MOST, thresholds)
        self.kinds = [kind for kind, count in kinds.items() for _ in range(count)]
        self.chance, self.cost, self.draft, self.noise = chance, cost, draft, noise
        self.rng = random.Random(seed)
        self.steps: list[tuple[float, float]] = []  # advance, and seconds without noise
        self.asked: list[dict[Kind, int]] = []
        self._pending: list[Trial | None] = [None] * len(self.kinds)

    def run(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        rows, checked, right = len(self.kinds), 0, 0
        policy = self.depths.choose(Counter(self.kinds), rows)
        for place, kind in enumerate(self.kinds):
            choice, trial = policy.choices[kind], self._pending[place]
            self._pending[place] = None
            if not choice.depth:
                continue
            if trial is not None:
                trial = trial.cut(choice.depth)
                guesses = trial.confidence[: choice.depth]
                good = next(
                    (i for i, p in enumerate(guesses) if self.rng.random() >= p), len(guesses)
                )
                self.depths.learn(trial, len(guesses), good)
                checked, right = checked + len(guesses), right + good
            number = len(self.steps)
            sure = [self.chance(kind, number, self.rng) for _ in range(choice.depth)]
            likely = next((i for i, p in enumerate(sure) if p < choice.threshold), len(sure))
            made = Trial(kind, choice, tuple(sure[:likely]))
            if likely:
                self._pending[place] = made
            else:
                self.depths.learn(made, 0, 0)
        asks = any(choice.depth for choice in policy.choices.values())
        seconds = 1 + self.cost(checked / rows) + self.draft * asks
        self.steps.append((1 + right / rows, seconds))
        self.asked.append({kind: choice.depth for kind, choice in policy.choices.items()})
        noisy = seconds * self.noise(self.rng)
        self.depths.observe(Step(rows, checked, asks, policy.script), right, noisy)

    def worst(self, window: int = 64) -> float:
        """Tokens a second in the worst window behind the probing; without guesses it is 1."""
        late = self.steps[NUM_PROBES:]
        advance = [0.0, *accumulate(a for a, _ in late)]
        seconds = [0.0, *accumulate(s for _, s in late)]
        return min(
            (advance[i + window] - advance[i]) / (seconds[i + window] - seconds[i])
            for i in range(len(late) - window)
        )

    def rate(self, since: int = NUM_PROBES) -> float:
        advance, seconds = (sum(column) for column in zip(*self.steps[since:], strict=True))
        return advance / seconds


def talk(
    width: int, chance: Callable[[int], float], row: float, draft: float, **more: object
) -> Simulated:
    """Sequences of one kind; each guess that is checked costs the same."""
    return Simulated(
        {TALK: width},
        lambda kind, step, rng: chance(step),
        lambda guesses: row * guesses,
        draft,
        **more,  # type: ignore[arg-type]
    )


def best_rate(chance: float, row: float, draft: float) -> float:
    return max(
        sum(chance**place for place in range(k + 1)) / (1 + row * k + draft * (k > 0))
        for k in range(MOST + 1)
    )


@pytest.mark.parametrize("width", [1, 4, 16, 32])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.3, 0.6, 0.9])
@pytest.mark.parametrize(("row", "draft"), [(0.0, 0.05), (0.02, 0.1), (0.3, 0.1), (1.0, 0.3)])
def test_any_64_steps_are_hardly_worse_than_without(
    row: float, draft: float, chance: float, width: int
) -> None:
    for seed in range(2):
        simulated = talk(width, lambda step: chance, row, draft, seed=seed)
        simulated.run(1200)
        assert simulated.worst() >= 0.97


@pytest.mark.parametrize("width", [1, 8, 32])
def test_guesses_that_stop_being_right_are_given_up(width: int) -> None:
    for row in (0.02, 0.05, 0.1, 0.2):
        simulated = talk(width, lambda step: 0.9 * (step < 500), row, 0.1)
        simulated.run(1500)
        assert simulated.asked[200:500].count({TALK: 0}) < 200
        assert simulated.asked[560:1500].count({TALK: 0}) > 850
        assert simulated.worst() >= 0.97


@pytest.mark.parametrize("width", [1, 8, 32])
def test_guesses_that_begin_to_be_right_are_taken_up(width: int) -> None:
    simulated = talk(width, lambda step: 0.9 * (step >= 300), 0.05, 0.1)
    simulated.run(2500)
    assert simulated.worst() >= 0.97
    assert simulated.rate(since=1500) > 0.8 * best_rate(0.9, 0.05, 0.1)


@pytest.mark.parametrize(("width", "share"), [(1, 0.85), (4, 0.9), (16, 0.93), (32, 0.93)])
@pytest.mark.parametrize(("chance", "row"), [(0.9, 0.02), (0.7, 0.1), (0.5, 0.2), (0.3, 0.1)])
def test_the_number_that_pays_most_is_found(
    chance: float, row: float, width: int, share: float
) -> None:
    simulated = talk(width, lambda step: chance, row, 0.05)
    simulated.run(1500)
    assert simulated.rate() >= share * best_rate(chance, row, 0.05)


def test_a_cost_that_jumps_is_seen() -> None:
    """As where a kernel's tile is full: three guesses cost ten times what two do."""
    simulated = Simulated(
        {TALK: 8}, lambda *_: 0.8, lambda guesses: 0.03 * guesses if guesses <= 2 else 0.9
    )
    simulated.run(1000)
    assert Counter(asked[TALK] for asked in simulated.asked[400:]).most_common(1)[0][0] == 2
    assert simulated.worst() >= 0.97


def test_one_kind_wins_while_another_loses_in_the_same_batch() -> None:
    simulated = Simulated(
        {TALK: 8, CALL: 8},
        lambda kind, step, rng: 0.9 if kind == CALL else 0.05,
        lambda guesses: 0.2 * guesses,
    )
    simulated.run(1500)
    late = simulated.asked[200:]
    assert sum(asked[CALL] >= 3 for asked in late) > 0.9 * len(late)
    assert sum(asked[TALK] == 0 for asked in late) > 0.9 * len(late)
    group = group_of(16)
    assert simulated.depths.chosen[CALL, group].depth >= 3
    assert simulated.depths.chosen[TALK, group].depth == 0
    together = max(
        (1 + sum(0.9**place for place in range(1, k + 1)) / 2) / (1.1 + 0.1 * k)
        for k in range(1, MOST + 1)
    )
    assert simulated.rate() >= 0.93 * together
    assert simulated.worst() >= 0.97


def test_kinds_that_change_places_are_told_apart() -> None:
    simulated = Simulated(
        {TALK: 8, CALL: 8},
        lambda kind, step, rng: 0.9 if (kind == CALL) == (step < 800) else 0.0,
        lambda guesses: 0.1 * guesses,
    )
    simulated.run(3000)
    assert simulated.worst() >= 0.97
    late = simulated.asked[2000:]
    assert sum(asked[TALK] >= 3 > asked[CALL] for asked in late) > 0.8 * len(late)


def test_a_kind_that_comes_later_needs_no_probing() -> None:
    """It is thought to be as the others are, until it is known."""
    simulated = Simulated({TALK: 8}, lambda *_: 0.9, lambda guesses: 0.05 * guesses)
    simulated.run(100)
    simulated.kinds[4:] = [CALL] * 4
    simulated.run(200)
    assert all(asked[CALL] >= 3 for asked in simulated.asked[110:140])
    assert simulated.worst() >= 0.97


@pytest.mark.parametrize("width", [1, 8])
def test_the_threshold_that_pays_is_found(width: int) -> None:
    """Half of the guesses are nearly sure, half nearly hopeless, and the draft knows which."""

    def run(thresholds: tuple[float, ...]) -> Simulated:
        simulated = Simulated(
            {TALK: width},
            lambda kind, step, rng: rng.choice([0.97, 0.05]),
            lambda guesses: 0.15 * guesses,
            0.02,
            thresholds=thresholds,
        )
        simulated.run(2000)
        assert simulated.worst() >= 0.97
        return simulated

    free, fixed = run(THRESHOLDS), run((0.0,))
    choice = free.depths.chosen[TALK, group_of(width)]
    assert 0.05 < choice.threshold <= 0.97
    assert free.rate() > 1.1 * fixed.rate()


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("width", [1, 16])
def test_noise_in_step_times_breaks_no_promise(width: int, chance: float) -> None:
    """10 % each way, and one step in a hundred that is held up for twenty."""

    def noise(rng: random.Random) -> float:
        return 20.0 if rng.random() < 0.01 else rng.uniform(0.9, 1.1)

    for seed in range(3):
        simulated = talk(width, lambda step: chance, 0.05, 0.1, noise=noise, seed=seed)
        simulated.run(1500)
        assert simulated.worst() >= 0.97
        if chance == 0.9:
            assert simulated.rate() > 0.75 * best_rate(chance, 0.05, 0.1)


def test_probing_takes_32_steps() -> None:
    simulated = talk(4, lambda step: 0.0, 0.1, 0.1)
    simulated.run(200)
    assert NUM_PROBES == 32
    assert any(asked[TALK] for asked in simulated.asked[:NUM_PROBES])
    assert not any(asked[TALK] for asked in simulated.asked[NUM_PROBES:])
    assert simulated.depths.chosen[TALK, group_of(4)].depth == 0


def test_each_group_of_steps_is_probed_once() -> None:
    """More sequences share a step than before: what was learnt of guesses holds on."""
    simulated = talk(3, lambda step: 0.9, 0.05, 0.1)
    asked = 0
    for width in (3, 8, 20, 3, 8, 20):
        simulated.kinds = [TALK] * width
        simulated._pending = [None] * width
        before = len(simulated.asked)
        simulated.run(300)
        half = [depths[TALK] for depths in simulated.asked[before + 50 :]]
        assert sum(depth >= 4 for depth in half) > 0.9 * len(half)
        asked += any(depths[TALK] == 2 for depths in simulated.asked[before : before + 32])
    assert asked == 3


def test_steps_that_read_prompts_teach_no_time_and_end_no_probing() -> None:
    depths = Depths(MOST, (0.0,))
    for _ in range(100):
        policy = depths.choose({TALK: 2}, 2, reading=True)
        assert policy.choices[TALK].depth == 0
        depths.observe(Step(2, 0, False, policy.script), 0, 0.0)
    assert depths.choose({TALK: 2}, 2).script is not None


def test_steps_in_which_nobody_asks_for_guesses_end_no_probing() -> None:
    """As those of a grammar, of penalties, or of the last token."""
    simulated = talk(1, lambda step: 0.9, 0.05, 0.1)
    for _ in range(2 * NUM_PROBES):
        policy = simulated.depths.choose({}, 1)
        simulated.depths.observe(Step(1, 0, False, policy.script), 0, 1.0)
    simulated.run(1000)
    assert simulated.rate() > 0.8 * best_rate(0.9, 0.05, 0.1)


def test_without_sequences_that_may_have_guesses_nothing_is_chosen() -> None:
    depths = Depths(MOST, (0.0,))
    for _ in range(400):
        policy = depths.choose({}, 3)
        assert policy.choices == {}
        depths.observe(Step(3, 0, False, policy.script), 0, 1.0)
    assert depths.choose({}, 0).choices == {}
