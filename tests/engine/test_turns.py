"""Who gets a slot next, when more wait than there are slots."""

from relight.engine.waiting import MAX_OVERTAKEN
from tests.engine.test_scheduler import prompt_of, run_until


def order_of_ends(engine):
    engine.run()
    return sorted(engine.finishes, key=lambda id: engine.sequences[id].ended_s)


def test_interactive_requests_go_before_batch_ones(make_engine):
    engine = make_engine(num_slots=1)
    batch = [engine.add(prompt_of(5, i), max_tokens=2, priority=1) for i in range(3)]
    quick = [engine.add(prompt_of(5, i), max_tokens=2) for i in range(3)]
    assert order_of_ends(engine) == quick + batch
    engine.check_texts()


def test_a_batch_request_waits_for_so_many_interactive_ones_and_no_more(make_engine):
    engine = make_engine(num_slots=1)
    batch = engine.add(prompt_of(5), max_tokens=2, priority=1)
    quick = [engine.add(prompt_of(5, i), max_tokens=2) for i in range(2 * MAX_OVERTAKEN)]
    assert order_of_ends(engine).index(batch) == MAX_OVERTAKEN
    assert len(engine.finishes) == 1 + len(quick)


def test_no_client_gets_more_than_its_share_while_another_waits(make_engine):
    """By tokens, a made one counting twice: a flood of requests does not help, nor do long ones."""
    engine = make_engine(num_slots=2, prefix_cache=False)
    for number in range(30):
        engine.add(prompt_of(8, number), max_tokens=8, client="flood")
    few = [engine.add(prompt_of(4, i), max_tokens=4, client="few") for i in range(10)]
    largest, widest = 8 + 2 * 8, 0
    served = engine.scheduler._turns._served
    start = None
    while not set(few) <= set(engine.finishes):
        engine.step()
        if start is None and any(engine.sequences[id].slot >= 0 for id in few):
            start = served["flood"] - served["few"]
        if any(engine.sequences[id].slot < 0 and id not in engine.finishes for id in few):
            widest = max(widest, abs(served["flood"] - served["few"]))
    assert start is not None
    assert widest <= 3 * largest, "two requests of one client and one of the other"
    engine.run()
    engine.check_texts()


def test_a_client_saves_nothing_up_while_it_is_idle(make_engine):
    engine = make_engine(num_slots=1)
    for number in range(10):
        engine.add(prompt_of(8, number), max_tokens=8, client="steady")
    run_until(engine, lambda: len(engine.finishes) == 5)
    late = [engine.add(prompt_of(8, i), max_tokens=8, client="late") for i in range(10)]
    run_until(engine, lambda: len(engine.finishes) == 15)
    assert 4 <= sum(id in engine.finishes for id in late) <= 6
    engine.run()


def test_clients_are_forgotten_when_there_are_too_many(make_engine):
    engine = make_engine(max_queue=3000)
    for number in range(1200):
        engine.add([1], max_tokens=1, client=f"client {number}")
    engine.run()
    assert len(engine.scheduler._turns._served) <= 1000
