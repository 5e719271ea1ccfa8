"""Products of made rows, launched on a CUDA device. Knows no layer."""

import torch
from torch import Tensor

from relight.kernels.build import Kernel
from relight.kernels.codec import DenseWeight, Fp8Weight, Weight
from relight.kernels.cuts import objection as objection_to_length
from relight.kernels.forms import Walk
from relight.kernels.linear import cuda
from relight.kernels.linear.halves import Halves
from relight.kernels.toolbox import Toolbox

NAN_SCALE = 255
NAN_CODE = 127


MOST_DENSE = 255

MOST_FINE_SCALE = 134
"""2^7: what a bf16 multiply by 2^120 has room for (`FOLDED` of the source)."""


def objection(w: Weight) -> str:
    """Why a weight cannot go through these kernels; empty if it can."""
    return objection_to_form(w) or _objection_to_values(w)


def objection_to_form(w: Weight) -> str:
    """The same, of all but the values."""
    if w.data.data_ptr() % 16 or not w.data.is_contiguous():
        return "its rows are not of whole 16 bytes in one piece"
    if isinstance(w, Fp8Weight):
        if w.block not in cuda.BLOCKS:
            return f"its blocks are of {w.block}, not one of {cuda.BLOCKS}"
        if w.scale.data_ptr() % 4 or not w.scale.is_contiguous():
            return "its scales are not of whole 4 bytes in one piece"
        return objection_to_length(8, w.shape[1])
    if isinstance(w, DenseWeight) and w.data.dtype == torch.bfloat16:
        return objection_to_length(16, w.shape[1])
    return "it is neither FP8 nor bf16"


def _objection_to_values(w: Weight) -> str:
    if not isinstance(w, Fp8Weight):
        least, most = (float(one) for one in torch.aminmax(w.data))
        # Where an fp16 stands for a bf16 it is 2^8 times as large. A NaN fails, too.
        return "" if max(-least, most) < MOST_DENSE else f"it holds NaN or values of {MOST_DENSE}"
    if bool((w.scale == NAN_SCALE).any()) or bool(((w.data & NAN_CODE) == NAN_CODE).any()):
        return "it holds NaN"
    if w.block == 32 and bool((w.scale > MOST_FINE_SCALE).any()):
        return "it has scales above 2^7"
    return ""


class StepLinear:
    """The step family of `linear` and `grouped` for weights without an `objection`."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools
        self._halves = Halves(tools)

    def takes(self, x: Tensor, w: Weight, quantised: bool) -> bool:
        """Whether this call is one of those: what it asks is the same for every row of a call
        site, so a row never meets another form for the company that it has."""
        outputs, inner = w.shape
        if isinstance(w, Fp8Weight):
            walk = cuda.fp8_walk(self._tools.form, inner, 1, block=w.block, outputs=outputs)
            return quantised and self._divides(w, walk)
        fits = x.dtype == torch.bfloat16 or not self._tools.form.bf16
        return fits and self._divides(w, cuda.bf16_walk(self._tools.form, inner, 1, outputs))

    def takes_groups(self, x: Tensor, w: Weight, boundary: torch.dtype) -> bool:
        if not isinstance(w, Fp8Weight):
            return False
        dtype = torch.bfloat16 if self._tools.form.bf16 else torch.float32
        walk = cuda.fp8_walk(self._tools.form, w.shape[1], 1, wide=True, block=w.block)
        whole = w.shape[0] // x.shape[1] % walk.block_rows == 0
        return whole and x.dtype == boundary == dtype

    def _divides(self, w: Weight, walk: Walk) -> bool:
        return w.shape[0] % walk.block_rows == 0

    def linear(self, x: Tensor, w: Weight, boundary: torch.dtype) -> Tensor:
        """x [n, K] -> [n, N] in `boundary`."""
        if isinstance(w, Fp8Weight):
            if self._rounds(x, w):
                return self.multiply(x.contiguous(), None, w, boundary)
            return self.multiply(*self.rounded(x, w), w, boundary)
        assert isinstance(w, DenseWeight)
        x, to, scale = self._operands(x, 1, boundary)
        outputs, inner = w.shape
        bf16 = to == torch.bfloat16
        made = cuda.bf16(self._tools.form, inner, _tiles(x), bf16, outputs)
        y = self._product(made, x, None, w.data, None, 1, to)
        return y if scale is None else self._halves.join(y, scale).to(boundary)

    def rounded(self, x: Tensor, w: Fp8Weight) -> tuple[Tensor, Tensor]:
        """x [n, K] on the grid of E4M3, as `multiply` takes it: codes and scales."""
        return self._tools.quantise(x, w.block)

    def _rounds(self, x: Tensor, w: Fp8Weight) -> bool:
        """Whether the product rounds these tokens itself, with the same bits."""
        fits = cuda.rounds_tokens(self._tools.form, w.shape[1], _tiles(x))
        known = self._tools.handed_over(x, w.block)
        return fits and x.dtype == torch.bfloat16 and known is None

    def multiply(
        self, x: Tensor, scales: Tensor | None, w: Fp8Weight, boundary: torch.dtype
    ) -> Tensor:
        """Of tokens that were rounded, or without scales of bf16 ones that `_rounds` tells of."""
        bf16, rounds = boundary == torch.bfloat16, scales is None
        outputs, inner = w.shape
        form, tiles = self._tools.form, _tiles(x)
        made = cuda.fp8(form, inner, tiles, bf16, w.block, outputs, rounds=rounds)
        return self._product(made, x, scales, w.data, w.scale, 1, boundary)

    def grouped(self, x: Tensor, w: Weight, boundary: torch.dtype) -> Tensor:
        """x [n, G, K] -> [n, G, N / G] in `boundary`."""
        assert isinstance(w, Fp8Weight)
        n, groups, _ = x.shape
        x, to, scale = self._operands(x.flatten(1), groups, boundary)
        bf16 = to == torch.bfloat16
        made = cuda.grouped(self._tools.form, w.shape[1], _tiles(x), bf16, w.block)
        y = self._product(made, x, None, w.data, w.scale, groups, to)
        y = y if scale is None else self._halves.join(y, scale).to(boundary)
        return y.view(n, groups, y.shape[1] // groups)

    def _operands(
        self, x: Tensor, groups: int, boundary: torch.dtype
    ) -> tuple[Tensor, torch.dtype, Tensor | None]:
        """Tokens [n, groups * K] that are not rounded as the matrix unit takes them, what it gives,
        and the scales to join that by, if they were split."""
        if self._tools.form.bf16:
            return x.contiguous(), boundary, None
        parts, scale = self._halves.split(x.float().contiguous(), groups)
        return parts, torch.float32, scale

    def _product(
        self,
        made: tuple[Kernel, Walk],
        x: Tensor,
        scales: Tensor | None,
        w: Tensor,
        w_scale: Tensor | None,
        groups: int,
        boundary: torch.dtype,
    ) -> Tensor:
        rows, outputs = x.shape[0], w.shape[0]
        y = torch.empty((rows, outputs), dtype=boundary, device=x.device)
        if rows == 0:
            return y
        launch, walk = self._tools.load_walk(made)
        group_rows = outputs // groups
        assert group_rows % walk.block_rows == 0, f"{group_rows} outputs in a group"
        blocks = outputs // walk.block_rows * walk.peers
        grid = (blocks, -(-rows // (cuda.TILE_TOKENS * _tiles(x))))
        launch(grid, w, w_scale, x, scales, y, rows, outputs, groups * walk.inner, group_rows)
        return y


def _tiles(x: Tensor) -> int:
    """Of tokens: a second one is another column of the matrix unit and changes no bits."""
    return 1 if x.shape[0] <= cuda.TILE_TOKENS else 2
