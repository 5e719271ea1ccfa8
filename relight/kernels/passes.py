"""Cuts rows into passes, so that what an op needs for a while does not grow with them. Knows no op.

Where a pass begins changes no bit: a row's do not hang on the rows around it.
"""

from collections.abc import Iterator

from relight.kernels.launch import MOST_ROWS

SCRATCH_BYTES = 32 * 2**20
"""Of a pass: less than the second cache of an H200 (50 MB), so that what one kernel leaves there
the next one finds. A pass still has many blocks for each processor: of the indexer 256 rows at
128K tokens, which are 4,096 blocks."""


def rows_of_a_pass(rows: int, bytes_a_row: int) -> int:
    """How many of so many rows, one at least."""
    return max(1, min(rows, MOST_ROWS, SCRATCH_BYTES // max(bytes_a_row, 1)))


def passes(rows: int, bytes_a_row: int) -> Iterator[slice]:
    """The rows of each pass, the first one the largest."""
    size = rows_of_a_pass(rows, bytes_a_row)
    return (slice(at, min(at + size, rows)) for at in range(0, rows, size))
