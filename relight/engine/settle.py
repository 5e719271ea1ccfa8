"""Which draws of a step count: those behind right guesses. Knows no model and no other sequence."""

from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from itertools import islice

from relight.engine.draft import Work
from relight.engine.plan import Drawn


def token_of(result: Drawn) -> int:
    return result if isinstance(result, int) else result.token


def kept(work: Work, drawn: Iterator[Drawn]) -> Ordered[Drawn]:
    """Takes the draws for a sequence from those of a step, and returns those that count: each hangs
    on the guess before it being what was drawn."""
    if not work.proposed:
        return (next(drawn),) if work.draws else ()
    draws = list(islice(drawn, len(work.proposed) + 1))
    right = 0
    while right < len(work.proposed) and token_of(draws[right]) == work.proposed[right]:
        right += 1
    return draws[: right + 1]
