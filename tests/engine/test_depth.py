"""The number of guesses against models of known costs and acceptance: it never loses for long, and
finds what pays."""

import random
from collections.abc import Callable
from itertools import accumulate

import pytest

from relight.engine.depth import PROBES, DepthChoice

MOST = 5
NUM_PROBES = sum(PROBES)


class Simulated:
    """A step takes 1 second, `row` more for each place that is guessed, and `draft` more to ask for
    guesses, which are right with `chance`, each if those before it are."""

    def __init__(
        self, row: float, draft: float, chance: Callable[[int], float], width: int, seed: int
    ) -> None:
        self.row, self.draft, self.chance, self.width = row, draft, chance, width
        self.rng = random.Random(f"{row} {draft} {width} {seed}")
        self.choice = DepthChoice(MOST)
        self.steps: list[tuple[float, float]] = []  # advance, seconds
        self.depths: list[int] = []
        self._guesses = 0

    def run(self, count: int) -> None:
        for step in range(count):
            depth, chance = self.choice.depth, self.chance(step)
            accepted = [self._right(chance) for _ in range(self.width)]
            seconds = 1 + self.row * self._guesses + self.draft * (depth > 0)
            seconds *= self.rng.uniform(0.98, 1.02)
            self.steps.append((1 + sum(accepted) / self.width, seconds))
            self.depths.append(depth)
            self.choice.observe(depth, self._guesses, accepted, seconds)
            self._guesses = depth

    def _right(self, chance: float) -> int:
        right = 0
        while right < self._guesses and self.rng.random() < chance:
            right += 1
        return right

    def worst(self, window: int = 64) -> float:
        """Tokens a second in the worst window behind the probing; without guesses it is 1."""
        late = self.steps[NUM_PROBES:]
        advance = [0.0, *accumulate(a for a, _ in late)]
        seconds = [0.0, *accumulate(s for _, s in late)]
        return min(
            (advance[i + window] - advance[i]) / (seconds[i + window] - seconds[i])
            for i in range(len(late) - window)
        )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("width", [1, 4, 16, 32])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.3, 0.6, 0.9])
@pytest.mark.parametrize(("row", "draft"), [(0.0, 0.05), (0.02, 0.1), (0.3, 0.1), (1.0, 0.3)])
def test_any_64_steps_are_hardly_worse_than_without(
    row: float, draft: float, chance: float, width: int, seed: int
) -> None:
    simulated = Simulated(row, draft, lambda step: chance, width, seed)
    simulated.run(1500)
    assert simulated.worst() >= 0.97


@pytest.mark.parametrize("width", [1, 8])
def test_guesses_that_stop_being_right_are_given_up(width: int) -> None:
    simulated = Simulated(0.05, 0.1, lambda step: 0.9 * (step < 500), width, 1)
    simulated.run(1500)
    assert simulated.depths[499] > 0
    assert simulated.depths[540] == 0
    assert simulated.worst() >= 0.97


@pytest.mark.parametrize(("chance", "row"), [(0.9, 0.02), (0.7, 0.1), (0.5, 0.2), (0.3, 0.1)])
def test_the_number_that_pays_most_is_found(chance: float, row: float) -> None:
    simulated = Simulated(row, 0.05, lambda step: chance, 16, 1)
    simulated.run(1000)
    rates = [
        sum(chance**place for place in range(k + 1)) / (1 + row * k + 0.05 * (k > 0))
        for k in range(MOST + 1)
    ]
    advance, seconds = (sum(column) for column in zip(*simulated.steps[NUM_PROBES:], strict=True))
    assert advance / seconds >= 0.93 * max(rates)


def test_probing_takes_32_steps() -> None:
    simulated = Simulated(0.1, 0.1, lambda step: 0.0, 4, 1)
    simulated.run(NUM_PROBES)
    assert NUM_PROBES == 32
    assert not simulated.choice.is_probing
    assert simulated.choice.depth == 0
