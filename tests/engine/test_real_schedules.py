"""Batch mates, preemption and cancelled requests never change a text, on the real model."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from relight.cache.prefix import MADE
from tests.engine.real import (
    PAGE,
    ByHand,
    RealEngine,
    assert_begins,
    assert_equal,
    words,
    write_checkpoint,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def by_hand(checkpoint: Path, device: str) -> ByHand:
    return ByHand(checkpoint, device, context=512)


# -- together


MATES = {length: words(f"mate {length}", length) for length in (1, 5, 127, 128, 129, 60, 200, 3)}


@pytest.mark.parametrize("concurrency", [1, 4, 8])
def test_requests_that_run_together_answer_as_they_would_alone(
    checkpoint: Path, device: str, by_hand: ByHand, concurrency: int
) -> None:
    """Lengths from 1 to 200 tokens, answers of 4 to 7, prompts cut into chunks of up to 200."""
    engine = RealEngine(checkpoint, device, slots=concurrency, max_step_tokens=200)
    asked = {
        engine.add(prompt, max_tokens=4 + number % 4): (prompt, 4 + number % 4)
        for number, prompt in enumerate(MATES.values())
    }
    together = 0
    while not engine.loop.idle:
        engine.step()
        together = max(together, len(engine.plans[-1].made) + len(engine.plans[-1].given))
    assert together == concurrency
    for id, (prompt, max_tokens) in asked.items():
        assert_equal(engine.answers[id], by_hand.answer(prompt, max_tokens))
    engine.check_all_given_back()


@pytest.mark.parametrize("prefix_cache", ["on", "off"])
def test_requests_that_give_way_answer_as_they_would_alone(
    checkpoint: Path, device: str, by_hand: ByHand, prefix_cache: str
) -> None:
    """Three prompts of two pages each, which need a third page while they answer; there are
    seven pages. A sequence that gave way reads its prompt as given and its answer as made."""
    engine = RealEngine(
        checkpoint, device, pages=7, admit_output=1, prefix_cache=prefix_cache, slots=3
    )
    prompts = [words(f"way {i}", 251 + i) for i in range(3)]
    ids = [engine.add(prompt, max_tokens=9) for prompt in prompts]
    engine.run()
    assert engine.scheduler.num_preemptions > 0
    assert engine.sequences[ids[0]].num_preemptions == 0
    assert any(len(rows.tokens) > 1 for plan in engine.plans for rows in plan.made)
    for id, prompt in zip(ids, prompts, strict=True):
        assert_equal(engine.answers[id], by_hand.answer(prompt, 9))
    engine.check_all_given_back()


# -- at random


SCHEDULES = 9  # for each of the two kinds below
REQUESTS = 6
MAX_TOKENS = 5
TRUNK = words("trunk", 253)
TEXTS = (  # two of their own; and two that leave the first at a page's edge and inside a page
    TRUNK,
    words("other", 253),
    TRUNK[:128] + words("edge", 125),
    TRUNK[:140] + words("second", 113),
)
LENGTHS = {4: (40, 126), 7: (126, 253), 12: (40, 126, 200)}
"""Pages -> lengths of prompts. Answers reach over the end of a page, and four pages hold the oldest
of three sequences of 126 tokens whole, and two whose answers are still short."""


def random_prompt(rng: random.Random, engine: RealEngine, lengths: Sequence[int]) -> list[int]:
    """One that begins like others, or an earlier one with its answer and a word."""
    ended = [id for id, answer in engine.answers.items() if answer.finish == "length"]
    if ended and rng.random() < 0.2:
        id = rng.choice(ended)
        return [*engine.requests[id].prompt, *engine.answers[id].tokens, 9]
    return rng.choice(TEXTS)[: rng.choice(lengths)]


def disturb(rng: random.Random, engine: RealEngine) -> None:
    """What may happen between two steps."""
    chance = rng.random()
    running = [id for id, answer in engine.answers.items() if answer.finish is None]
    if chance < 0.03 and running:
        engine.abort(rng.choice(running))
    elif chance < 0.05:
        engine.evict_pages(1)
    elif chance < 0.08:
        engine.evict_records(1)
    elif chance < 0.15:
        engine.poison_free()
    elif chance < 0.20 and engine.scheduler.running:
        engine.scheduler._preempt(engine.scheduler.running[-1])


def run_schedule(rng: random.Random, engine: RealEngine, lengths: Sequence[int]) -> None:
    left = REQUESTS
    while left or not engine.loop.idle:
        slots = engine.scheduler.limits.num_slots
        while left and len(engine.scheduler.running) + len(engine.scheduler.waiting) < slots:
            left -= 1
            engine.add(
                random_prompt(rng, engine, lengths),
                max_tokens=MAX_TOKENS if rng.random() < 0.7 else rng.randint(1, MAX_TOKENS),
                hints=[rng.choice(lengths)],
            )
        disturb(rng, engine)
        engine.step()
    engine.check_all_given_back()


@pytest.mark.slow
@pytest.mark.parametrize("reuse_generated", ["on", "off"])
def test_no_schedule_changes_a_text(
    checkpoint: Path, device: str, by_hand: ByHand, reuse_generated: str
) -> None:
    seen: Counter[str] = Counter()
    for number in range(SCHEDULES):
        rng = random.Random(f"{reuse_generated} {number}")
        pages, lengths = list(LENGTHS.items())[number % len(LENGTHS)]
        engine = RealEngine(
            checkpoint,
            device,
            pages=pages,
            slots=3 + number % 2,
            records=rng.choice([4, 8]),
            max_step_tokens=rng.choice([33, 128, 512]),
            admit_output=1,
            reuse_generated=reuse_generated,
        )
        run_schedule(rng, engine, lengths)
        for id in engine.answers:
            check_answer(engine, id, by_hand)
        tally(seen, engine)
    # The schedules must reach what they are about.
    wanted = {"length", "abort", "cached", "preempted", "computed again"}
    assert wanted <= {name for name, count in seen.items() if count}
    assert bool(seen["reused made"]) == (reuse_generated == "on")


def check_answer(engine: RealEngine, id: str, by_hand: ByHand) -> None:
    """Equal to a cold run alone; where a reused page holds made tokens, to one in these roles."""
    answer, found, request = engine.answers[id], engine.sequences[id], engine.requests[id]
    assert answer.cached % PAGE == 0
    assert answer.cached < found.num_prompt
    roles = found.roles[: found.num_prompt]
    assert MADE not in roles[answer.cached :]
    if answer.tokens:
        made = [i for i, role in enumerate(roles) if role == MADE]
        assert_begins(by_hand.answer(request.prompt, MAX_TOKENS, made=made), answer)
    assert answer.finish in ("length", "abort")
    if answer.finish == "length":
        assert len(answer.tokens) == request.sampling.max_tokens


def tally(seen: Counter[str], engine: RealEngine) -> None:
    seen["preempted"] += engine.scheduler.num_preemptions
    for id, answer in engine.answers.items():
        seen[str(answer.finish)] += 1
        seen["cached"] += answer.cached
        seen["reused made"] += MADE in engine.sequences[id].roles[: answer.cached]
    for plan in engine.plans:
        seen["computed again"] += any(len(rows.tokens) > 1 for rows in plan.made)
