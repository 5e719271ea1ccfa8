import random

import pytest

from relight.base.errors import BadRequest, Overloaded, TooLong

PAGE = 4


def prompt_of(length, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(23) for _ in range(length)]


def num_cached(engine, prompt, **options):
    """How much of a prompt a new request with it reuses."""
    id = engine.add(prompt, **{"max_tokens": 1, **options})
    engine.run()
    return engine.sequences[id].num_cached


def run_until(engine, done):
    while not done():
        engine.step()


# -- at the door


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "error", "words"),
    [
        ([], 8, BadRequest, "prompt is empty"),
        ([1], 0, BadRequest, "max_tokens is 0"),
        ([1, 23], 8, BadRequest, "token 23; this model's tokens are 0 to 22"),
        ([-1], 8, BadRequest, "token -1"),
        ([1] * 64, 8, TooLong, "prompt is 64 tokens; this server holds 64"),
        ([1] * 30, 20, TooLong, "need 13 pages of 4 tokens; this server has 12"),
    ],
)
def test_a_request_that_can_never_fit_is_refused_by_name(
    make_engine, prompt, max_tokens, error, words
):
    engine = make_engine(num_pages=12)
    refusal = engine.refusal(prompt, max_tokens)
    assert type(refusal) is error
    assert words in refusal.message
    assert engine.loop.idle


def test_one_more_than_the_queue_holds_is_told_to_come_back(make_engine):
    engine = make_engine(max_queue=2)
    engine.add([1])
    engine.add([2])
    assert isinstance(engine.refusal([3]), Overloaded)
    engine.run()
    assert len(engine.finishes) == 2


def test_an_id_is_taken_while_its_request_runs(make_engine):
    engine = make_engine()
    id = engine.add([1])
    with pytest.raises(BadRequest):
        engine.loop.add(engine.requests[id])
    engine.run()
    engine.loop.add(engine.requests[id])


# -- how a request ends


def test_a_request_ends_at_its_limit_its_stop_token_or_the_end_of_the_context(make_engine):
    engine = make_engine(max_context=20)
    limited = engine.add([1, 2], max_tokens=5)
    endless = engine.add([1, 2], max_tokens=100)
    engine.run()
    text = engine.texts[limited]
    stopped = engine.add([1, 2], max_tokens=5, stop=(text[2],))
    engine.run()
    assert len(text) == 5
    assert len(engine.texts[endless]) == 18
    assert engine.texts[stopped] == text[: text.index(text[2]) + 1]
    assert engine.finishes == {limited: "length", endless: "length", stopped: "stop"}


def test_an_abort_frees_slot_and_pages_at_once(make_engine):
    engine = make_engine(num_slots=1, prefix_cache=False)
    first, waiting = engine.add(prompt_of(9)), engine.add(prompt_of(9))
    engine.step()
    engine.abort(waiting)
    engine.abort(first)
    assert engine.pool.num_free == engine.pool.total
    assert engine.loop.idle
    assert engine.finishes == {first: "abort", waiting: "abort"}
    assert engine.loop.abort(first) is None


def test_a_failed_step_ends_the_requests_in_it_and_no_other(make_engine):
    engine = make_engine(num_slots=1)
    failing, waiting = engine.add(prompt_of(5)), engine.add(prompt_of(5))
    engine.runner.faults = ["rows"]
    (delta,) = engine.step()
    assert (delta.id, delta.finish) == (failing, "error")
    assert "step 0 failed: RuntimeError: the device failed" in delta.error
    assert engine.pool.num_held == 0
    engine.run()
    assert engine.finishes[waiting] == "length"
    engine.check_texts()


# -- what is reused


@pytest.mark.parametrize(
    ("length", "cached"), [(3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (40, 36), (41, 40)]
)
def test_a_prompt_is_reused_up_to_its_last_boundary_before_its_end(make_engine, length, cached):
    engine = make_engine()
    prompt = prompt_of(length)
    assert num_cached(engine, prompt) == 0
    assert num_cached(engine, prompt) == cached
    assert num_cached(engine, prompt, salt="other") == 0
    engine.check_texts()


def test_a_prompt_that_ends_at_a_boundary_is_reused_whole_by_a_longer_one(make_engine):
    engine = make_engine()
    prompt = prompt_of(8)
    num_cached(engine, prompt)
    assert num_cached(engine, [*prompt, 1]) == 8


def test_a_prompt_is_reused_where_a_turn_starts(make_engine):
    engine = make_engine()
    first, second = prompt_of(19), prompt_of(19)
    second[10:] = prompt_of(9, seed=1)
    num_cached(engine, first, hints=(10, 1000))
    assert num_cached(engine, second) == 8


def test_a_prompt_is_reused_at_every_interval(make_engine):
    engine = make_engine()
    first, second = prompt_of(33), prompt_of(33)
    second[26:] = prompt_of(7, seed=1)
    num_cached(engine, first)
    assert num_cached(engine, second) == 20


def test_the_second_prompt_that_branches_off_leaves_a_record_for_the_third(make_engine):
    engine = make_engine()
    trunk = prompt_of(13)
    branches = [trunk + prompt_of(6, seed) for seed in (1, 2, 3)]
    assert [num_cached(engine, prompt) for prompt in branches] == [0, 0, 12]
    engine.check_texts()


def test_an_answer_is_reused_up_to_the_last_boundary_that_was_computed(make_engine):
    engine = make_engine()
    prompt = prompt_of(6)
    id = engine.add(prompt, max_tokens=11)
    engine.run()
    tokens = prompt + engine.texts[id]  # 17, of which the last was not computed
    assert num_cached(engine, [*tokens, 1, 2, 3, 4]) == 16


def test_an_answer_is_not_reused_when_that_is_off(make_engine):
    engine = make_engine(reuse_generated=False)
    prompt = prompt_of(9)
    id = engine.add(prompt, max_tokens=11)
    engine.run()
    assert num_cached(engine, [*prompt, *engine.texts[id]]) == 8
    engine.check_texts()


def test_what_a_cancelled_request_computed_is_reused(make_engine):
    engine = make_engine()
    id = engine.add(prompt_of(6), max_tokens=30)
    run_until(engine, lambda: len(engine.texts[id]) == 8)
    engine.abort(id)
    assert num_cached(engine, [*prompt_of(6), *engine.texts[id], 1]) == 12


def test_nothing_is_reused_without_records_or_without_the_cache(make_engine):
    for options in ({"num_records": 0}, {"prefix_cache": False}):
        engine = make_engine(**options)
        assert num_cached(engine, prompt_of(30)) == 0
        assert num_cached(engine, prompt_of(30)) == 0
        engine.check_texts()


def test_equal_prompts_that_run_at_once_end_up_in_the_same_pages(make_engine):
    engine = make_engine(max_step_tokens=64)
    ids = [engine.add(prompt_of(16), max_tokens=20) for _ in range(2)]
    engine.step()
    engine.step()
    first, second = (engine.sequences[id].pages for id in ids)
    assert first[:4] == second[:4]
    engine.run()
    engine.check_texts()


# -- who runs


def test_a_request_waits_until_its_reservation_fits(make_engine):
    engine = make_engine(num_pages=10, prefix_cache=False)
    first = engine.add(prompt_of(20), max_tokens=8)  # reserves 7 of 10 pages
    second = engine.add(prompt_of(9, seed=1), max_tokens=7)  # 4 more
    run_until(engine, lambda: first in engine.finishes)
    assert engine.sequences[second].slot < 0
    engine.run()
    assert engine.scheduler.num_preemptions == 0


def test_pages_that_are_shared_are_reserved_once(make_engine):
    engine = make_engine(num_pages=15)
    num_cached(engine, prompt_of(29))
    for seed in range(4):
        engine.add(prompt_of(29), max_tokens=7, seed=seed)
    engine.step()
    assert len(engine.scheduler.running) == 4  # 7 pages that are shared, 2 more for each
    engine.run()
    engine.check_texts()


def test_made_tokens_never_wait_for_a_long_prompt(make_engine):
    engine = make_engine(max_step_tokens=4)
    talking = engine.add([1], max_tokens=12)
    engine.step()
    engine.add(prompt_of(40))
    for _ in range(8):
        before = len(engine.texts[talking])
        engine.step()
        assert len(engine.texts[talking]) == before + 1


def test_the_oldest_prompt_gets_half_and_the_shortest_the_rest(make_engine):
    engine = make_engine(max_step_tokens=12, prefix_cache=False)
    for length in (40, 30, 8):
        engine.add(prompt_of(length), max_tokens=1)
    engine.step()
    engine.step()
    rows = [{r.slot: len(r.tokens) for r in plan.given} for plan in engine.plans]
    assert rows == [{0: 6, 2: 6}, {0: 6, 1: 4, 2: 2}]


def test_an_old_sequence_gets_its_pages_from_the_youngest_one(make_engine):
    engine = make_engine(num_pages=15, admit_output=1, prefix_cache=False)
    old, middle, young = (engine.add(prompt_of(8, seed), max_tokens=24) for seed in range(3))
    run_until(engine, lambda: engine.scheduler.num_preemptions)
    assert engine.sequences[young].num_preemptions == 1
    engine.run()
    assert engine.sequences[old].num_preemptions == 0
    assert engine.sequences[middle].num_preemptions <= 2
    ends = [engine.sequences[id].ended_s for id in (old, middle, young)]
    assert ends == sorted(ends)
    engine.check_texts()


def test_the_oldest_goes_on_even_if_all_others_have_given_way_often(make_engine):
    engine = make_engine(num_pages=12, admit_output=1, prefix_cache=False)
    old, young = engine.add(prompt_of(8), max_tokens=28), engine.add(prompt_of(8, 1), max_tokens=28)
    engine.step()
    engine.sequences[young].num_preemptions = 2
    run_until(engine, lambda: old in engine.finishes)
    assert engine.sequences[old].num_preemptions == 0
    assert engine.sequences[young].num_preemptions == 3
    engine.run()
    engine.check_texts()


def test_a_young_sequence_pauses_and_never_displaces_an_older_one(make_engine):
    engine = make_engine(num_pages=8, admit_output=1, prefix_cache=False)
    old = engine.add(prompt_of(12), max_tokens=4)  # 4 pages, its whole need
    young = engine.add(prompt_of(4, 1), max_tokens=20)  # 6 pages in the end
    run_until(engine, lambda: old in engine.finishes)
    assert engine.sequences[old].num_preemptions == 0
    engine.run()
    assert engine.finishes[young] == "length"
    engine.check_texts()


def test_a_preempted_sequence_goes_on_from_what_it_left(make_engine):
    engine = make_engine()
    id = engine.add(prompt_of(6), max_tokens=20)
    run_until(engine, lambda: len(engine.texts[id]) == 11)
    engine.scheduler._preempt(engine.sequences[id])
    engine.step()
    assert engine.plans[-1].lengths[0].length == 16
    assert engine.sequences[id].num_cached == 0, "its prompt was read once"
    engine.run()
    engine.check_texts()


def test_a_preempted_sequence_never_reuses_its_tokens_in_other_roles(make_engine):
    engine = make_engine()
    id = engine.add(prompt_of(6), max_tokens=20)
    run_until(engine, lambda: len(engine.texts[id]) == 11)
    other = engine.add([*prompt_of(6), *engine.texts[id]], max_tokens=1)
    run_until(engine, lambda: other in engine.finishes)  # read as given, so found first
    engine.scheduler._preempt(engine.sequences[id])
    engine.run()
    engine.check_texts()


def test_an_evicted_reused_answer_is_computed_again_as_made(make_engine):
    engine = make_engine()
    first = engine.add(prompt_of(6), max_tokens=15)
    engine.run()
    second = engine.add([*prompt_of(6), *engine.texts[first]], max_tokens=20)
    engine.step()
    assert engine.sequences[second].num_cached == 20
    engine.scheduler._preempt(engine.sequences[second])
    while engine.index.evict():
        pass
    engine.run()
    engine.check_texts()
