"""Runs one call after the other in a thread of its own, or where one is waited for that has not
begun. Knows no step.

As an executor of `concurrent.futures` with one worker does, without what a step has no use for:
cancelling, callbacks, waiting for several or not for long. And whoever waits does not sleep until
the thread has woken: to wake one takes up to 50 µs, there and back, and a step of few sequences
less. Beside calls that take longer than that, the thread begins each before anybody waits for it.
"""

import atexit
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any

END_S = 10.0
"""How long the end of the process waits for calls that were submitted."""


class Call:
    """One that was submitted."""

    def __init__(self, calls: "Calls", run: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._calls = calls
        self._run = run
        self._args = args
        self._value: Any = None
        self._error: BaseException | None = None
        self._pending = Lock()
        self._pending.acquire()

    @property
    def is_over(self) -> bool:
        return not self._pending.locked()

    def go(self) -> None:
        try:
            self._value = self._run(*self._args)
        except BaseException as error:
            self._error = error
        self._pending.release()

    def result(self) -> Any:
        """Waits for it; to be asked for once. Raises what it raised."""
        self._calls.hurry(self)
        self._pending.acquire()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return self._value
        finally:
            del error  # it knows this frame, so each would keep the other


class Calls:
    """Those that have not begun. Who has the turn takes them, in their order, and runs them."""

    def __init__(self) -> None:
        self._waiting: deque[Call] = deque()
        self._turn = Lock()
        self._signs: SimpleQueue[bool] = SimpleQueue()  # to go on; False: to leave

    def add(self, run: Callable[..., Any], args: tuple[Any, ...]) -> Call:
        call = Call(self, run, args)
        self._waiting.append(call)
        if self._signs.empty():  # else the thread has yet to look
            self._signs.put(True)
        return call

    def end(self) -> None:
        self._signs.put(False)

    def serve(self) -> None:
        while self._signs.get():
            with self._turn:
                while self._waiting:
                    self._waiting.popleft().go()

    def hurry(self, call: Call) -> None:
        """Runs it, and those before it, unless one of them runs: then the thread goes on to it."""
        if not call.is_over and self._turn.acquire(blocking=False):
            try:
                while not call.is_over:
                    self._waiting.popleft().go()
            finally:
                self._turn.release()


class OneThread:
    """The thread ends when nobody can submit any more, or with the process. That waits for calls,
    since native code that comes back to an interpreter which is gone aborts the process."""

    def __init__(self, name: str) -> None:
        self._calls = Calls()
        Thread(target=self._calls.serve, name=name, daemon=True).start()
        wait = partial(_wait, self._calls)
        atexit.register(wait)
        weakref.finalize(self, _leave, self._calls, wait).atexit = False

    def submit(self, run: Callable[..., Any], /, *args: Any) -> Call:
        return self._calls.add(run, args)


def _wait(calls: Calls) -> None:
    """Until all calls are over; one that hangs must not hold up the end of the process for ever."""
    over = Event()
    calls.add(over.set, ())
    over.wait(END_S)


def _leave(calls: Calls, wait: Callable[[], None]) -> None:
    """Nobody can submit any more."""
    atexit.unregister(wait)
    calls.end()
