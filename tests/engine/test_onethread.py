"""A thread that runs one call after the other."""

import gc
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest

from relight.engine.onethread import OneThread


class Thing:
    pass


def test_calls_run_in_their_order_in_one_other_thread() -> None:
    thread = OneThread("test")
    seen: list[tuple[int, int]] = []
    calls = [
        thread.submit(lambda i: seen.append((i, threading.get_ident())), i) for i in range(100)
    ]
    assert [call.result() for call in calls] == [None] * 100
    assert [number for number, _ in seen] == list(range(100))
    assert len({ident for _, ident in seen} | {threading.get_ident()}) == 2


def test_what_a_call_raises_is_raised_where_its_result_is_asked_for() -> None:
    thread = OneThread("test")
    bad, good = thread.submit(int, "x"), thread.submit(int, "7")
    assert good.result() == 7, "the thread goes on"
    with pytest.raises(ValueError, match="invalid literal"):
        bad.result()


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_call_is_kept_when_it_is_over(fails: bool) -> None:
    def run(thing: Thing) -> None:
        if fails:
            raise ValueError(thing)

    gc.disable()  # so that it is not a cycle that the collector has to find
    try:
        thread, thing = OneThread("test"), Thing()
        alive = weakref.ref(thing)
        call = thread.submit(run, thing)
        try:
            call.result()
        except ValueError:
            assert fails
        del call, thing
        thread.submit(int, "7").result()  # by then the thread has let go of the one before
        assert alive() is None
    finally:
        gc.enable()


def test_the_thread_ends_when_nobody_can_submit_any_more() -> None:
    thread = OneThread("of this test")
    mine = next(t for t in threading.enumerate() if t.name == "of this test")
    del thread
    mine.join(20)
    assert not mine.is_alive()


def at_the_end_of_a_process(submit: str, end_s: int = 600) -> str:
    """What is printed by a process that ends behind that."""
    program = f"""
        import threading, time
        from relight.engine import onethread
        onethread.END_S = {end_s}
        thread = onethread.OneThread("test")
        began = threading.Event()
        def begin(run):
            began.set()
            run()
            print("over", flush=True)
        {submit}
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_a_process_does_not_end_in_the_middle_of_a_call() -> None:
    submit = "thread.submit(begin, lambda: time.sleep(0.3)); began.wait()"
    assert at_the_end_of_a_process(submit) == "over\n"


def test_a_call_that_hangs_does_not_hold_up_the_end_of_its_process() -> None:
    submit = "thread.submit(begin, threading.Event().wait); began.wait()"
    assert at_the_end_of_a_process(submit, end_s=1) == ""


def test_the_end_of_a_process_waits_for_no_thread_that_has_ended() -> None:
    assert at_the_end_of_a_process("del thread") == ""
