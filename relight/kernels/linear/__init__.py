"""Products with weights in their stored form. Knows no layer."""

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.check import FLOATS, expect, expect_boundary, expect_family
from relight.kernels.codec import FastLinear, Weight
from relight.kernels.linear import reference


def linear(x: Tensor, w: Weight, family: Family, quantised: bool, boundary: torch.dtype) -> Tensor:
    """x [n, K] times w [N, K] transposed -> [n, N] in `boundary`, float32 sums.

    With `quantised`, the input of an FP8 or FP4 weight is rounded to the FP8 grid in blocks of
    `w.act_block` first, as official inference does.
    """
    expect(x, "x", (None, w.shape[1]), FLOATS)
    expect_family(family)
    expect_boundary(boundary)
    kernels = _kernels(w, family)
    if kernels is not None and kernels.takes(x, w, quantised):
        return kernels.linear(x, w, boundary)
    return reference.linear(x, w, family, quantised, boundary)


def grouped(x: Tensor, w: Weight, family: Family, boundary: torch.dtype) -> Tensor:
    """x [n, G, K] times w [G * R, K], group by group -> [n, G, R] in `boundary`.

    The input is never quantised; with boundary bfloat16 both operands are rounded to bf16 first
    (official: the decoded bf16 weight in a bf16 einsum).
    """
    expect(x, "x", (None, None, w.shape[1]), FLOATS)
    assert w.shape[0] % x.shape[1] == 0, f"{w.shape[0]} outputs in {x.shape[1]} groups"
    expect_family(family)
    expect_boundary(boundary)
    kernels = _kernels(w, family)
    if kernels is not None and kernels.takes_groups(x, w, boundary):
        return kernels.grouped(x, w, boundary)
    return reference.grouped(x, w, family, boundary)


def _kernels(w: Weight, family: Family) -> FastLinear | None:
    return w.made if family == "step" else w.given
