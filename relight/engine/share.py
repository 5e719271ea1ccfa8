"""Parts the given rows of a step among the prompts that are read. Knows no page and no slot.

The oldest prompt gets half, or all that the others leave; the rest goes to the prompts with the
least left to read. While answers stream, what is parted is not only rows but time: given rows fill
a step up to `step_target_s`, so that no stream waits long for its next token.
"""

import math
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from relight.engine.cost import StepCost
from relight.engine.sequence import Sequence

READING_SHARE = 0.4
"""Of the time of a step, what given rows get at least, also where the other rows fill the target:
the oldest prompt keeps three tenths of the speed that it has alone, with costs known to 10 %."""


@dataclass(frozen=True, slots=True)
class Budget:
    """`rows` of a step, and the seconds that they may add; `least` rows go to the oldest prompt
    whatever they cost."""

    rows: int
    seconds: float
    least: int


def budget(
    cost: StepCost, num_made: int, target_s: float, max_rows: int, page_tokens: int
) -> Budget:
    """For a step with so many made rows; without any nobody streams, and only rows are bounded."""
    if not num_made:
        return Budget(max_rows, math.inf, 0)
    fixed_s = cost.step_s + cost.made_s * num_made
    floor_s = fixed_s * READING_SHARE / (1 - READING_SHARE)
    return Budget(max_rows, max(target_s - fixed_s, floor_s), min(page_tokens, max_rows))


def share(
    wants: Ordered[tuple[Sequence, int]], budget: Budget, cost: StepCost
) -> dict[Sequence, int]:
    """Given rows of each sequence, at most the number it wants; the oldest sequence comes first."""
    (oldest, wanted), *others = wants
    rows, seconds = budget.rows, budget.seconds
    first = min(wanted, max(rows - rows // 2, rows - sum(want for _, want in others)))
    if seconds < math.inf:
        theirs_s = sum(cost.rows_seconds(s.planned, want) for s, want in others)
        part_s = max(seconds / 2, seconds - theirs_s)
        first = min(first, max(cost.rows_within(part_s, oldest.planned), budget.least))
        seconds -= cost.rows_seconds(oldest.planned, first)
    shares = {oldest: first}
    rows -= first
    for sequence, wanted in sorted(others, key=_left):
        count = min(wanted, rows)
        if seconds < math.inf:
            count = min(count, cost.rows_within(seconds, sequence.planned))
            seconds -= cost.rows_seconds(sequence.planned, count)
        shares[sequence] = count
        rows -= count
    return shares


def _left(pair: tuple[Sequence, int]) -> int:
    return pair[0].num_unread
