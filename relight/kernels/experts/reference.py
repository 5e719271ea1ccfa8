"""The definition of experts: expert by expert, with the rows that chose it."""

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.codec import StackedWeight, Weight
from relight.kernels.invariant import silu
from relight.kernels.product import multiply

BLOCK_ROWS = 16
"""Rows of a block of the prefill family: an expert has few rows, n * k / E on average."""


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w1: StackedWeight,
    w3: StackedWeight,
    w2: StackedWeight,
    limit: float,
    family: Family,
    quantised: bool,
    boundary: torch.dtype,
) -> Tensor:
    def product(x: Tensor, w: Weight) -> Tensor:
        return multiply(x, w, family, quantised=quantised, rows=BLOCK_ROWS).to(boundary)

    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in ids.unique().tolist():  # ascending, and so is each row's sum
        rows, slots = torch.where(ids == expert)
        chosen = x[rows]
        gate = product(chosen, w1.expert(expert))
        up = product(chosen, w3.expert(expert))
        hidden = swiglu(gate, up, limit, boundary, weights[rows, slots])
        out[rows] += product(hidden, w2.expert(expert)).float()
    return out


def swiglu(
    gate: Tensor, up: Tensor, limit: float, boundary: torch.dtype, weight: Tensor | None
) -> Tensor:
    hidden = silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)
    if weight is not None:
        hidden = hidden * weight.unsqueeze(1)
    return hidden.to(boundary)
