"""What streams wait for while long prompts are read, by a clock that the model moves."""

import random

import pytest

from relight.engine.cost import FIRST_GUESS, CostMeter, Load, StepCost
from relight.engine.waiting import MAX_OVERTAKEN
from tests.engine.costed import PAGE, TRUTH, CostedEngine, text_alone

STREAMS = 8
LONG = 300_000
TARGET_S = 0.1


def speed(engine, id):
    """Rows in a second of the steps that read it."""
    steps = engine.chunks[id]
    return sum(rows for _, rows in steps) / sum(seconds for seconds, _ in steps)


def alone(truth=TRUTH, length=LONG):
    engine = CostedEngine(truth=truth)
    engine.add("long", length, 1)
    engine.run()
    return engine


def seconds_in_chunks(size, length=LONG):
    """What the model needs for a prompt that is read in chunks of that size, and nothing else."""
    starts = range(0, length, size)
    chunks = [(start, min(size, length - start)) for start in starts]
    return sum(TRUTH.step_s + TRUTH.rows_seconds(*chunk) for chunk in chunks)


def mixed(truth=TRUTH, length=LONG, disturbance=lambda: 1.0):
    """The streams run when the long prompt comes, and run on until it is read."""
    engine = CostedEngine(truth=truth, disturbance=disturbance)
    for number in range(STREAMS):
        engine.add(f"stream {number}", 1000, 20_000)
    while len(engine.finishes) + len(engine.gaps) < STREAMS:
        engine.step()
    for _ in range(20):
        engine.step()
    engine.gaps.clear()
    engine.add("long", length, 1)
    while "long" not in engine.finishes:
        engine.step()
    return engine


def test_a_prompt_alone_is_read_in_whole_steps():
    engine = alone()
    chunks = [rows for _, rows in engine.chunks["long"]]
    # A step ends where a record is taken: every 4096 tokens, and at the last boundary.
    assert set(chunks[:-2]) == {4096}
    # That costs little beside chunks of twice the size.
    assert engine.now < 1.02 * seconds_in_chunks(8192)


def test_a_long_prompt_holds_no_stream_up_and_keeps_most_of_its_speed():
    engine = mixed()
    assert max(engine.gaps.values()) <= 2 * TARGET_S
    assert speed(engine, "long") >= 0.7 * LONG / seconds_in_chunks(8192)
    assert min(pages_of(engine.chunks["long"])) >= 1


def pages_of(chunks):
    """Rows of each step in pages, but for what is left behind the last whole page."""
    *steps, (_, last) = chunks
    assert last < PAGE
    return [rows / PAGE for _, rows in steps]


@pytest.mark.parametrize("num_others", [0, 3])
@pytest.mark.parametrize("length", [4095, 4097, 20_000, 50_001])
def test_a_long_prompt_gets_a_page_a_step_wherever_records_are_taken(length, num_others):
    """Among others, too, that are read beside it, and when it is no more the only one."""
    rng = random.Random(length)
    engine = CostedEngine(truth=StepCost(step_s=0.05, made_s=1e-3, given_s=5e-4, pair_s=1e-9))
    for number in range(STREAMS):
        engine.add(f"stream {number}", 100, 2000)
    while len(engine.finishes) + len(engine.gaps) < STREAMS:
        engine.step()
    hints = tuple(rng.randrange(length) for _ in range(20))
    engine.add("long", length, 1, hints=hints)
    for number in range(num_others):
        engine.add(f"other {number}", rng.randrange(300, 3000), 1)
    while "long" not in engine.finishes:
        engine.step()
    *steps, (_, last) = engine.chunks["long"]
    assert last == (length % PAGE or PAGE)
    assert all(rows >= PAGE for _, rows in steps)


@pytest.mark.parametrize("factor", [0.2, 0.5, 2.0])
def test_what_a_step_costs_is_learnt_and_kept_to(factor):
    truth = StepCost(*(cost * factor for cost in TRUTH))
    rng = random.Random(factor)
    engine = mixed(truth, 100_000, lambda: rng.uniform(0.9, 1.1))
    assert max(engine.gaps.values()) <= 2 * TARGET_S
    assert min(pages_of(engine.chunks["long"])) >= 1


def test_a_slow_machine_gives_a_prompt_its_share_and_a_page():
    truth = StepCost(step_s=0.2, made_s=0.01, given_s=2e-4, pair_s=1e-10)
    engine = mixed(truth, 50_000)
    assert speed(engine, "long") >= 0.3 * speed(alone(truth, 50_000), "long")
    assert min(pages_of(engine.chunks["long"])) >= 1


@pytest.mark.parametrize("seed", range(12))
def test_whatever_steps_cost_a_prompt_gets_its_share_and_a_page(seed):
    rng = random.Random(seed)
    truth = StepCost(
        step_s=rng.uniform(0.001, 0.2),
        made_s=rng.uniform(1e-5, 1e-2),
        given_s=10 ** rng.uniform(-5, -2.5),
        pair_s=10 ** rng.uniform(-11, -8.5),
    )
    length = rng.randrange(3000, 30_000)
    engine = mixed(truth, length, lambda: rng.uniform(0.9, 1.1))
    assert min(pages_of(engine.chunks["long"])) >= 1
    assert speed(engine, "long") >= 0.3 * speed(alone(truth, length), "long")


def test_without_a_target_a_step_is_full():
    engine = CostedEngine(step_target_s=float("inf"))
    engine.add("stream", 1000, 100)
    engine.step()
    engine.add("long", 20_000, 1)
    engine.run()
    assert {rows for _, rows in engine.chunks["long"][:-2]} == {4096}


def test_one_long_and_many_short_requests_run_at_once_and_lose_nothing():
    engine = CostedEngine()
    rng = random.Random(0)
    stops = {f"short {i}": tuple(rng.sample(range(1000), 3)) for i in range(31)}
    requests = [engine.add("long", LONG, 32_768, stop=(1, 2, 3))]
    requests += [engine.add(id, 8192, 32_768, stop=stop) for id, stop in stops.items()]
    engine.step()
    assert len(engine.scheduler.running) == 32
    engine.run()
    assert engine.scheduler.num_preemptions == 0
    for request in requests:
        assert engine.texts[request.id] == text_alone(request)
        assert engine.finishes[request.id] == "stop"
    assert engine.pool.num_held == 0


@pytest.mark.slow
def test_they_lose_nothing_even_if_all_make_all_that_they_may():
    """1,602,528 tokens in a pool of 1,078,120, so some give way: 50,000 steps."""
    engine = CostedEngine()
    requests = [engine.add("long", LONG, 32_768)]
    requests += [engine.add(f"short {i}", 8192, 32_768) for i in range(31)]
    engine.step()
    assert len(engine.scheduler.running) == 32
    engine.run()
    assert 0 < engine.scheduler.num_preemptions <= 2 * 31
    for request in requests:
        assert engine.finishes[request.id] == "length"
        assert engine.texts[request.id] == text_alone(request)
    assert engine.pool.num_held == 0


def test_short_requests_overtake_one_that_does_not_fit_so_often_and_no_more():
    engine = CostedEngine(num_tokens=100 * PAGE, num_slots=4)
    engine.add("running", 50 * PAGE, 20 * PAGE)
    engine.step()
    engine.add("long", 60 * PAGE, 1)
    short = [f"short {number}" for number in range(2 * MAX_OVERTAKEN)]
    for id in short:
        engine.add(id, PAGE, PAGE)
    before = 0
    while "long" not in engine.texts or not engine.texts["long"]:
        before = sum(id in engine.finishes for id in short)
        engine.step()
    assert before <= MAX_OVERTAKEN
    assert "running" in engine.finishes
    engine.run()
    assert set(engine.finishes.values()) == {"length"}
    assert len(engine.finishes) == 2 + len(short)


# -- learning


TRUTHS = {
    "as guessed": FIRST_GUESS,
    "a thousand times slower": StepCost(20, 0.1, 0.135, 5e-7),
    "fast": StepCost(0.004, 1e-4, 2e-5, 1e-11),
    "made rows dear": StepCost(0.001, 2e-3, 1e-5, 1e-10),
    "slow processor": StepCost(0.05, 0.2, 0.01, 1e-7),
}


@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS.keys())
def test_costs_are_learnt_from_noisy_steps_of_which_some_are_held_up(truth):
    rng = random.Random(1)
    meter = CostMeter()
    for number in range(1500):
        given = rng.choice((0, 0, 258, 1024))
        made = rng.choice((0, 8, 8, 32)) if given else 8
        load = Load(1, made, given, given * rng.randrange(300_000))
        expected, true = meter.cost.seconds(load), truth.seconds(load)
        if number > 1000:
            assert 0.8 * true < expected < 1.2 * true
        meter.observe(load, true * rng.uniform(0.9, 1.1) * (20 if rng.random() < 0.01 else 1))


@pytest.mark.parametrize("start", [0, 128, 300_000])
@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.08, 3.0])
@pytest.mark.parametrize("cost", TRUTHS.values(), ids=TRUTHS.keys())
def test_the_rows_within_a_time_are_the_most_that_cost_no_more(cost, start, seconds):
    rows = cost.rows_within(seconds, start)
    assert cost.rows_seconds(start, rows) <= seconds
    assert cost.rows_seconds(start, rows + 1) > seconds * (1 - 1e-9)
