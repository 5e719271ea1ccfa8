"""Parts the given rows of a step among the prompts that are read. Knows no page and no slot.

The oldest prompt gets half, or all that the others leave; the rest goes to the prompts with the
least left to read. While answers stream, what is parted is not only rows but time: given rows fill
a step up to `step_target_s`, so that no stream waits long for its next token. Then chunks end where
pages do: records are taken there, so what is left before one is never less than a page.
"""

import math
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from relight.cache.prefix import GIVEN
from relight.engine.admission import Limits
from relight.engine.cost import StepCost
from relight.engine.sequence import Sequence

READING_SHARE = 0.4
"""Of the time of a step, what given rows get at least, also where the other rows fill the target:
the oldest prompt keeps three tenths of the speed that it has alone, with costs known to 10 %."""


@dataclass(frozen=True, slots=True)
class Budget:
    """`rows` of a step, and the seconds that they may add, where the oldest prompt gets a page
    whatever that costs."""

    rows: int
    seconds: float = math.inf


def share_rows(
    going: Ordered[Sequence], limits: Limits, cost: StepCost, page_tokens: int
) -> dict[Sequence, int]:
    """Given rows of those of the sequences, the oldest first, whose next tokens are given."""
    wants, num_made = [], 0
    for sequence in going:
        if sequence.roles[sequence.planned] == GIVEN:
            wants.append((sequence, _wanted(sequence)))
        else:
            num_made += min(sequence.num_unread, limits.made_rows)
    if not wants:
        return {}
    parts = budget(cost, num_made, limits.step_target_s, limits.max_step_tokens)
    return share(wants, parts, cost, page_tokens)


def _wanted(sequence: Sequence) -> int:
    """Given rows that may follow without a stop: to the end of the run or to a record."""
    _, end = sequence.run()
    if sequence.boundaries:
        end = min(end, sequence.boundaries[-1])
    return end - sequence.planned


def budget(cost: StepCost, num_made: int, target_s: float, max_rows: int) -> Budget:
    """For a step with so many made rows; without any nobody streams, and only rows are bounded."""
    if not num_made:
        return Budget(max_rows)
    fixed_s = cost.step_s + cost.made_s * num_made
    floor_s = fixed_s * READING_SHARE / (1 - READING_SHARE)
    return Budget(max_rows, max(target_s - fixed_s, floor_s))


def share(
    wants: Ordered[tuple[Sequence, int]], budget: Budget, cost: StepCost, page_tokens: int
) -> dict[Sequence, int]:
    """Given rows of each sequence, at most the number it wants; the oldest sequence comes first."""
    (oldest, wanted), *others = wants
    rows, seconds = budget.rows, budget.seconds
    within = max(rows - rows // 2, rows - sum(want for _, want in others))
    first = min(wanted, within)
    if seconds < math.inf:
        start = oldest.planned
        theirs_s = sum(cost.rows_seconds(s.planned, want) for s, want in others)
        part_s = max(seconds / 2, seconds - theirs_s)
        page = -(-start // page_tokens) * page_tokens + page_tokens - start  # a whole one at least
        within = min(within, max(cost.rows_within(part_s, start), page))
        first = _whole(start, wanted, within, page_tokens)
        seconds -= cost.rows_seconds(start, first)
    shares = {oldest: first}
    rows -= first
    for sequence, wanted in sorted(others, key=_left):
        count = min(wanted, rows)
        if seconds < math.inf:
            start = sequence.planned
            within = min(rows, cost.rows_within(seconds, start))
            count = _whole(start, wanted, within, page_tokens)
            seconds -= cost.rows_seconds(start, count)
        shares[sequence] = count
        rows -= count
    return shares


def _whole(start: int, wanted: int, within: int, page_tokens: int) -> int:
    """All that is `wanted` if it is `within` the budget, else no more than that: rows from `start`
    to where a page ends, if one does."""
    if wanted <= within:
        return wanted
    end = (start + within) // page_tokens * page_tokens
    return end - start if end > start else within


def _left(pair: tuple[Sequence, int]) -> int:
    return pair[0].num_unread
