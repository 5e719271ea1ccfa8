"""The definition of experts: expert by expert, with the rows that chose it.

Which experts were chosen the host must look up, and on an accelerator wait for. Made rows are few
and computed one by one, so there they go choice by choice instead and nobody waits; for given rows
that would decode an expert for each of its rows.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.codec import StackedWeight, Weight, fp8_round
from relight.kernels.invariant import silu
from relight.kernels.peek import looks_are_free
from relight.kernels.product import multiply

BLOCK_ROWS = 16
"""Rows of a block of the prefill family: an expert has few rows, n * k / E on average."""

HELD_ROWS = 256


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
        return multiply(x, w, family, rows=BLOCK_ROWS).to(boundary)

    def rounded(x: Tensor, stack: StackedWeight) -> Tensor:
        return fp8_round(x, stack.act_block) if quantised and stack.act_block else x

    assert w1.act_block == w3.act_block, "the two products have one input"
    x = rounded(x, w1)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for group in _groups(_choices(ids, family)):
        inputs = [x.index_select(0, chosen.rows) for chosen in group]
        gate, up = (
            torch.cat([product(i, w.expert(c.expert)) for i, c in zip(inputs, group, strict=True)])
            for w in (w1, w3)
        )
        weight = torch.cat([weights[chosen.rows, chosen.slots] for chosen in group])
        hidden = rounded(swiglu(gate, up, limit, boundary, weight), w2)
        parts = hidden.split([len(chosen.rows) for chosen in group])
        for chosen, part in zip(group, parts, strict=True):
            out[chosen.rows] += product(part, w2.expert(chosen.expert)).float()
    return out


class Chosen(NamedTuple):
    """An expert and rows that chose it, each with the slot in which it did."""

    expert: int | Tensor
    rows: Tensor
    slots: Tensor


def _groups(choices: Iterator[Chosen]) -> Iterator[list[Chosen]]:
    """Choices of HELD_ROWS rows or a little more: between two products one operation serves all
    of a group, which for a few rows costs as little as for one."""
    group: list[Chosen] = []
    held = 0
    for chosen in choices:
        group.append(chosen)
        held += len(chosen.rows)
        if held >= HELD_ROWS:
            yield group
            group, held = [], 0
    if group:
        yield group


def _choices(ids: Tensor, family: Family) -> Iterator[Chosen]:
    """Every choice once, those of a row in ascending order of the expert, as is its sum. An expert
    is a tensor [1] where nobody looks."""
    if family == "step" and not looks_are_free(ids):
        rows, slots = (torch.arange(size, device=ids.device) for size in ids.shape)
        for i in range(ids.shape[0]):
            for j in range(ids.shape[1]):
                yield Chosen(ids[i, j : j + 1], rows[i : i + 1], slots[j : j + 1])
        return
    for number in ids.unique().tolist():
        yield Chosen(number, *torch.where(ids == number))


def swiglu(
    gate: Tensor, up: Tensor, limit: float, boundary: torch.dtype, weight: Tensor | None
) -> Tensor:
    hidden = silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)
    if weight is not None:
        hidden = hidden * weight.unsqueeze(1)
    return hidden.to(boundary)
