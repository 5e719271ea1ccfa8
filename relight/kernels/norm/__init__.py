"""Root-mean-square normalisation. Knows no layer."""

import torch
from torch import Tensor

from relight.kernels.check import F32, FLOATS, expect, expect_boundary
from relight.kernels.norm import reference


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, boundary: torch.dtype) -> Tensor:
    """x [n, .., d] -> x / sqrt(mean(x^2) + eps) * weight [d], the same shape in `boundary`.

    Float32 inside with one rounding at the end. Without a weight it is V4's norm of query heads,
    which official code computes in bf16: with boundary bfloat16 every step is rounded to bf16.
    """
    assert x.dim() >= 2, f"x has shape {tuple(x.shape)}; wanted [n, .., d]"
    assert x.dtype in FLOATS, f"x is {x.dtype}; wanted one of {FLOATS}"
    if weight is not None:
        expect(weight, "weight", (x.shape[-1],), F32)
    expect_boundary(boundary)
    return reference.rms_norm(x, weight, eps, boundary)
