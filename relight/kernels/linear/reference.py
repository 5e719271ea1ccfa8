"""The definition of linear: decode the weight, multiply in float32, round once."""

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.codec import Weight, fp8_round
from relight.kernels.invariant import matmul_rows


def linear(x: Tensor, w: Weight, family: Family, quantised: bool, boundary: torch.dtype) -> Tensor:
    x = fp8_round(x, w.act_block) if quantised and w.quantised else x.float()
    return matmul_rows(x, w.decode(), family).to(boundary)


def grouped(x: Tensor, w: Weight, family: Family, boundary: torch.dtype) -> Tensor:
    groups = x.shape[1]
    x = x.to(boundary).float()
    weights = w.decode().to(boundary).float().unflatten(0, (groups, -1))  # [G, R, K]
    parts = [matmul_rows(x[:, g], weights[g], family) for g in range(groups)]
    return torch.stack(parts, dim=1).to(boundary)
