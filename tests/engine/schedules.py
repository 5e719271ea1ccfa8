"""Random schedules on an engine whose memory is simulated: arrivals, cancels, lost pages and
records, failed steps. `python -m tests.engine.schedules 10000` runs so many and tells what they
met."""

import logging
import math
import random
import sys
from collections import Counter

from tests.engine.conftest import VOCAB, AtLast, AtOnce, SimulatedEngine

KINDS = [(tight, reuse, cache) for tight in (0, 1) for reuse in (0, 1) for cache in (0, 1)]
"""Too few pages for all, or enough; made tokens are reused; anything is."""


def run_schedule(number: int, seen: Counter[str], replay_rows: int = 0) -> None:
    """Runs one to its end, checks it, and adds what it met to `seen`."""
    tight, reuse_generated, prefix_cache = KINDS[number % len(KINDS)]
    rng = random.Random(number)
    engine = SimulatedEngine(
        executor=rng.choice([None, AtOnce(), AtLast()]),
        num_pages=rng.randint(10, 14) if tight else 60,
        num_slots=rng.randint(1, 5),
        num_records=rng.choice([0, 1, 3, 12]),
        max_context=40,
        max_step_tokens=rng.choice([1, 5, 16, 64]),
        admit_output=rng.choice([1, 4, 40]),
        step_target_s=rng.choice([math.inf, 1.5]),
        reuse_generated=bool(reuse_generated),
        prefix_cache=bool(prefix_cache),
        replay_rows=replay_rows,
    )
    left = rng.randint(4, 10)
    while left or not engine.loop.idle:
        if left and rng.random() < 0.3:
            left -= 1
            engine.add(
                random_prompt(rng, engine),
                max_tokens=rng.randint(1, 24),
                stop=(3,) if rng.random() < 0.5 else (),
                seed=rng.randrange(3),
                priority=rng.randrange(2),
                client=rng.choice("abc"),
                hints=tuple(rng.randint(0, 40) for _ in range(rng.randint(0, 2))),
            )
        disturb(rng, engine)
        pages = [page for s in engine.scheduler.running for page in s.pages]
        seen["shared"] += len(pages) - len(set(pages))
        engine.step()
    engine.check_texts()
    assert len(engine.finishes) == len(engine.texts), "every request is answered"
    assert engine.pool.num_held == engine.records.num_held == 0
    tally(seen, engine)


def random_prompt(rng: random.Random, engine: SimulatedEngine) -> list[int]:
    """A prompt that begins like an earlier one and its answer, finished or not, or like nothing."""
    longest = engine.limits.max_context - 2
    fresh = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))]
    if engine.sequences and rng.random() < 0.6:
        before = list(rng.choice(list(engine.sequences.values())).tokens)
        start = before[: rng.randint(1, len(before))] if rng.random() < 0.4 else before
        fresh = start + fresh[: rng.randint(0, len(fresh))]
    return fresh[:longest]


def disturb(rng: random.Random, engine: SimulatedEngine) -> None:
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


def tally(seen: Counter[str], engine: SimulatedEngine) -> None:
    seen.update(engine.finishes.values())
    seen["preempted"] += engine.scheduler.num_preemptions
    seen["cached"] += engine.scheduler.num_cached_tokens
    for sequence in engine.sequences.values():
        seen["reused made"] += any(sequence.roles[: sequence.num_prompt])
        seen["overtaken"] += sequence.num_overtaken
    for plan in engine.plans:
        seen["computed again"] += any(len(rows.tokens) > 1 for rows in plan.made)


def main() -> None:
    seen: Counter[str] = Counter()
    count = int(sys.argv[1])
    logging.disable()  # steps fail by intent
    for number in range(count):
        run_schedule(number, seen)
    print(f"{count} schedules;", ", ".join(f"{name} {n}" for name, n in sorted(seen.items())))


if __name__ == "__main__":
    main()
