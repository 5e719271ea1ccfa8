"""What the log says of a request: one line, in which waiting, reading and making are apart."""

import logging

import pytest

from tests.engine.test_scheduler import prompt_of, run_until


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="relight.engine.loop")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_request_that_ends_is_one_line(make_engine, lines):
    """A step of this engine takes a second, and a tenth for each given row; a record is taken at
    eight, so reading takes two."""
    engine = make_engine(num_slots=1)
    engine.add(prompt_of(9), max_tokens=3)
    engine.add(prompt_of(9), max_tokens=3)
    engine.run()
    assert lines() == [
        "r0: 9 tokens = 0 reused + 9 read in 2900 ms after 0 ms queued; "
        "3 made in 2000 ms, 1.0/s; length",
        "r1: 9 tokens = 8 reused + 1 read in 1100 ms after 4900 ms queued; "
        "3 made in 2000 ms, 1.0/s; length",
    ]


def test_a_request_that_lost_its_slot_says_so(make_engine, lines):
    engine = make_engine(num_pages=15, admit_output=1, num_slots=5, prefix_cache=False)
    for seed in range(5):
        engine.add(prompt_of(4, seed), max_tokens=24)
    engine.run()
    assert len(lines()) == 5
    assert sum(", preempted 1x; length" in line for line in lines()) >= 1


def test_a_request_that_never_made_a_token_says_how_far_it_came(make_engine, lines):
    engine = make_engine(num_slots=1, max_step_tokens=4)
    reading = engine.add(prompt_of(20), max_tokens=3)
    waiting = engine.add(prompt_of(9), max_tokens=3)
    run_until(engine, lambda: engine.sequences[reading].computed >= 4)
    engine.abort(waiting)
    engine.abort(reading)
    engine.run()
    assert lines() == [
        "r1: abort in the queue, 9 tokens, after 1400 ms queued",
        "r0: abort while reading, 20 tokens, after 0 ms queued",
    ]
