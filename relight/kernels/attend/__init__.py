"""Attention of each row to keys listed for it, with one more logit per head, the sink, that has no
value. Keys are values. Knows no positions and no cache layout."""

from typing import Protocol

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.attend import reference
from relight.kernels.attend.keys import KEY_BLOCK as KEY_BLOCK
from relight.kernels.attend.keys import Keys as Keys
from relight.kernels.attend.keys import Turn as Turn
from relight.kernels.check import F32, FLOATS, expect, expect_boundary, expect_family


class FastAttend(Protocol):
    """Kernels, chosen at load for rows of a family."""

    def takes(self, q: Tensor, keys: Keys, boundary: torch.dtype) -> bool: ...

    def attend(
        self, q: Tensor, keys: Keys, sink: Tensor, scale: float, back: Turn | None
    ) -> Tensor: ...


def attend(
    q: Tensor,
    keys: Keys,
    sink: Tensor,
    scale: float,
    family: Family,
    boundary: torch.dtype,
    fast: FastAttend | None = None,
    back: Turn | None = None,
) -> Tensor:
    """q [n, H, D], sink [H] float32 -> [n, H, D] in `boundary`.

    p_j = exp(s_j - m) / (sum_j exp(s_j - m) + exp(sink - m)), s_j = scale * q . key_j, and the
    result is sum_j p_j key_j. The sums run over blocks of 64 keys in the order of `keys`. More
    blocks of -1 behind a list change no bit, and what a row does not list is never read. With
    boundary bfloat16 the numerators are rounded to bf16 for the weighted sum and unrounded in the
    denominator. A row without keys is zero. `back`: results are rotated by that, inversely.
    """
    n, heads, dim = q.shape
    expect(q, "q", (None, None, None), FLOATS)
    keys.check(n, dim)
    expect(sink, "sink", (heads,), F32)
    expect_family(family)
    expect_boundary(boundary)
    if fast is not None and fast.takes(q, keys, boundary):
        return fast.attend(q, keys, sink, scale, back)
    out = reference.attend(q, keys, sink, scale, family, boundary)
    return back.apart(out) if back else out
