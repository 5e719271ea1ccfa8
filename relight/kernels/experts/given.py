"""Routed experts of given rows, launched on a CUDA device. Knows no router, and not whether it is
chosen.

The host never learns which experts were chosen: pairs (a row with one of its slots) are put in
order on the device, and the grid is as large as tiles can be many; blocks without a tile leave.
"""

from dataclasses import replace

import torch
from torch import Tensor

from relight.kernels.block import plain, short
from relight.kernels.build import Kernel, Macros
from relight.kernels.codec import StackedFp4, StackedWeight
from relight.kernels.experts.step import NAN_SCALE
from relight.kernels.forms import Form
from relight.kernels.launch import Launch
from relight.kernels.toolbox import Toolbox

SOURCE, AROUND = "experts/given.cu", "experts/group.cu"

TILE_PAIRS, TILE_OUTPUTS, THREADS = 64, 256, 256
"""TOKENS, ROWS and THREADS of the source."""

UNIT = 128
"""Values of K that are asked for at once, and hidden values of a row that a block makes and
rounds."""

ACT_BLOCKS = (128, 32)
"""Values of a token that share a scale: V4's and V4.1's."""

MOST_EXPERTS = 1024
SPREAD = 24
"""Of the scales of a row, in powers of two: E2M1 times 2^(1 - 24) still is an fp16."""

MOST_ROWS = 8192
"""Of a pass. The more rows an expert has, the fewer of a tile's columns are empty: with 6 of 256
experts 192 pairs of each are 3 to 4 tiles; with 2,048 rows 48 are one. Weights, 3.4 GB of a layer
of V4-Flash, leave memory once a pass."""

DOWN_BYTES = 128 * 2**20
"""What the down product leaves before slots are summed: at most so much at once, so with many rows
it goes by parts of its outputs. Beside it a pass of 8,192 rows of V4-Flash holds 104 MB of hidden
rows and 35 MB of rounded input."""


Hidden = tuple[Tensor, ...]
"""Hidden rows of all pairs, as the down product takes them."""


def objection(w1: StackedWeight, w3: StackedWeight, w2: StackedWeight) -> str:
    """Why these experts cannot go through these kernels; empty if they can."""
    for w in (w1, w3, w2):
        if not isinstance(w, StackedFp4):
            return "they are not FP4"
        if w.act_block not in ACT_BLOCKS or w.act_block != w1.act_block:
            blocks = f"blocks of {w.act_block}, not all of one of {ACT_BLOCKS}"
            return f"their inputs are rounded in {blocks}"
        count, rows, packed = w.data.shape
        if count > MOST_EXPERTS:
            return f"they are {count}, more than {MOST_EXPERTS}"
        if rows % UNIT or 2 * packed % UNIT:
            return f"they map {2 * packed} values to {rows}, no multiples of {UNIT}"
        if w.data.data_ptr() % 16 or w.scale.data_ptr() % 4:
            return "they do not begin at whole 16 bytes"
        if not (w.data.is_contiguous() and w.scale.is_contiguous()):
            return "they are not in one piece"
        if bool((w.scale == NAN_SCALE).any()):
            return "they hold NaN"
        if _apart(w, SPREAD):
            return f"scales of a row are apart by more than 2^{SPREAD}"
    return ""


def _apart(w: StackedFp4, spread: int) -> bool:
    """Whether a group of values that are not all zero is so much smaller than its row's largest
    that one format cannot hold both."""
    least = w.scale.amax(-1, keepdim=True).clamp(min=spread) - spread
    small = w.scale < least
    if not bool(small.any()):
        return False
    groups: Tensor = w.data.unflatten(-1, (w.scale.shape[-1], -1))
    return bool((groups[small] & 0x77).any())


def gate_up(form: Form, boundary: torch.dtype, act_block: int = 128) -> Kernel:
    return _product("gate-up", "given_gate_up", form, boundary, act_block, paired=True)


def down(form: Form, boundary: torch.dtype, act_block: int = 128) -> Kernel:
    return _product("down", "given_down", form, boundary, act_block, paired=False)


def _product(
    what: str,
    entry: str,
    form: Form,
    boundary: torch.dtype,
    act_block: int,
    *,
    paired: bool,
) -> Kernel:
    if act_block == 32 and not form.bf16:
        form = replace(form, number=70)  # which SM75 has, too: four scales need fewer registers
    macros: Macros = (
        *_around(form, boundary),
        ("FORMAT", 4),
        ("BLOCK", act_block),
        ("X_BYTES", 1),
        ("X_BF16", 0),
        ("CONVERTS_E4M3", int(form.converts_e4m3)),
        ("PAIRED", int(paired)),
    )
    blocks = "" if act_block == 128 else f" by {act_block}"
    name = f"experts fp4{blocks} given {what} to {short(boundary)}"
    return Kernel(name, SOURCE, entry, macros)


def group(form: Form) -> Kernel:
    """Which pairs go to which expert."""
    return Kernel("experts group", AROUND, "group", _around(form, torch.float32))


def sum_columns(form: Form, boundary: torch.dtype) -> Kernel:
    """The sum over slots, of some outputs."""
    name = f"experts given slot-sum {short(boundary)}"
    return Kernel(name, AROUND, "sum_columns", _around(form, boundary))


def _around(form: Form, boundary: torch.dtype) -> Macros:
    bf16 = int(boundary == torch.bfloat16)
    return (*plain(form), ("IN_BF16", bf16), ("OUT_BF16", bf16))


def kernels(form: Form) -> list[Kernel]:
    """Those of the boundary that official numerics have there. They serve any shape."""
    boundary = torch.bfloat16 if form.bf16 else torch.float32
    products = [make(form, boundary, block) for block in ACT_BLOCKS for make in (gate_up, down)]
    return [*products, group(form), sum_columns(form, boundary)]


class GivenExperts:
    """The prefill family of `experts`, quantised, for stacks without an `objection`."""

    TILE_PAIRS = TILE_PAIRS

    def __init__(self, tools: Toolbox) -> None:
        self.tools = tools

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
        assert isinstance(w1, StackedFp4)
        assert isinstance(w3, StackedFp4)
        assert isinstance(w2, StackedFp4)
        out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
        for at in range(0, len(x), MOST_ROWS):
            part = slice(at, at + MOST_ROWS)
            pairs = Pairs(self.tools, ids[part].contiguous(), len(w1.data), self.TILE_PAIRS)
            route = weights[part].contiguous()
            hidden = self.hidden(x[part], pairs, route, w1, w3, float(limit), boundary)
            self.down(hidden, pairs, w2, boundary, out[part])
        return out

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
        """As `experts_apart` -> [n, 1, D]: many rows are summed part by part of their outputs."""
        return self.experts(x, ids, weights, w1, w3, w2, limit, boundary).unsqueeze(1)

    def hidden(
        self,
        x: Tensor,
        pairs: "Pairs",
        route: Tensor,
        w1: StackedFp4,
        w3: StackedFp4,
        limit: float,
        boundary: torch.dtype,
    ) -> Hidden:
        """Codes [pairs, I] and scales [pairs, I / act_block], in the order of tiles."""
        tools, (_, inner, packed) = self.tools, w1.data.shape
        codes, scales = tools.quantise(x, w1.act_block)
        hidden = codes.new_empty((pairs.count, inner))
        hidden_scales = scales.new_empty((pairs.count, inner // w1.act_block))
        kernel = gate_up(tools.form, boundary, w1.act_block)
        tools.load(kernel, THREADS)(
            (inner // UNIT, pairs.most_tiles),
            w1.data,
            w3.data,
            w1.scale,
            w3.scale,
            codes,
            scales,
            route,
            pairs.order,
            pairs.tiles,
            pairs.num_tiles,
            hidden,
            hidden_scales,
            2 * packed,
            inner,
            pairs.slots,
            limit,
        )
        return hidden, hidden_scales

    def down(
        self,
        hidden: Hidden,
        pairs: "Pairs",
        w2: StackedFp4,
        boundary: torch.dtype,
        out: Tensor,
    ) -> None:
        """Writes out [n, D]."""
        tools, (_, width, packed) = self.tools, w2.data.shape
        columns = columns_at_once(width, pairs.count * boundary.itemsize)
        made = torch.empty((pairs.count, columns), dtype=boundary, device=out.device)
        multiply = self._down(boundary, w2.act_block)
        add_up = tools.load(sum_columns(tools.form, boundary), THREADS)
        for first in range(0, width, columns):
            multiply(
                (-(-columns // TILE_OUTPUTS), pairs.most_tiles),
                w2.data,
                w2.scale,
                *hidden,
                pairs.order,
                pairs.tiles,
                pairs.num_tiles,
                made,
                2 * packed,
                width,
                first,
                columns,
            )
            grid = (-(-columns // (2 * THREADS)), len(out))
            add_up(grid, made, out, columns, pairs.slots, width, first)

    def _down(self, boundary: torch.dtype, act_block: int) -> Launch:
        return self.tools.load(down(self.tools.form, boundary, act_block), THREADS)


def columns_at_once(width: int, column_bytes: int) -> int:
    """Outputs that are made at once: all, or a half of it as often as it takes."""
    columns = width
    while columns * column_bytes > DOWN_BYTES and columns % (2 * TILE_OUTPUTS) == 0:
        columns //= 2
    return columns


class Pairs:
    """Pairs of ids [n, slots] by the expert that they chose, in tiles of one expert's."""

    def __init__(
        self, tools: Toolbox, ids: Tensor, experts: int, tile_pairs: int = TILE_PAIRS
    ) -> None:
        self.count, self.slots = ids.numel(), ids.shape[1]
        self.most_tiles = self.count // tile_pairs + min(experts, self.count)
        self.order = ids.new_empty(self.count, dtype=torch.int32)
        self.tiles = ids.new_empty((self.most_tiles, 3), dtype=torch.int32)
        self.num_tiles = ids.new_empty(1, dtype=torch.int32)
        made = (self.order, self.tiles, self.num_tiles)
        launch = tools.load(group(tools.form), THREADS)
        launch((experts, 1), ids, *made, self.count, tile_pairs)
