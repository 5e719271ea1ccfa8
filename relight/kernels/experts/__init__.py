"""Routed experts: gated feed-forward networks, each row through the ones chosen for it. Knows no
router."""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.check import F32, FLOATS, I64, expect, expect_boundary, expect_family
from relight.kernels.codec import StackedDense, StackedFp4, StackedFp8, StackedWeight
from relight.kernels.experts import reference
from relight.kernels.peek import ascending

__all__ = [
    "Experts",
    "StackedDense",
    "StackedFp4",
    "StackedFp8",
    "experts",
    "experts_apart",
    "in_order",
    "swiglu",
]


class FastExperts(Protocol):
    """Kernels for quantised rows of one family, handed to a layer's experts at load."""

    def experts(
        self,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        w1: StackedWeight,
        w3: StackedWeight,
        w2: StackedWeight,
        limit: float,
        boundary: torch.dtype,
    ) -> Tensor: ...

    def apart(
        self,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        w1: StackedWeight,
        w3: StackedWeight,
        w2: StackedWeight,
        limit: float,
        boundary: torch.dtype,
    ) -> Tensor:
        """`experts_apart`, with as many slots as there are sums left."""
        ...


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of one layer, in their stored form."""

    w1: StackedWeight  # gate [E, I, D]
    w3: StackedWeight  # up [E, I, D]
    w2: StackedWeight  # down [E, D, I]
    made: FastExperts | None = field(default=None, kw_only=True, repr=False)  # of made rows
    given: FastExperts | None = field(default=None, kw_only=True, repr=False)  # of given rows


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    stacks: Experts,
    limit: float,
    family: Family,
    quantised: bool,
    boundary: torch.dtype,
) -> Tensor:
    """x [n, D], ids [n, k] int64, weights [n, k] float32 -> float32 [n, D], the sum over slots.

    The ids of a row are strictly ascending, and the sum is taken in that order. Per expert: gate
    and up products in `boundary`, `swiglu` with the slot's weight, the down product in `boundary`;
    with `quantised` the inputs of packed weights are rounded to the FP8 grid first. Only experts
    that a row chose are decoded.
    """
    parts = (stacks.w1, stacks.w3, stacks.w2)
    kernels = _kernels(x, ids, weights, stacks, family, quantised, boundary)
    if kernels is not None:
        return kernels.experts(x, ids, weights, *parts, limit, boundary)
    return reference.experts(x, ids, weights, *parts, limit, family, quantised, boundary)


def experts_apart(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    stacks: Experts,
    limit: float,
    family: Family,
    quantised: bool,
    boundary: torch.dtype,
) -> Tensor:
    """`experts` before its sum is taken: float32 [n, slots, D], for `in_order`. How many slots
    there are hangs on who computes them."""
    parts = (stacks.w1, stacks.w3, stacks.w2)
    kernels = _kernels(x, ids, weights, stacks, family, quantised, boundary)
    if kernels is not None:
        return kernels.apart(x, ids, weights, *parts, limit, boundary)
    found = reference.experts(x, ids, weights, *parts, limit, family, quantised, boundary)
    return found.unsqueeze(1)


def in_order(parts: Tensor) -> Tensor:
    """parts [n, slots, D] -> [n, D]: their sum, in their order."""
    total = parts[:, 0]
    for slot in range(1, parts.shape[1]):
        total = total + parts[:, slot]
    return total


def _kernels(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    stacks: Experts,
    family: Family,
    quantised: bool,
    boundary: torch.dtype,
) -> FastExperts | None:
    n, k = ids.shape
    expect(x, "x", (n, None), FLOATS)
    expect(ids, "ids", (None, None), I64)
    expect(weights, "weights", (n, k), F32)
    assert ascending(ids), "the ids of a row are not strictly ascending"
    expect_family(family)
    expect_boundary(boundary)
    kernels = stacks.made if family == "step" else stacks.given
    return kernels if quantised else None


def swiglu(
    gate: Tensor,
    up: Tensor,
    limit: float,
    boundary: torch.dtype,
    weight: Tensor | None = None,
) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, ±limit) * weight, float32 inside: gate and up [n, I],
    weight [n] float32 -> [n, I] in `boundary`."""
    expect(gate, "gate", (None, None), FLOATS)
    expect(up, "up", gate.shape, FLOATS)
    if weight is not None:
        expect(weight, "weight", (gate.shape[0],), F32)
    assert limit > 0, f"limit is {limit}; wanted a positive number"
    expect_boundary(boundary)
    return reference.swiglu(gate, up, limit, boundary, weight)
