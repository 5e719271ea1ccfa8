"""The definition of experts: expert by expert, with the rows that chose it.

Which experts were chosen only the device knows, and on an accelerator the host would wait to be
told. So there made rows, which are few and computed one by one, go choice by choice; given rows go
in tiles of TILE_ROWS rows of one expert, as many tiles as there can be.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.codec import StackedWeight, Weight, fp8_round
from relight.kernels.invariant import silu
from relight.kernels.peek import looks_are_free
from relight.kernels.product import multiply

BLOCK_ROWS = 16
"""Rows of a block of the prefill family: an expert has few rows, n * k / E on average."""

TILE_ROWS = 32
"""2,048 rows with 6 of 256 experts are 640 tiles: an expert is decoded 2.5 times, a tile is 60 %
full. Tiles of 16 would be 1,024, and those of 64 would compute 2.3 times the rows."""

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
    count = len(x)
    if family == "prefill" and not looks_are_free(ids):
        choices = _tiles(ids, len(w1.data))
        x, weights = F.pad(x, (0, 0, 0, 1)), F.pad(weights, (0, 0, 0, 1))
    else:
        choices = _choices(ids)
    x = rounded(x, w1)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for group in _groups(choices):
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
    return out[:count]


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


def _choices(ids: Tensor) -> Iterator[Chosen]:
    """Every choice once, those of a row in ascending order of the expert, as is its sum. An expert
    is a tensor [1] where nobody looks."""
    if not looks_are_free(ids):
        rows, slots = (torch.arange(size, device=ids.device) for size in ids.shape)
        for i in range(ids.shape[0]):
            for j in range(ids.shape[1]):
                yield Chosen(ids[i, j : j + 1], rows[i : i + 1], slots[j : j + 1])
        return
    for number in ids.unique().tolist():
        yield Chosen(number, *torch.where(ids == number))


def _tiles(ids: Tensor, num_experts: int) -> Iterator[Chosen]:
    """The same for ids [n, k], TILE_ROWS choices of one expert at a time, without a look. What is
    left of a tile stands for row n, which the caller adds and drops. No expert leaves more than one
    tile part full, so there are at most n k / TILE_ROWS and one for each expert."""
    n, k = ids.shape
    chosen, pair = ids.flatten().sort(stable=True)  # rows of an expert in ascending order
    pair = F.pad(pair, (0, 1), value=n * k)  # row n, slot 0
    numbers = torch.arange(num_experts, device=ids.device)
    first = torch.searchsorted(chosen, numbers)
    counts = torch.searchsorted(chosen, numbers, right=True) - first
    ends = ((counts + TILE_ROWS - 1) // TILE_ROWS).cumsum(0)
    bound = n * k // TILE_ROWS + min(num_experts, n * k)
    tile = torch.arange(bound, device=ids.device)
    expert = torch.searchsorted(ends, tile, right=True).clamp(max=num_experts - 1)
    before = F.pad(ends, (1, 0)).index_select(0, expert)  # tiles of the experts before
    within = (tile - before).unsqueeze(1) * TILE_ROWS + torch.arange(TILE_ROWS, device=ids.device)
    there = within < counts.index_select(0, expert).unsqueeze(1)  # none in tiles behind the last
    place = (first.index_select(0, expert).unsqueeze(1) + within).where(there, n * k)
    pairs = pair.index_select(0, place.flatten()).view_as(place)
    rows, slots = pairs // k, pairs % k
    for i in range(bound):
        yield Chosen(expert[i : i + 1], rows[i], slots[i])


def swiglu(
    gate: Tensor, up: Tensor, limit: float, boundary: torch.dtype, weight: Tensor | None
) -> Tensor:
    hidden = silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)
    if weight is not None:
        hidden = hidden * weight.unsqueeze(1)
    return hidden.to(boundary)
