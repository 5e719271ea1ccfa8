"""Steps that overlap make the same texts, and leave the same behind, as steps in turn."""

import itertools
import random
import threading
from pathlib import Path

import pytest

from relight.base.settings import Settings
from relight.base.types import Request, SamplingParams
from relight.engine.assemble import assemble
from relight.engine.graphs import Shape
from relight.engine.onethread import OneThread
from relight.engine.plan import LAST_SAMPLED
from tests.engine.conftest import AtLast, AtOnce
from tests.engine.real import VOCAB, words, write_checkpoint
from tests.engine.tape import Tape, record_all
from tests.engine.test_scheduler import prompt_of, run_until

EXECUTORS = [AtOnce, AtLast, lambda: OneThread("step")]
"""A step is run before it is read, when it is read, or by who comes first."""
overlapping = pytest.mark.parametrize("executor", EXECUTORS, ids=["at once", "at last", "thread"])


def a_day(engine, seed):
    """Requests of all kinds, some given up after so many tokens; what became of them."""
    rng = random.Random(seed)
    limits = {}
    for number in range(12):
        id = engine.add(
            prompt_of(rng.randint(1, 20), seed=number % 5),
            max_tokens=rng.randint(1, 24),
            stop=(3, 7) if rng.random() < 0.5 else (),
            seed=rng.randrange(4),
        )
        if rng.random() < 0.3:
            limits[id] = rng.randint(0, 6)
    while not engine.loop.idle:
        for id, limit in limits.items():
            if id not in engine.finishes and len(engine.texts[id]) >= limit:
                engine.abort(id)
        engine.step()
    return {
        id: (engine.finishes[id], None if id in limits else text)
        for id, text in engine.texts.items()
    }


@overlapping
@pytest.mark.parametrize("tight", [False, True])
def test_texts_are_those_of_steps_in_turn(make_engine, executor, tight):
    pages = 13 if tight else 60
    preempted = 0
    for seed in range(20):
        options = {"num_pages": pages, "admit_output": 2, "reuse_generated": False}
        slow = make_engine(**options)
        fast = make_engine(executor=executor(), **options)
        assert a_day(fast, seed) == a_day(slow, seed)
        fast.check_texts()
        assert fast.pool.num_held == fast.records.num_held == 0
        preempted += fast.scheduler.num_preemptions
    assert tight == (preempted > 0)


@pytest.mark.parametrize(
    "executor", [lambda: None, AtOnce, AtLast], ids=["in turn", "at once", "at last"]
)
@pytest.mark.parametrize("tight", [False, True])
def test_a_token_that_comes_alone_is_planned_as_any_other(
    make_engine, monkeypatch, executor, tight
):
    """There is a short way for it, which most steps take."""
    for seed in range(20):
        short, long = (
            make_engine(executor=executor(), num_pages=13 if tight else 60, admit_output=2)
            for _ in range(2)
        )
        monkeypatch.setattr(long.scheduler, "_goes_on_alone", lambda sequence: False)
        assert a_day(short, seed) == a_day(long, seed)
        assert short.plans == long.plans


@overlapping
def test_a_step_is_launched_before_the_one_before_it_is_read(make_engine, executor):
    engine = make_engine(executor=executor())
    id = engine.add([1, 2], max_tokens=4)
    engine.step()
    assert not engine.texts[id]
    engine.step()
    assert len(engine.texts[id]) == 1
    engine.run()
    made = [rows.tokens for plan in engine.plans for rows in plan.made]
    assert made == [(LAST_SAMPLED,)] * 3, "its length was known, so nothing was in vain"
    engine.check_texts()


def stopping(engine, position):
    """A request whose token at `position` of its answer is a stop token."""
    free = engine.add(prompt_of(5), max_tokens=30)
    engine.run()
    text = engine.texts[free]
    assert text.index(text[position]) == position, "choose another seed"
    return engine.add(prompt_of(5), max_tokens=30, stop=(text[position],))


@overlapping
def test_what_is_computed_behind_a_stop_token_is_never_seen(make_engine, executor):
    engine = make_engine(executor=executor(), num_slots=1, prefix_cache=False)
    id = stopping(engine, 4)
    next_one = engine.add(prompt_of(9), max_tokens=3)
    run_until(engine, lambda: id in engine.finishes)
    assert engine.sequences[id].slot >= 0, "a step still writes to its slot"
    assert engine.pool.num_held > 0
    engine.step()
    assert engine.sequences[id].slot < 0
    engine.run()
    assert len(engine.texts[id]) == 5
    assert engine.finishes[next_one] == "length"
    engine.check_texts()


@pytest.mark.parametrize("position", range(4))
def test_a_stopped_answer_leaves_behind_what_it_would_leave_in_turn(make_engine, position):
    """Wherever it stops: one of four places in a page is where the void row completes it."""
    left = []
    for executor in (None, AtOnce(), AtLast()):
        engine = make_engine(executor=executor)
        id = stopping(engine, 7 + position)
        engine.run()
        tokens = [*prompt_of(5), *engine.texts[id], 1, 2]
        again = engine.add(tokens, max_tokens=1)
        engine.run()
        left.append((engine.sequences[again].num_cached, engine.index.pool.num_cached))
        engine.check_texts()
    assert left[0] == left[1] == left[2]


@overlapping
def test_an_abort_is_told_at_once_and_frees_pages_when_its_step_has_landed(make_engine, executor):
    engine = make_engine(executor=executor(), prefix_cache=False)
    id = engine.add(prompt_of(9), max_tokens=20)
    run_until(engine, lambda: engine.texts[id])
    engine.abort(id)
    assert engine.finishes[id] == "abort"
    assert engine.pool.num_held > 0
    engine.step()
    assert engine.pool.num_held == 0
    assert engine.loop.idle


@overlapping
@pytest.mark.parametrize("point", ["start", "rows", "end"])
def test_a_failed_step_ends_its_requests_and_those_behind_it_go_on(make_engine, executor, point):
    engine = make_engine(executor=executor(), num_slots=2)
    failing = engine.add(prompt_of(5), max_tokens=20)
    run_until(engine, lambda: len(engine.texts[failing]) == 3)
    engine.loop._drain()
    engine.runner.faults = [point]
    engine.step()
    new = engine.add(prompt_of(6, seed=1), max_tokens=5)
    engine.step()  # launches the first step of the new one, then reads the one that failed
    assert engine.finishes == {failing: "error"}
    assert engine.pool.num_held == 0
    engine.run()
    assert engine.finishes[new] == "length"
    engine.check_texts()


def test_the_host_plans_while_a_step_runs(make_engine):
    """A step ends behind the next plan, which is made behind its begin: neither would ever end if
    they did not overlap."""
    engine = make_engine(executor=OneThread("step"))
    begun, planned = ([threading.Event() for _ in range(8)] for _ in range(2))
    calls = itertools.count()
    plan, execute = engine.scheduler.plan, engine.runner.execute

    def tell(now):
        number = next(calls)
        if 1 <= number <= 4:
            assert begun[number - 1].wait(20)
        made = plan(now)
        planned[number].set()
        return made

    def wait(step):
        begun[step.step].set()
        assert planned[step.step + 1].wait(20)
        return execute(step)

    engine.scheduler.plan, engine.runner.execute = tell, wait
    engine.add([1, 2], max_tokens=4)
    engine.run()
    assert set(engine.finishes.values()) == {"length"}


@overlapping
def test_growth_takes_no_second_victim_while_pages_are_on_their_way(make_engine, executor):
    engine = make_engine(
        executor=executor(), num_pages=15, admit_output=1, num_slots=5, prefix_cache=False
    )
    ids = [engine.add(prompt_of(4, seed), max_tokens=24) for seed in range(5)]
    run_until(engine, lambda: engine.scheduler.num_preemptions)
    assert engine.scheduler.num_preemptions == 1
    assert engine.sequences[ids[-1]].num_preemptions == 1
    engine.run()
    engine.check_texts()


def test_the_real_model_answers_alike(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path)
    rng = random.Random(3)
    requests = [
        Request(
            id=f"r{number}",
            prompt=tuple(words(f"overlap {number}", rng.choice((1, 30, 126, 140)))),
            sampling=SamplingParams(
                temperature=1.0,
                seed=number,
                max_tokens=rng.randint(3, 8),
                stop_token_ids=tuple(range(number, VOCAB, 9)),
            ),
        )
        for number in range(8)
    ]

    def answers(overlap, recorded=()):
        settings = Settings(
            model=str(checkpoint), device="cpu", num_slots=3, max_context=512, overlap=overlap
        )
        loop, _ = assemble(settings, lambda done, total: None)
        record_all(loop._steps._runner, recorded, Tape())
        texts = {request.id: [] for request in requests}
        ends = {}
        for request in requests:
            loop.add(request)
        while not loop.idle:
            for delta in loop.step():
                texts[delta.id] += delta.tokens
                if delta.finish:
                    ends[delta.id] = delta.finish
        return texts, ends

    texts, ends = answers("on")
    assert (texts, ends) == answers("off")
    assert (texts, ends) == answers("on", [Shape(rows, 512) for rows in (1, 2, 4)])
    assert set(ends.values()) == {"stop", "length"}
