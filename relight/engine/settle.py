"""What of a step counts: draws behind right guesses, and rows that may be found again. Knows no
model and no other sequence.
"""

from relight.engine.draft import Work
from relight.engine.holdings import Holdings
from relight.engine.plan import Drawn


def token_of(result: Drawn) -> int:
    return result if isinstance(result, int) else result.token


def kept(work: Work, drawn: list[Drawn]) -> list[Drawn]:
    """The draws of a step that count: each hangs on the guess before it being what was drawn."""
    right = 0
    while right < len(work.proposed) and token_of(drawn[right]) == work.proposed[right]:
        right += 1
    return drawn[: right + 1]


def commit_rows(holdings: Holdings, work: Work, end: int, is_fault: bool, *, lost: bool) -> None:
    """Tokens [0, end) are computed, unless nothing of the step is to be trusted (`lost`)."""
    sequence, take = work.sequence, work.take
    if take is not None and (is_fault or take.move.boundary > end):
        holdings.cancel(sequence, take)
        take = None
    if not lost:
        holdings.commit(sequence, end, take)
    if is_fault:
        sequence.distrusted = True
