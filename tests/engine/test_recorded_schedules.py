"""Whatever happens between steps, recorded ones make the texts of eager ones: with guesses, all
kinds of draws, sequences that give way and requests that are given up."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from relight.engine.graphs import Shape
from tests.engine.real import RealEngine, assert_equal, words, write_checkpoint
from tests.engine.tape import record_all, recorder_of

SCHEDULES, REQUESTS, SLOTS, DEPTH = 2, 6, 3, 3
WIDTHS = (1, 4, 16)
SAMPLINGS: tuple[dict[str, object], ...] = (
    {"temperature": 0.0},
    {},
    {"top_p": 0.8, "logprobs": 2},
    {"top_k": 7, "min_p": 0.01},
    {"presence_penalty": 0.7, "repetition_penalty": 1.2},
    {"frequency_penalty": 0.5, "temperature": 0.0},
    {"think_budget": 3, "think_close": 9},
    {"logit_bias": ((7, 2.0),)},
    {"min_tokens": 3, "stop_token_ids": tuple(range(100))},
)


@pytest.fixture(params=["v4_dspark", "v41"])
def engines(
    request: pytest.FixtureRequest, tmp_path: Path, device: str
) -> Iterator[tuple[RealEngine, RealEngine]]:
    """An eager one, and one whose steps are recorded; V4.1 with too few pages for all. The other
    has sliding layers alone, which need none."""
    checkpoint = write_checkpoint(tmp_path, request.param)
    eager, recorded = (
        RealEngine(
            checkpoint,
            device,
            pages=7 if request.param == "v41" else 12,
            slots=SLOTS,
            records=8,
            max_step_tokens=128,
            admit_output=1,
            max_context=512,
            spec="dspark",
            spec_k=DEPTH,
            spec_threshold=0.0,
        )
        for _ in range(2)
    )
    shapes = [Shape(width, 512) for width in WIDTHS]
    record_all(recorded.runner, shapes, recorder_of(device))
    return eager, recorded


def run(engine: RealEngine, rng: random.Random) -> None:
    left = REQUESTS
    while left or not engine.loop.idle:
        while left and len(engine.scheduler.running) + len(engine.scheduler.waiting) < SLOTS:
            left -= 1
            engine.add(
                words(rng.randrange(4), rng.choice((3, 126, 200, 253))),
                max_tokens=rng.randint(1, 9),
                seed=rng.randrange(9),
                **rng.choice(SAMPLINGS),
            )
        open_ = [id for id, answer in engine.answers.items() if answer.finish is None]
        chance = rng.random()
        if chance < 0.04 and open_:
            engine.abort(rng.choice(open_))
        elif chance < 0.1 and engine.scheduler.running:
            engine.scheduler._preempt(engine.scheduler.running[-1])
        engine.step()
        engine.poison_free()
    engine.check_all_given_back()


@pytest.mark.slow
def test_no_schedule_makes_a_difference(engines: tuple[RealEngine, RealEngine]) -> None:
    for number in range(SCHEDULES):
        for engine in engines:
            run(engine, random.Random(number))
    eager, recorded = engines
    assert recorded.answers.keys() == eager.answers.keys()
    for id, wanted in eager.answers.items():
        assert recorded.answers[id].finish == wanted.finish
        if wanted.tokens:
            assert_equal(recorded.answers[id], wanted)
    assert eager.scheduler.num_preemptions > 0
    assert recorded.loop.stats().spec_drafts > 9
    runner = recorded.runner
    assert runner.graphs is not None
    assert runner.draws is not None
    assert runner.guesses is not None
    made = [plan for plan in recorded.plans if plan.made]
    assert runner.graphs.num_replays == len(made)
    assert runner.draws.num_replays > len(made) / 2
    asked = [any(rows.propose for rows in (*plan.made, *plan.given)) for plan in recorded.plans]
    assert runner.guesses.num_replays == sum(asked)


@pytest.mark.slow
@pytest.mark.parametrize("engines", ["v4_dspark"], indirect=True)
def test_a_replay_that_fails_ends_the_requests_of_its_step_and_no_others(
    engines: tuple[RealEngine, RealEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    eager, recorded = engines
    prompt = words(SLOTS, 24)
    wanted = eager.ask(prompt, max_tokens=4)

    def fails() -> None:
        raise RuntimeError("a replay failed")

    runner = recorded.runner
    assert runner.draws is not None
    assert runner.guesses is not None
    for replays in (runner.draws._recorded, runner.guesses._recorded):
        first = [recorded.add(words(slot, 20), max_tokens=6) for slot in range(SLOTS)]
        last = recorded.add(prompt, max_tokens=4)
        recorded.until(lambda ids=first: all(recorded.answers[id].tokens for id in ids))
        with monkeypatch.context() as patch:
            for key in replays:
                patch.setitem(replays, key, fails)  # type: ignore[arg-type]
            recorded.step()
        assert {recorded.answers[id].finish for id in first} == {"error"}
        recorded.run()
        assert_equal(recorded.answers[last], wanted)
        recorded.check_all_given_back()
