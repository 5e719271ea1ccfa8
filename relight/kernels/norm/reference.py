"""The definition of norm."""

import torch
from torch import Tensor

from relight.kernels.invariant import inverse_rms, tree_sum


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, boundary: torch.dtype) -> Tensor:
    if weight is None and boundary == torch.bfloat16:
        return _unweighted_bf16(x.to(torch.bfloat16), eps)
    x = x.float()
    x = x * inverse_rms(x, eps)
    if weight is not None:
        x = x * weight
    return x.to(boundary)


def _unweighted_bf16(x: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) where each of the five results is rounded to bf16; only the sum
    inside the mean is float32."""
    mean = tree_sum((x * x).float(), -1).unsqueeze(-1) / x.shape[-1]
    return x * torch.rsqrt((mean.to(torch.bfloat16) + eps).float()).to(torch.bfloat16)
