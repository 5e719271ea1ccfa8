"""The definition of compress."""

import torch
from torch import Tensor

from relight.kernels.invariant import inverse_rms, tree_sum


def pool(values: Tensor, gates: Tensor, norm: Tensor, eps: float, boundary: torch.dtype) -> Tensor:
    powers = torch.exp(gates - gates.amax(1, keepdim=True))
    shares = powers / tree_sum(powers, 1).unsqueeze(1)
    present = values.masked_fill(gates.isneginf(), 0.0)
    entry = tree_sum(shares * present, 1).to(boundary).float()
    return (entry * inverse_rms(entry, eps) * norm).to(boundary)
