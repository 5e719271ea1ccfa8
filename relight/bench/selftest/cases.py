"""All cases in the order of their traps. Knows no terminal."""

import re

from relight.bench.selftest import kinds, loads, servers, streams
from relight.bench.selftest.harness import Case


def _order(case: Case) -> tuple[int, str]:
    number = re.match(r"T(\d+)", case.id)
    return (int(number[1]) if number else 0, case.id)


CASES = tuple(sorted((*streams.CASES, *servers.CASES, *loads.CASES, *kinds.CASES), key=_order))
