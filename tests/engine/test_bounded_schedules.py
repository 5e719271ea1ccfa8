"""Bounded replay beside everything that a schedule may bring: what a sequence makes hangs on its
own tokens and their roles, whatever was found, lost or computed again."""

from collections import Counter

import pytest

from relight.cache.prefix import GIVEN, MADE
from tests.engine.conftest import PAGE, WINDOW, SimulatedEngine
from tests.engine.schedules import KINDS, run_schedule

SCHEDULES = 60
"""Of each kind."""


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[str(kind) for kind in KINDS])
def test_no_schedule_changes_a_text_of_bounded_replay(kind: int) -> None:
    seen: Counter[str] = Counter()
    for number in range(SCHEDULES):
        run_schedule(number * len(KINDS) + kind, seen, replay_rows=WINDOW)
    tight, reuse_generated, prefix_cache = KINDS[kind]
    wanted = {"abort", "error", "stop", "length"}
    wanted |= {"preempted", "computed again"} if tight else set()
    wanted |= {"cached"} if prefix_cache else set()
    wanted |= {"reused made"} if prefix_cache and reuse_generated else set()
    assert wanted <= {name for name, count in seen.items() if count}


def whole_rows(engine: SimulatedEngine, id: str) -> int:
    """Given rows of a request alone that ran through all layers."""
    start = len(engine.plans)
    engine.run()
    return sum(
        max(0, rows.start + len(rows.tokens) - max(rows.start, rows.whole_from))
        for plan in engine.plans[start:]
        for rows in plan.given
    )


@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_a_prompt_of_any_length_runs_one_window_through_all_layers(chunk: int) -> None:
    """Cold, and behind a prefix that was found: that is what is bounded."""
    engine = SimulatedEngine(max_step_tokens=chunk, replay_rows=WINDOW)
    for length in (1, WINDOW, WINDOW + 1, 5 * PAGE, 7 * PAGE + 3):
        prompt = [(length + i) % 23 for i in range(length)]
        for _ in range(2):
            id = engine.add(prompt, max_tokens=3)
            assert whole_rows(engine, id) <= WINDOW
            found = engine.sequences[id].num_cached
    assert found == 6 * PAGE, "the last place from which a whole window is left to read"
    cold, warm = (1, 16, 27), (1, 0, 3)  # the shortest of them has no place to go on from
    assert engine.loop.stats().bounded_tokens == sum(cold) + sum(warm)
    engine.check_texts()


def test_a_record_among_given_tokens_is_no_place_to_go_on_for_a_shorter_rest() -> None:
    """What was whole where a prompt ended is not where a longer one passed by: a sequence that lost
    its slot behind its prompt finds a record that another left there."""
    engine = SimulatedEngine(replay_rows=WINDOW)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    engine.add(prompt + [9] * 9, hints=(8,), max_tokens=1)
    engine.run()
    first = engine.add(prompt, max_tokens=6)
    sequence = engine.sequences[first]
    engine.step()
    engine.step()
    assert sequence.roles[: len(prompt) + 1] == bytes([GIVEN] * len(prompt) + [MADE])
    engine.scheduler._preempt(sequence)
    engine.run()
    assert sequence.num_preemptions == 1
    engine.check_texts()


def test_without_bounded_replay_no_plan_leaves_a_layer_out() -> None:
    engine = SimulatedEngine()
    for length in (3, 20, 30):
        engine.add(range(length % 23) if length < 23 else [5] * length)
    engine.run()
    assert not any(rows.whole_from for plan in engine.plans for rows in (*plan.given, *plan.made))
    assert engine.loop.stats().bounded_tokens == 0
