"""The indexer: scores compressed entries with a light attention and selects the best. Knows no
cache layout and no attention over what it selects."""

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from relight.kernels.check import F32, I64, expect, expect_family
from relight.kernels.index import candidates as two_level
from relight.kernels.index import reference
from relight.kernels.index.reference import Asked as Asked
from relight.kernels.rows import Rows


class FastIndex(Protocol):
    """Kernels, chosen at load for rows of a family. Their functions are those of the definition."""

    def takes(self, q: Tensor, keys: Rows) -> bool: ...

    def select(self, asked: Asked, k: int, *, placed: bool) -> Tensor: ...

    def select_and_publish(
        self, asked: Asked, k: int, size: int, blocks: int, *, placed: bool
    ) -> tuple[Tensor, Tensor]: ...

    def select_within(
        self, asked: Asked, candidates: Tensor, k: int, size: int, *, placed: bool
    ) -> Tensor: ...


def select(asked: Asked, k: int, fast: FastIndex | None = None, *, placed: bool = False) -> Tensor:
    """The k best entries of each row -> [n, k] int64, ascending, -1 behind.

    The score of an entry is sum_h weights[h] * relu(q[h] . key), float32; ties go to the lowest
    entry. A row that sees at most k gets all of them. What no row sees may hold anything, and is in
    `keys`. Bits do not depend on how many entries places [S, E] lists. `placed`: what comes out
    are the places of these entries, of this and of those below.
    """
    _check(asked)
    if fast is not None and fast.takes(asked.q, asked.keys):
        return fast.select(asked, k, placed=placed)
    return _named(asked, reference.select(asked, k), placed)


def scores(asked: Asked) -> Tensor:
    """The scores that `select` ranks -> [n, E] float32, -inf where an entry is not visible."""
    _check(asked)
    return reference.scores(asked)


def select_and_publish(
    asked: Asked,
    k: int,
    size: int,
    blocks: int,
    fast: FastIndex | None = None,
    *,
    placed: bool = False,
) -> tuple[Tensor, Tensor]:
    """What `select` gives, and the best blocks of `size` entries of each row -> [n, blocks] int64,
    ascending, -1 behind.

    A block is worth its best visible entry; the block of a row's newest entry is always among
    them. Ties go to the lowest block. A row that sees at most `blocks` blocks gets all of them.
    """
    _check(asked)
    if fast is not None and fast.takes(asked.q, asked.keys):
        return fast.select_and_publish(asked, k, size, blocks, placed=placed)
    chosen, published = two_level.select_and_publish(asked, k, size, blocks)
    return _named(asked, chosen, placed), published


def select_within(
    asked: Asked,
    candidates: Tensor,
    k: int,
    size: int,
    fast: FastIndex | None = None,
    *,
    placed: bool = False,
) -> Tensor:
    """The k best entries of each row that lie in its `candidates` [n, blocks] int64, which are
    blocks of `size` entries (-1: none) -> [n, k] as of `select`. A row that sees at most k gets all
    of them."""
    _check(asked)
    expect(candidates, "candidates", (asked.rows, None), I64)
    if fast is not None and fast.takes(asked.q, asked.keys):
        return fast.select_within(asked, candidates, k, size, placed=placed)
    return _named(asked, two_level.select_within(asked, candidates, k, size), placed)


def _named(asked: Asked, entries: Tensor, placed: bool) -> Tensor:
    if not placed:
        return entries
    known = F.pad(asked.places, (0, 1), value=-1)  # where index -1 finds it
    return known[asked.sequence.unsqueeze(1), entries]


def _check(asked: Asked) -> None:
    n, heads, _ = asked.q.shape
    expect(asked.q, "q", (None, None, asked.keys.format.dim), F32)
    expect(asked.weights, "weights", (n, heads), F32)
    expect(asked.places, "places", (len(asked.counts), None), I64)
    assert sum(asked.counts) == n, f"counts sum to {sum(asked.counts)}; wanted {n} rows"
    expect(asked.sequence, "sequence", (n,), I64)
    expect(asked.visible, "visible", (n,), I64)
    expect_family(asked.family)
