"""Products with few rows, launched on a CUDA device. Knows no layer."""

import torch
from torch import Tensor

from relight.kernels.build import Kernel
from relight.kernels.codec import DenseWeight, Fp8Weight, Weight
from relight.kernels.forms import Walk
from relight.kernels.linear import cuda
from relight.kernels.toolbox import Toolbox

NAN_SCALE = 255
NAN_CODE = 127


def objection(w: Weight) -> str:
    """Why a weight cannot go through these kernels; empty if it can."""
    if w.data.data_ptr() % 16 or not w.data.is_contiguous():
        return "its rows are not of whole 16 bytes in one piece"
    if isinstance(w, Fp8Weight):
        if w.block != 128:
            return f"its blocks are of {w.block}, not 128"
        if w.shape[1] not in cuda.FP8_INNER:
            return f"its rows have {w.shape[1]} values, not one of {cuda.FP8_INNER}"
        if bool((w.scale == NAN_SCALE).any()) or bool(((w.data & NAN_CODE) == NAN_CODE).any()):
            return "it holds NaN"
        return ""
    if isinstance(w, DenseWeight) and w.data.dtype == torch.bfloat16:
        if w.shape[1] not in cuda.BF16_INNER:
            return f"its rows have {w.shape[1]} values, not one of {cuda.BF16_INNER}"
        return ""
    return "it is neither FP8 nor bf16"


class StepLinear:
    """The step family of `linear` and `grouped` for weights without an `objection`."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def takes(self, x: Tensor, w: Weight, quantised: bool) -> bool:
        """Whether this call is one of those: what it asks is the same for every row of a call
        site, so a row never meets another form for the company that it has."""
        if isinstance(w, Fp8Weight):
            return quantised and self._divides(w, cuda.fp8_walk(self._tools.form, w.shape[1], 1))
        bf16 = self._tools.form.bf16 and x.dtype == torch.bfloat16
        return bf16 and self._divides(w, cuda.bf16_walk(self._tools.form, w.shape[1], 1))

    def takes_groups(self, x: Tensor, w: Weight, boundary: torch.dtype) -> bool:
        if not isinstance(w, Fp8Weight) or not self._tools.form.bf16:
            return False
        walk = cuda.fp8_walk(self._tools.form, w.shape[1], 1, wide=True)
        whole = w.shape[0] // x.shape[1] % walk.block_rows == 0
        return whole and x.dtype == boundary == torch.bfloat16 and w.shape[1] == walk.inner

    def _divides(self, w: Weight, walk: Walk) -> bool:
        return w.shape[0] % walk.block_rows == 0

    def linear(self, x: Tensor, w: Weight, boundary: torch.dtype) -> Tensor:
        """x [n, K] -> [n, N] in `boundary`."""
        if isinstance(w, Fp8Weight):
            codes, scales = self._tools.quantise(x) if len(x) else (x, x)
            return self.multiply(codes, scales, w, boundary)
        assert isinstance(w, DenseWeight)
        bf16 = boundary == torch.bfloat16
        made = cuda.bf16(self._tools.form, w.shape[1], _tiles(x), bf16)
        return self._product(made, x.contiguous(), None, w.data, None, 1, boundary)

    def multiply(
        self, codes: Tensor, scales: Tensor, w: Fp8Weight, boundary: torch.dtype
    ) -> Tensor:
        """Of tokens that are quantised already, as `Toolbox.quantise` gives them."""
        bf16 = boundary == torch.bfloat16
        made = cuda.fp8(self._tools.form, w.shape[1], _tiles(codes), bf16)
        return self._product(made, codes, scales, w.data, w.scale, 1, boundary)

    def grouped(self, x: Tensor, w: Weight, boundary: torch.dtype) -> Tensor:
        """x [n, G, K] bfloat16 -> [n, G, N / G] in `boundary`."""
        assert isinstance(w, Fp8Weight)
        made = cuda.grouped(self._tools.form, w.shape[1], _tiles(x), boundary == torch.bfloat16)
        groups = x.shape[1]
        out = self._product(made, x.contiguous(), None, w.data, w.scale, groups, boundary)
        return out.view(len(x), groups, out.shape[1] // groups)

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
        grid = (outputs // walk.block_rows, -(-rows // (cuda.TILE_TOKENS * _tiles(x))))
        launch(grid, w, w_scale, x, scales, y, rows, outputs, groups * walk.inner, group_rows)
        return y


def _tiles(x: Tensor) -> int:
    """Of tokens: a second one is another column of the matrix unit and changes no bits."""
    return 1 if x.shape[0] <= cuda.TILE_TOKENS else 2
