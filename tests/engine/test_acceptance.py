"""What is learnt of guesses: by position, given drafted and unconditional, and for other choices
than those that were made."""

import random

import pytest

from relight.engine.acceptance import LEAST, MEMORY, Acceptance, Choice, Shares, Trial
from relight.engine.steptimes import GROUP_NAMES, Curve, Recent, StepTimes, group_of


def test_a_check_tells_of_shorter_choices_and_higher_thresholds_only() -> None:
    acceptance = Acceptance(5, (0.0, 0.5, 0.9))
    for _ in range(LEAST):
        acceptance.add(Choice(3, 0.5), (0.95, 0.8), 1)
    found = {option.choice: (option.drafted, option.right) for option in acceptance.options()}
    assert found == {
        Choice(1, 0.5): (1, 1),
        Choice(2, 0.5): (2, 1),
        Choice(3, 0.5): (2, 1),
        Choice(1, 0.9): (1, 1),
        Choice(2, 0.9): (1, 1),
        Choice(3, 0.9): (1, 1),
    }


def test_shares_are_given_drafted_and_unconditional() -> None:
    shares = Shares(0.0, 2)
    for right, length in ((2, 2), (1, 1), (0, 2), (1, 2)):
        shares.add(2, (1.0,) * length, right)
    assert shares.drafted == pytest.approx([1.0, 0.75])
    assert shares.right == pytest.approx([0.75, 0.25])
    given = [right / drafted for right, drafted in zip(shares.right, shares.drafted, strict=True)]
    assert given == pytest.approx([0.75, 1 / 3])


def test_what_other_thresholds_would_bring_is_what_they_do_bring() -> None:
    rng = random.Random(1)
    loose, strict = Acceptance(4, (0.0, 0.6)), Acceptance(4, (0.6,))
    for _ in range(20 * MEMORY):
        sure = [rng.random() for _ in range(4)]
        right = next((i for i, p in enumerate(sure) if rng.random() >= p), 4)
        loose.add(Choice(4, 0.0), sure, right)
        cut = next((i for i, p in enumerate(sure) if p < 0.6), 4)
        strict.add(Choice(4, 0.6), sure[:cut], min(right, cut))
    found = [option for option in loose.options() if option.choice.threshold == 0.6]
    assert found == strict.options()


def test_a_share_follows_what_changes() -> None:
    shares = Shares(0.0, 1)
    for _ in range(500):
        shares.add(1, (1.0,), 1)
    for _ in range(4 * MEMORY):
        shares.add(1, (1.0,), 0)
    assert shares.right[0] < 0.05
    shares.forget()
    for _ in range(LEAST):
        shares.add(1, (1.0,), 1)
    assert shares.right[0] > 0.4


def test_a_step_that_was_held_up_does_not_count() -> None:
    recent = Recent()
    for value in (100.0, 1.0, 1.0, 1.0, 1.0, 50.0, 1.0, 1.0):
        recent.add(value)
    assert recent.value == 1.0


def test_times_between_measured_ones_lie_on_lines() -> None:
    curve = Curve()
    assert curve.at(3) == float("inf")
    for _ in range(3):
        curve.add(2, 0.2)
        curve.add(10, 1.0)
    assert [curve.at(x) for x in (0, 2, 6, 10, 12)] == pytest.approx([0, 0.2, 0.6, 1.0, 1.2])


def test_a_time_without_guesses_is_known_by_the_number_of_sequences() -> None:
    times = StepTimes()
    assert not times.knows(4)
    assert times.plain(4) == 0
    for _ in range(2):
        times.add_plain(2, 1.0)
        times.add_plain(6, 2.0)
    assert times.knows(2)
    assert not times.knows(4)
    assert [times.plain(rows) for rows in (1, 2, 4, 6, 9)] == [1.0, 1.0, 1.5, 2.0, 2.0]


def test_steps_belong_to_the_groups_that_are_told() -> None:
    groups = {name: [] for name in GROUP_NAMES}  # type: dict[str, list[int]]
    for rows in range(1, 20):
        groups[GROUP_NAMES[group_of(rows)]].append(rows)
    assert groups == {
        "1": [1],
        "2-4": [2, 3, 4],
        "5-16": list(range(5, 17)),
        "17+": [17, 18, 19],
    }


def test_guesses_are_cut_by_their_likeliness_or_by_what_was_asked_for() -> None:
    trial = Trial(("greedy", "content"), Choice(3, 0.5), (0.9, 0.5, 0.4, 0.9))
    assert trial.num_likely == 2
    assert trial.cut(1).num_likely == 1
    assert trial.cut(5) == trial
    assert trial._replace(choice=Choice(4, 0.0)).num_likely == 4
    assert trial._replace(choice=Choice(2, 0.95)).num_likely == 0
