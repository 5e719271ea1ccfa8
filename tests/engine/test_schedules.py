"""Random schedules on an engine whose memory is simulated: no text ever depends on them."""

import random
from collections import Counter

import pytest

SCHEDULES = 125  # for each of the eight kinds below


def random_prompt(rng, engine):
    """A prompt that begins like an earlier one and its answer, finished or not, or like nothing."""
    longest = engine.limits.max_context - 2
    fresh = [rng.randrange(23) for _ in range(rng.randint(1, 12))]
    if engine.sequences and rng.random() < 0.6:
        before = list(rng.choice(list(engine.sequences.values())).tokens)
        start = before[: rng.randint(1, len(before))] if rng.random() < 0.4 else before
        fresh = start + fresh[: rng.randint(0, len(fresh))]
    return fresh[:longest]


def disturb(rng, engine):
    """What may happen between two steps."""
    chance = rng.random()
    if chance < 0.04:
        open_ids = sorted(engine.texts.keys() - engine.finishes.keys())
        if open_ids:
            engine.abort(rng.choice(open_ids))
    elif chance < 0.07:
        engine.index.evict()
    elif chance < 0.10:
        engine.records.evict()
    elif chance < 0.11:
        engine.runner.faults = [rng.choice(["start", "rows", "end"])]


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("reuse_generated", [True, False])
@pytest.mark.parametrize("tight", [True, False])
def test_no_schedule_changes_a_text(make_engine, tight, reuse_generated, prefix_cache):
    rng = random.Random(f"{tight} {reuse_generated} {prefix_cache}")
    seen = Counter()
    for _ in range(SCHEDULES):
        engine = make_engine(
            num_pages=rng.randint(10, 14) if tight else 60,
            num_slots=rng.randint(1, 5),
            num_records=rng.choice([0, 1, 3, 12]),
            max_context=40,
            max_step_tokens=rng.choice([1, 5, 16, 64]),
            admit_output=rng.choice([1, 4, 40]),
            reuse_generated=reuse_generated,
            prefix_cache=prefix_cache,
        )
        left = rng.randint(4, 10)
        while left or not engine.loop.idle:
            if left and rng.random() < 0.3:
                left -= 1
                prompt = random_prompt(rng, engine)
                hints = tuple(rng.randint(0, 40) for _ in range(rng.randint(0, 2)))
                engine.add(
                    prompt,
                    max_tokens=rng.randint(1, 24),
                    stop=(3,) if rng.random() < 0.5 else (),
                    seed=rng.randrange(3),
                    hints=hints,
                )
            disturb(rng, engine)
            pages = [page for s in engine.scheduler.running for page in s.pages]
            seen["shared"] += len(pages) - len(set(pages))
            engine.step()
        engine.check_texts()
        assert len(engine.finishes) == len(engine.texts), "every request is answered"
        assert engine.pool.num_held == engine.records.num_held == 0
        tally(seen, engine)
    # The schedules must reach what they are about.
    wanted = {"abort", "error", "stop", "length"}
    wanted |= {"preempted", "computed again"} if tight else set()
    wanted |= {"cached", "shared"} if prefix_cache else set()
    wanted |= {"reused made"} if prefix_cache and reuse_generated else set()
    assert wanted <= {name for name, count in seen.items() if count}
    assert prefix_cache or not seen["cached"]
    assert reuse_generated or not seen["reused made"]


def tally(seen, engine):
    seen.update(engine.finishes.values())
    seen["preempted"] += engine.scheduler.num_preemptions
    seen["cached"] += engine.scheduler.num_cached_tokens
    for sequence in engine.sequences.values():
        seen["reused made"] += any(sequence.roles[: sequence.num_prompt])
    for plan in engine.plans:
        seen["computed again"] += any(len(rows.tokens) > 1 for rows in plan.made)
