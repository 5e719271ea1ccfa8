"""Routed experts of made rows, launched on a CUDA device. Knows no router."""

import torch
from torch import Tensor

from relight.kernels.codec import StackedFp4, StackedWeight
from relight.kernels.experts import cuda
from relight.kernels.toolbox import Toolbox

NAN_SCALE = 255
LARGEST_SCALE = 253
"""Of the kernels; 254 is 2^127, which nothing but zero survives, and 255 is NaN."""


def objection(w1: StackedWeight, w3: StackedWeight, w2: StackedWeight) -> str:
    """Why these experts cannot go through these kernels; empty if they can."""
    if problem := objection_to_form(w1, w3, w2):
        return problem
    if any(
        isinstance(w, StackedFp4) and bool((w.scale > LARGEST_SCALE).any()) for w in (w1, w3, w2)
    ):
        return "they hold NaN, or scales of 2^127"
    return ""


def objection_to_form(w1: StackedWeight, w3: StackedWeight, w2: StackedWeight) -> str:
    """The same, of all but the values."""
    for w in (w1, w3, w2):
        if not isinstance(w, StackedFp4):
            return "they are not FP4"
        if w.act_block not in cuda.ACT_BLOCKS:
            blocks = f"blocks of {w.act_block}, not one of {cuda.ACT_BLOCKS}"
            return f"their inputs are rounded in {blocks}"
        if w.data.data_ptr() % 16 or w.scale.data_ptr() % 8:
            return "they do not begin at whole 16 bytes"
        if not (w.data.is_contiguous() and w.scale.is_contiguous()):
            return "they are not in one piece"
    return cuda.objection_to_widths(2 * w1.data.shape[2], 2 * w2.data.shape[2])


class StepExperts:
    """The step family of `experts`, quantised, for stacks without an `objection`."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

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
    ) -> Tensor:
        """As `experts.experts`: x [n, D], ids [n, k], weights [n, k] -> float32 [n, D]."""
        parts = self.apart(x, ids, weights, w1, w3, w2, limit, boundary)
        return self._tools.sum_slots(parts)

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
        """As `experts_apart` -> [n, k, D]."""
        assert isinstance(w1, StackedFp4)
        assert isinstance(w3, StackedFp4)
        assert isinstance(w2, StackedFp4)
        codes, scales = self._tools.quantise(x, w1.act_block)
        found = scales.new_empty((*ids.shape, w2.data.shape[1]))
        for at in range(0, x.shape[0], cuda.MOST_TOKENS):
            part = slice(at, at + cuda.MOST_TOKENS)
            chosen = (ids[part].contiguous(), weights[part].contiguous())
            how = (float(limit), boundary == torch.bfloat16)
            self._few(codes[part], scales[part], *chosen, (w1, w3, w2), *how, found[part])
        return found

    def _few(
        self,
        codes: Tensor,
        scales: Tensor,
        ids: Tensor,
        route: Tensor,
        stacks: tuple[StackedFp4, StackedFp4, StackedFp4],
        limit: float,
        bf16: bool,
        down: Tensor,
    ) -> None:
        """Writes down [n, k, D]."""
        tools, (w1, w3, w2) = self._tools, stacks
        (rows, slots), pairs = ids.shape, ids.numel()
        inner, width = w1.data.shape[1], w2.data.shape[1]
        hidden = scales.new_empty((pairs, inner))
        few, tiles = rows <= cuda.FEW_ROWS, cuda.tiles_of_block(rows)
        launch, walk = tools.load_walk(cuda.gate_up(tools.form, width, bf16, w1.act_block, few=few))
        launch(
            (-(-inner // (walk.block_rows * tiles)), pairs),
            w1.data,
            w3.data,
            w1.scale,
            w3.scale,
            codes,
            scales,
            ids,
            route,
            hidden,
            pairs,
            slots,
            inner,
            tiles,
            limit,
        )
        tokens: tuple[Tensor, Tensor | None] = hidden, None
        if not cuda.rounds(tools.form):
            tokens = tools.quantise(hidden, w2.act_block)
        launch, walk = tools.load_walk(cuda.down(tools.form, inner, bf16, w2.act_block, few=few))
        grid = (-(-width // (walk.block_rows * tiles)), pairs)
        launch(grid, w2.data, w2.scale, *tokens, ids, down, pairs, width, tiles)
