"""A thread that runs one call after the other, unless who waits for one comes first."""

import atexit
import gc
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from relight.engine import onethread
from relight.engine.onethread import OneThread


class Thing:
    pass


class NeverComes:
    """A thread that is slower to wake than anybody is to wait."""

    def __init__(self, **options: object) -> None:
        pass

    def start(self) -> None:
        pass


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> OneThread:
    with monkeypatch.context() as patch:
        patch.setattr(onethread, "Thread", NeverComes)
        patch.setattr(atexit, "register", lambda wait: None)
        return OneThread("asleep")


@pytest.fixture
def _threads_take_over_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_threads_take_over_often")
@pytest.mark.parametrize("behind", [0, 1, 3], ids="waited for {} behind".format)
@pytest.mark.parametrize("sleep_s", [None, 0.0, 1e-4], ids="asleep for {}".format)
def test_calls_run_in_their_order_and_never_two_at_once(behind: int, sleep_s: float | None) -> None:
    thread = OneThread("test")
    seen: list[int] = []
    running = 0

    def run(number: int) -> int:
        nonlocal running
        running += 1
        assert running == 1
        seen.append(number)
        if sleep_s is not None:
            time.sleep(sleep_s)
        assert running == 1
        running -= 1
        return number

    calls = []
    for number in range(300):
        calls.append(thread.submit(run, number))
        if number >= behind:
            assert calls[number - behind].result() == number - behind
    for number in range(300 - behind, 300):
        assert calls[number].result() == number
    assert seen == list(range(300))


def test_a_call_begins_though_nobody_waits_for_it() -> None:
    thread, begun = OneThread("test"), threading.Event()
    thread.submit(begun.set)
    assert begun.wait(20)


def test_a_call_that_the_thread_has_not_begun_runs_where_it_is_waited_for(
    sleeper: OneThread,
) -> None:
    seen: list[str] = []
    calls = [sleeper.submit(seen.append, name) for name in "abc"]
    calls[1].result()
    assert seen == ["a", "b"], "those before it, too, and none behind it"
    calls[0].result()
    calls[2].result()
    assert seen == ["a", "b", "c"]


def test_what_runs_is_waited_for_and_the_thread_goes_on() -> None:
    thread, begun, go_on = OneThread("test"), threading.Event(), threading.Event()

    def first() -> int:
        begun.set()
        assert go_on.wait(20)
        return threading.get_ident()

    calls = [thread.submit(first), thread.submit(threading.get_ident)]
    assert begun.wait(20)
    threading.Timer(0.05, go_on.set).start()
    assert calls[1].result() == calls[0].result() != threading.get_ident()


@pytest.mark.parametrize("asleep", [False, True])
def test_what_a_call_raises_is_raised_where_its_result_is_asked_for(
    sleeper: OneThread, asleep: bool
) -> None:
    thread = sleeper if asleep else OneThread("test")
    bad, good = thread.submit(int, "x"), thread.submit(int, "7")
    assert good.result() == 7, "the next one runs"
    with pytest.raises(ValueError, match="invalid literal"):
        bad.result()


@pytest.mark.parametrize("asleep", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_call_is_kept_when_it_is_over(
    sleeper: OneThread, fails: bool, asleep: bool
) -> None:
    def run(thing: Thing) -> None:
        if fails:
            raise ValueError(thing)

    gc.disable()  # so that it is not a cycle that the collector has to find
    try:
        thread, thing = sleeper if asleep else OneThread("test"), Thing()
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
        import sys, threading, time
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


def test_a_process_does_not_end_in_the_middle_of_a_call_that_runs_where_it_is_waited_for() -> None:
    """The thread is not given the interpreter before the call is waited for."""
    submit = (
        "sys.setswitchinterval(60); threading.Thread(daemon=True, target="
        "lambda: thread.submit(begin, lambda: time.sleep(0.3)).result()).start(); began.wait()"
    )
    assert at_the_end_of_a_process(submit) == "over\n"


def test_a_call_that_hangs_does_not_hold_up_the_end_of_its_process() -> None:
    submit = "thread.submit(begin, threading.Event().wait); began.wait()"
    assert at_the_end_of_a_process(submit, end_s=1) == ""


def test_the_end_of_a_process_waits_for_no_thread_that_has_ended() -> None:
    assert at_the_end_of_a_process("del thread") == ""
