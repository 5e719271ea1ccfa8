"""The definition of linear: decode the weight, multiply in float32, round once."""

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.codec import Weight
from relight.kernels.invariant import matmul_rows
from relight.kernels.product import multiply


def linear(x: Tensor, w: Weight, family: Family, quantised: bool, boundary: torch.dtype) -> Tensor:
    return multiply(x, w, family, quantised=quantised).to(boundary)


def grouped(x: Tensor, w: Weight, family: Family, boundary: torch.dtype) -> Tensor:
    groups = x.shape[1]
    x = x.to(boundary).float()
    weights = w.decode().to(boundary).float().unflatten(0, (groups, -1))  # [G, R, K]
    parts = [matmul_rows(x[:, g], weights[g], family) for g in range(groups)]
    return torch.stack(parts, dim=1).to(boundary)
