"""The definition of experts: expert by expert, with the rows that chose it.

Which experts were chosen the host must look up, and on an accelerator wait for. Made rows are few
and computed one by one, so there they go choice by choice instead and nobody waits; for given rows
that would decode an expert for each of its rows.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.codec import StackedWeight, Weight
from relight.kernels.invariant import silu
from relight.kernels.peek import looks_are_free
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
    for expert, rows, slots in _choices(ids, family):
        chosen = x[rows]
        gate = product(chosen, w1.expert(expert))
        up = product(chosen, w3.expert(expert))
        hidden = swiglu(gate, up, limit, boundary, weights[rows, slots])
        out[rows] += product(hidden, w2.expert(expert)).float()
    return out


def _choices(ids: Tensor, family: Family) -> Iterator[tuple[int | Tensor, Tensor, Tensor]]:
    """Expert, rows [m], slots [m]: every choice once, those of a row in ascending order of the
    expert, as is its sum. An expert is a tensor [1] where nobody looks."""
    if family == "step" and not looks_are_free(ids):
        rows, slots = (torch.arange(size, device=ids.device).split(1) for size in ids.shape)
        for row, of_row in zip(rows, ids, strict=True):
            for slot, expert in zip(slots, of_row.split(1), strict=True):
                yield expert, row, slot
        return
    for number in ids.unique().tolist():
        yield number, *torch.where(ids == number)


def swiglu(
    gate: Tensor, up: Tensor, limit: float, boundary: torch.dtype, weight: Tensor | None
) -> Tensor:
    hidden = silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)
    if weight is not None:
        hidden = hidden * weight.unsqueeze(1)
    return hidden.to(boundary)
