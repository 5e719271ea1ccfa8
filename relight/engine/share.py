"""Parts the given rows of a step among the prompts that are read. Knows no page and no slot.

The oldest prompt gets half, or all that the others leave; the rest goes to the prompts with the
least left to read. While answers stream, what is parted is not only rows but time: given rows fill
a step up to `step_target_s`, so that no stream waits long for its next token. A prompt goes to the
next place where it must stop, as where a record is taken, in equal chunks: so none is a small rest.
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
    wants = [(s, _wanted(s)) for s in going if s.roles[s.planned] == GIVEN]
    if not wants:
        return {}
    making = [s for s in going if s.roles[s.planned] != GIVEN]
    num_made = sum(min(s.num_unread + len(s.proposal), limits.made_rows) for s in making)
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
    most = max(rows - rows // 2, rows - sum(want for _, want in others))
    if seconds == math.inf:
        shares = {oldest: min(wanted, most)}
        for sequence, wanted in sorted(others, key=_left):
            shares[sequence] = min(wanted, rows - sum(shares.values()))
        return shares
    theirs_s = sum(cost.rows_seconds(s.planned, want) for s, want in others)
    part_s = max(seconds / 2, seconds - theirs_s)
    within = max(cost.rows_within(part_s, oldest.planned), page_tokens)
    count = _chunk(wanted, within, most, page_tokens)
    shares = {oldest: count}
    seconds -= cost.rows_seconds(oldest.planned, count)
    for sequence, wanted in sorted(others, key=_left):
        rows -= count
        within = cost.rows_within(seconds, sequence.planned)
        shares[sequence] = count = _chunk(wanted, within, rows, page_tokens)
        seconds -= cost.rows_seconds(sequence.planned, count)
    return shares


def _chunk(wanted: int, within: int, most: int, page_tokens: int) -> int:
    """One of the equal chunks in which `wanted` rows are read with no more than `within` in each,
    or a little more if else they were shorter than a page; `most` at most."""
    within = min(within, most)
    if page_tokens <= within < wanted:
        num_chunks = min(-(-wanted // within), wanted // page_tokens)
        within = -(-wanted // num_chunks)
    return min(wanted, within, most)


def _left(pair: tuple[Sequence, int]) -> int:
    return pair[0].num_unread
