"""How steps are run: one after the other, or each while the next is planned. Knows no scheduler."""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Protocol

from relight.engine.onethread import Call, OneThread
from relight.engine.plan import Result, StepPlan

Read = Callable[[], Iterable[Result]]
"""Waits for a step and returns what came of it. Raises what the step raised."""


class Runner(Protocol):
    """An exception fails the requests in the step; `Unavailable` says that there can be no further
    step."""

    def launch(self, plan: StepPlan) -> Any:
        """Begins a step, behind those that were launched before. Any thread may call it, one at a
        time."""
        ...

    def read(self, launched: Any) -> Iterable[Result]:
        """Waits until that step has ended; may be called from another thread than `launch`."""
        ...


class Skipped(Exception):
    """The step was not run, since one that was launched before it has failed."""


class Steps(Protocol):
    ahead: int
    """How many steps may be launched before the first of them is read."""

    def launch(self, plan: StepPlan) -> Read: ...

    def restart(self) -> None:
        """All steps have been read: what failed is told, and the next one runs again."""
        ...


class InTurn:
    """The slow form: a step runs when it is read, and nothing else meanwhile."""

    ahead = 0

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def launch(self, plan: StepPlan) -> Read:
        return lambda: self._runner.read(self._runner.launch(plan))

    def restart(self) -> None:
        pass


class Overlapped:
    """Steps are launched by a thread of their own, so that the caller plans the next one meanwhile.
    On a processor the step itself runs there; an accelerator gets it ahead of time. One that the
    thread has not begun when it is read is launched by who reads it."""

    ahead = 1

    def __init__(self, runner: Runner, executor: Executor | OneThread | None = None) -> None:
        self._runner = runner
        self._executor = executor or OneThread("step")
        self._failed = False

    def launch(self, plan: StepPlan) -> Read:
        return partial(self._read, self._executor.submit(self._launch, plan))

    def restart(self) -> None:
        self._failed = False

    def _launch(self, plan: StepPlan) -> Any:
        if self._failed:
            raise Skipped
        try:
            return self._runner.launch(plan)
        except BaseException:
            self._failed = True  # seen by the step behind, which is launched after this one
            raise

    def _read(self, launched: "Call | Future[Any]") -> Iterable[Result]:
        return self._runner.read(launched.result())
