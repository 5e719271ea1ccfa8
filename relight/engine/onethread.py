"""Runs one call after the other in a thread of its own. Knows no step.

As an executor of `concurrent.futures` with one worker does, without what a step has no use for:
cancelling, callbacks, waiting for several or not for long. That leaves one lock for each call, and
steps of few sequences take less time than an executor and its futures add to them.
"""

import atexit
import weakref
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any

END_S = 10.0
"""How long the end of the process waits for calls that were submitted."""


class Call:
    """One that was submitted."""

    def __init__(self, run: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._run = run
        self._args = args
        self._value: Any = None
        self._error: BaseException | None = None
        self._pending = Lock()
        self._pending.acquire()

    def go(self) -> None:
        try:
            self._value = self._run(*self._args)
        except BaseException as error:
            self._error = error
        self._pending.release()

    def result(self) -> Any:
        """Waits for it; to be asked for once. Raises what it raised."""
        self._pending.acquire()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return self._value
        finally:
            del error  # it knows this frame, so each would keep the other


class OneThread:
    """The thread ends when nobody can submit any more, or with the process. That waits for calls,
    since native code that comes back to an interpreter which is gone aborts the process."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()
        wait = partial(_wait, self._calls)
        atexit.register(wait)
        weakref.finalize(self, _leave, self._calls, wait).atexit = False

    def submit(self, run: Callable[..., Any], /, *args: Any) -> Call:
        call = Call(run, args)
        self._calls.put(call)
        return call


def _serve(calls: "SimpleQueue[Call | None]") -> None:
    while (call := calls.get()) is not None:
        call.go()
        del call  # so that what it returned is not kept until the next one comes


def _wait(calls: "SimpleQueue[Call | None]") -> None:
    """Until all calls are over; one that hangs must not hold up the end of the process for ever."""
    over = Event()
    calls.put(Call(over.set, ()))
    over.wait(END_S)


def _leave(calls: "SimpleQueue[Call | None]", wait: Callable[[], None]) -> None:
    """Nobody can submit any more."""
    atexit.unregister(wait)
    calls.put(None)
