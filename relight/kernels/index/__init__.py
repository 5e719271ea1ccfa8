"""The indexer: scores compressed entries with a light attention and selects the best. Knows no
cache layout and no attention over what it selects."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.check import F32, I64, expect, expect_family
from relight.kernels.index import candidates as two_level
from relight.kernels.index import reference
from relight.kernels.index.reference import Asked
from relight.kernels.rows import Rows


class FastIndex(Protocol):
    """Kernels for few rows, chosen at load. Their functions are those of the definition."""

    def takes(self, q: Tensor, keys: Rows) -> bool: ...

    def select(self, asked: Asked, k: int) -> Tensor: ...

    def select_and_publish(
        self, asked: Asked, k: int, size: int, blocks: int
    ) -> tuple[Tensor, Tensor]: ...

    def select_within(self, asked: Asked, candidates: Tensor, k: int, size: int) -> Tensor: ...


def select(
    q: Tensor,
    weights: Tensor,
    keys: Rows,
    places: Tensor,
    counts: Sequence[int],
    visible: Tensor,
    k: int,
    family: Family,
    fast: FastIndex | None = None,
) -> Tensor:
    """The k best entries of each row -> [n, k] int64, ascending, -1 behind.

    The score of an entry is sum_h weights[h] * relu(q[h] . key), float32; ties go to the lowest
    entry. q [n, h, d] and weights [n, h] float32; keys of entry e of sequence s are row places[s,
    e] of `keys`; the rows of a sequence follow each other, counts[s] of them; row i sees the first
    visible[i] entries. A row that sees at most k gets all of them. What no row sees may hold
    anything, and is in `keys`. Bits do not depend on how many
    entries places [s, E] lists.
    """
    asked = _asked(q, weights, keys, places, counts, visible, family)
    if fast is not None and family == "step" and fast.takes(q, keys):
        return fast.select(asked, k)
    return reference.select(asked, k)


def scores(
    q: Tensor,
    weights: Tensor,
    keys: Rows,
    places: Tensor,
    counts: Sequence[int],
    visible: Tensor,
    family: Family,
) -> Tensor:
    """The scores that `select` ranks -> [n, E] float32, -inf where an entry is not visible."""
    return reference.scores(_asked(q, weights, keys, places, counts, visible, family))


def select_and_publish(
    q: Tensor,
    weights: Tensor,
    keys: Rows,
    places: Tensor,
    counts: Sequence[int],
    visible: Tensor,
    k: int,
    size: int,
    blocks: int,
    family: Family,
    fast: FastIndex | None = None,
) -> tuple[Tensor, Tensor]:
    """What `select` gives, and the best blocks of `size` entries of each row -> [n, blocks] int64,
    ascending, -1 behind.

    A block is worth its best visible entry; the block of a row's newest entry is always among
    them. Ties go to the lowest block. A row that sees at most `blocks` blocks gets all of them.
    """
    asked = _asked(q, weights, keys, places, counts, visible, family)
    if fast is not None and family == "step" and fast.takes(q, keys):
        return fast.select_and_publish(asked, k, size, blocks)
    return two_level.select_and_publish(asked, k, size, blocks)


def select_within(
    q: Tensor,
    weights: Tensor,
    keys: Rows,
    places: Tensor,
    counts: Sequence[int],
    visible: Tensor,
    candidates: Tensor,
    k: int,
    size: int,
    family: Family,
    fast: FastIndex | None = None,
) -> Tensor:
    """The k best entries of each row that lie in its `candidates` [n, blocks] int64, which are
    blocks of `size` entries (-1: none) -> [n, k] as of `select`. A row that sees at most k gets all
    of them."""
    asked = _asked(q, weights, keys, places, counts, visible, family)
    expect(candidates, "candidates", (q.shape[0], None), I64)
    if fast is not None and family == "step" and fast.takes(q, keys):
        return fast.select_within(asked, candidates, k, size)
    return two_level.select_within(asked, candidates, k, size)


def _asked(
    q: Tensor,
    weights: Tensor,
    keys: Rows,
    places: Tensor,
    counts: Sequence[int],
    visible: Tensor,
    family: Family,
) -> Asked:
    """Checks them."""
    n, heads, _ = q.shape
    expect(q, "q", (None, None, keys.format.dim), F32)
    expect(weights, "weights", (n, heads), F32)
    expect(places, "places", (len(counts), None), I64)
    assert sum(counts) == n, f"counts sum to {sum(counts)}; wanted {n} rows"
    expect(visible, "visible", (n,), I64)
    expect_family(family)
    return Asked(q, weights, keys, places, counts, visible, family)
