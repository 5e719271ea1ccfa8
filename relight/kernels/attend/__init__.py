"""Attention of each row to keys listed for it, with one more logit per head, the sink, that has no
value. Keys are values. Knows no positions and no cache layout."""

from typing import Protocol

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.attend import reference
from relight.kernels.check import F32, FLOATS, I64, expect, expect_boundary, expect_family
from relight.kernels.rows import Rows

KEY_BLOCK = reference.KEY_BLOCK


class FastAttend(Protocol):
    """Kernels for few rows, chosen at load."""

    def takes(
        self, q: Tensor, window: Rows, entries: Rows | None, boundary: torch.dtype
    ) -> bool: ...

    def attend(
        self,
        q: Tensor,
        window: Rows,
        window_index: Tensor,
        entries: Rows | None,
        entry_index: Tensor | None,
        sink: Tensor,
        scale: float,
    ) -> Tensor: ...


def attend(
    q: Tensor,
    window: Rows,
    window_index: Tensor,
    entries: Rows | None,
    entry_index: Tensor | None,
    sink: Tensor,
    scale: float,
    family: Family,
    boundary: torch.dtype,
    fast: FastAttend | None = None,
) -> Tensor:
    """q [n, H, D] -> [n, H, D] in `boundary`.

    p_j = exp(s_j - m) / (sum_j exp(s_j - m) + exp(sink - m)), s_j = scale * q . key_j, and the
    result is sum_j p_j key_j. The keys of a row are rows window_index [n, W] int64 of `window`,
    then rows entry_index [n, C] of `entries`; -1 is no key; W and C are multiples of 64 and the
    sums run over blocks of 64 in that order. More blocks of -1 behind a list change no bit, and
    what a row does not list is never read. With boundary bfloat16 the numerators are rounded to
    bf16 for the weighted sum and unrounded in the denominator. A row without keys is zero.
    """
    n, heads, dim = q.shape
    expect(q, "q", (None, None, window.format.dim), FLOATS)
    expect(window_index, "window_index", (n, None), I64)
    expect(sink, "sink", (heads,), F32)
    assert window_index.shape[1] % KEY_BLOCK == 0, f"window_index has {window_index.shape[1]} keys"
    if entry_index is not None:
        assert entries is not None, "entry_index without entries"
        assert entries.format.dim == dim, f"entries have {entries.format.dim} dims; wanted {dim}"
        expect(entry_index, "entry_index", (n, None), I64)
        assert entry_index.shape[1] % KEY_BLOCK == 0, f"entry_index has {entry_index.shape[1]} keys"
    expect_family(family)
    expect_boundary(boundary)
    if fast is not None and family == "step" and fast.takes(q, window, entries, boundary):
        return fast.attend(q, window, window_index, entries, entry_index, sink, scale)
    return reference.attend(
        q, window, window_index, entries, entry_index, sink, scale, family, boundary
    )
