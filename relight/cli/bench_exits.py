"""The exit codes of the commands that measure. Knows no command."""

import functools
from collections.abc import Callable
from typing import ParamSpec

import typer

from relight.base.errors import RelightError
from relight.cli import show

EXITS = {"valid": 0, "invalid": 2, "incomplete": 3}
UNDECIDED = 3
COULD_NOT_RUN = 4

P = ParamSpec("P")


def judged(command: Callable[P, None]) -> Callable[P, None]:
    """Elsewhere a user's error is code 2; here that says that a result is invalid, so it is 4."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except RelightError as problem:
            show.error(problem.message)
            raise typer.Exit(COULD_NOT_RUN) from problem

    return run
