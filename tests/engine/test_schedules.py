from collections import Counter

import pytest

from tests.engine.schedules import KINDS, run_schedule

SCHEDULES = 125
"""Of each kind; `tests/engine/schedules.py` runs as many as you like."""


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[str(kind) for kind in KINDS])
def test_no_schedule_changes_a_text(kind):
    seen = Counter()
    for number in range(SCHEDULES):
        run_schedule(number * len(KINDS) + kind, seen)
    # The schedules must reach what they are about.
    tight, reuse_generated, prefix_cache = KINDS[kind]
    wanted = {"abort", "error", "stop", "length"}
    wanted |= {"preempted", "computed again", "overtaken"} if tight else set()
    wanted |= {"cached", "shared"} if prefix_cache else set()
    wanted |= {"reused made"} if prefix_cache and reuse_generated else set()
    assert wanted <= {name for name, count in seen.items() if count}
    assert prefix_cache or not seen["cached"]
    assert reuse_generated or not seen["reused made"]
