"""Pools the rows of a group of tokens into one entry. Knows no ring and no layer."""

import torch
from torch import Tensor

from relight.kernels.check import F32, expect, expect_boundary
from relight.kernels.compress import reference


def pool(values: Tensor, gates: Tensor, norm: Tensor, eps: float, boundary: torch.dtype) -> Tensor:
    """values and gates [g, m, d] float32, norm [d] float32 -> [g, d] in `boundary`.

    Per channel the softmax of the gates over the m members weighs the values; the sum is rounded to
    `boundary` and then normed. A member is absent where its gate is -inf, whatever its value; a
    channel without any member is NaN.
    """
    expect(values, "values", (None, None, None), F32)
    expect(gates, "gates", values.shape, F32)
    expect(norm, "norm", (values.shape[2],), F32)
    expect_boundary(boundary)
    return reference.pool(values, gates, norm, eps, boundary)
