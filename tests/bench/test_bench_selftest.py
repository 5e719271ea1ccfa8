"""Each trap is a case, and the measuring does with it what it must."""

import asyncio

import pytest

from relight.bench.selftest.cases import CASES
from relight.bench.selftest.harness import Case, Failed, measure, near, run_case, scenario
from relight.bench.selftest.script import Script

TRAPS = (
    *range(1, 5), 6, 7, *range(9, 13), *range(16, 22), 24, *range(26, 29), *range(31, 41)
)  # fmt: skip
"""Those that a client can meet."""


def test_every_trap_that_a_client_can_meet_has_a_case() -> None:
    assert {f"T{number}" for number in TRAPS} <= {case.id for case in CASES}
    assert len({case.id for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_trap(case: Case) -> None:
    passed, found = asyncio.run(run_case(case))
    assert passed, found


def test_a_case_that_does_not_hold_is_told() -> None:
    """The self-test can fail: a sound run is not rejected, and no wrong figure is near."""

    async def not_rejected() -> str:
        return (await measure(Script(), scenario())).must_be_rejected_by("T1")

    passed, found = asyncio.run(run_case(Case("x", "", "rejected", not_rejected)))
    assert (passed, found) == (False, "not rejected by ['T1']; found: valid")
    with pytest.raises(Failed, match=r"TTFT is 0\.3; scripted 0\.1 within"):
        near("TTFT", 0.3, 0.1)
