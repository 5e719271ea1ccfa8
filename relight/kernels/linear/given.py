"""Products of given rows, launched on a CUDA device. Knows no layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from relight.kernels.build import Kernel
from relight.kernels.codec import Fp8Weight, Weight
from relight.kernels.forms import UNIT, Form
from relight.kernels.linear.cuda import BLOCKS, quantising
from relight.kernels.linear.step import MOST_FINE_SCALE, NAN_CODE, NAN_SCALE
from relight.kernels.tiles import Tile, narrow_tile, wide_tiles
from relight.kernels.toolbox import Toolbox

SOURCE = "linear/given.cu"

WHOLE = 128
"""Outputs of a group are a multiple of this, and so of the rows of any tile."""

OUTPUTS = 8
"""Results are written 16 bytes at a time."""

FEW_ROWS = 64
"""Up to here a wide tile would be half empty."""

ENOUGH_BLOCKS = 96
"""Wide tiles where so many of them keep a device's processors busy: V100 to H200 have 80 to 132."""


def objection(w: Weight) -> str:
    """Why a weight cannot go through these kernels; empty if it can."""
    return _objection_to_form(w) or (_objection_to_values(w) if isinstance(w, Fp8Weight) else "")


def _objection_to_form(w: Weight) -> str:
    fp8 = isinstance(w, Fp8Weight)
    if not fp8 and w.data.dtype != torch.bfloat16:
        return "it is neither FP8 nor bf16"
    if isinstance(w, Fp8Weight) and w.block not in BLOCKS:
        return f"its blocks are of {w.block}, not one of {BLOCKS}"
    if w.data.data_ptr() % 16 or not w.data.is_contiguous():
        return "its rows are not of whole 16 bytes in one piece"
    if isinstance(w, Fp8Weight) and (w.scale.data_ptr() % 4 or not w.scale.is_contiguous()):
        return "its scales are not of whole 4 bytes in one piece"
    for what, count, unit in (("rows", 0, OUTPUTS), ("columns", 1, UNIT[8 if fp8 else 16])):
        if w.shape[count] % unit:
            return f"it has {w.shape[count]} {what}, not a multiple of {unit}"
    return ""


def _objection_to_values(w: Fp8Weight) -> str:
    if bool((w.scale == NAN_SCALE).any()) or bool(((w.data & NAN_CODE) == NAN_CODE).any()):
        return "it holds NaN"
    if bool((w.scale > MOST_FINE_SCALE).any()):
        return "it has scales above 2^7"
    return ""


@dataclass(frozen=True, slots=True)
class Product:
    """A kernel, specialised but for sizes."""

    kernel: Kernel
    tile: Tile
    shared_bytes: int


def product(form: Form, tile: Tile, boundary_bf16: bool) -> Product:
    weights = f"fp8 by {tile.block}" if tile.format == 8 else "bf16"
    x = " x bf16" if (tile.format, tile.x_bytes) == (8, 2) else ""
    to = "bf16" if boundary_bf16 else "f32"
    by = " by groups" if tile.groups else ""
    name = f"given linear {weights}{x}{by} in {tile.rows} x {tile.tokens} to {to}"
    macros = (*tile.macros(quantising(form, tile.block)), ("Y_BF16", int(boundary_bf16)))
    shared = tile.shared_bytes(form, 2 if boundary_bf16 else 4)
    return Product(Kernel(name, SOURCE, "given_linear", macros), tile, shared)


class GivenLinear:
    """The prefill family of `linear` and `grouped` for weights without an `objection`."""

    def __init__(
        self, tools: Toolbox, enough_blocks: int = ENOUGH_BLOCKS, *, groups: bool | None = None
    ) -> None:
        """`groups`: warps multiply in groups of four, which decides bits; None: where they can."""
        self._tools = tools
        self._enough_blocks = enough_blocks
        self._groups = tools.form.groups if groups is None else groups

    def takes(self, x: Tensor, w: Weight, quantised: bool) -> bool:
        """Whether this call is one of those: the same for all rows of a call site."""
        if isinstance(w, Fp8Weight):
            return quantised
        return self._tools.form.bf16 and x.dtype == torch.bfloat16

    def takes_groups(self, x: Tensor, w: Weight, boundary: torch.dtype) -> bool:
        if not isinstance(w, Fp8Weight) or not self._tools.form.bf16:
            return False
        return w.shape[0] // x.shape[1] % WHOLE == 0 and x.dtype == boundary == torch.bfloat16

    def linear(self, x: Tensor, w: Weight, boundary: torch.dtype) -> Tensor:
        """x [n, K] -> [n, N] in `boundary`."""
        if isinstance(w, Fp8Weight):
            return self.multiply(*self.rounded(x, w), w, boundary)
        return self.multiply(x.contiguous(), None, w, boundary)

    def rounded(self, x: Tensor, w: Fp8Weight) -> tuple[Tensor, Tensor | None]:
        """x [n, K] on the grid of E4M3, as `multiply` takes it: codes and scales, or bf16 values,
        which are twice the bytes, but where a device has no instruction that decodes they save
        more operations (`cuda/tile.cuh`)."""
        form = self._tools.form
        if form.bf16 and (w.block == 32 or not form.converts_e4m3):
            return self._tools.round(x, w.block), None
        return self._tools.quantise(x, w.block)

    def multiply(
        self, x: Tensor, scales: Tensor | None, w: Weight, boundary: torch.dtype, groups: int = 1
    ) -> Tensor:
        """Of tokens [n, groups * K] that were rounded: [n, N], where N / groups outputs have
        their own K columns."""
        rows, (outputs, inner) = x.shape[0], w.shape
        y = torch.empty((rows, outputs), dtype=boundary, device=x.device)
        if rows == 0:
            return y
        made = product(
            self._tools.form,
            self._tile(rows, w, 2 if scales is None else 1, groups),
            boundary == torch.bfloat16,
        )
        launch = self._tools.load(made.kernel, made.tile.threads, made.shared_bytes)
        launch(
            (_count(rows, outputs, made.tile), 1),
            w.data,
            w.scale if isinstance(w, Fp8Weight) else None,
            x,
            scales,
            y,
            rows,
            outputs,
            inner,
            groups * inner,
            outputs // groups,
        )
        return y

    def grouped(self, x: Tensor, w: Weight, boundary: torch.dtype) -> Tensor:
        """x [n, G, K] bfloat16 -> [n, G, N / G] in `boundary`."""
        rows, groups = x.shape[:2]
        out = self.multiply(x.contiguous(), None, w, boundary, groups)
        return out.view(rows, groups, w.shape[0] // groups)

    def _tile(self, rows: int, w: Weight, x_bytes: int, groups: int) -> Tile:
        """Decides no bits. One that is half empty is none."""
        what = (8, x_bytes, w.block) if isinstance(w, Fp8Weight) else (16, x_bytes, 128)
        outputs = w.shape[0]
        for wide in wide_tiles(self._tools.form, *what, groups=self._groups):
            whole = groups == 1 or outputs // groups % wide.rows == 0
            full = whole and 2 * outputs > wide.rows and rows > FEW_ROWS
            if full and _count(rows, outputs, wide) >= self._enough_blocks:
                return wide
        return narrow_tile(*what, groups=self._groups)


def _count(rows: int, outputs: int, tile: Tile) -> int:
    """Of tiles."""
    return -(-rows // tile.tokens) * -(-outputs // tile.rows)


def kernels(form: Form) -> list[Kernel]:
    """Those of V4-Flash and V4.1-Flash with the boundaries that official numerics have there."""
    if not form.bf16:
        kinds = [(8, 1, block, False) for block in BLOCKS]
    else:
        codes = [(8, 1, 128, True)] if form.converts_e4m3 else []
        fp8 = [*codes, (8, 2, 128, True), (8, 2, 32, True)]
        kinds = [*fp8, (16, 2, 128, False), (16, 2, 128, True)]
    return [
        product(form, tile, boundary).kernel
        for *what, boundary in kinds
        for tile in (
            *wide_tiles(form, *what, groups=form.groups),
            narrow_tile(*what, groups=form.groups),
        )
    ]
