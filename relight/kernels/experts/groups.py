"""Routed experts of given rows by warp groups, launched on a CUDA device that has them (SM90).
Knows no router, and not whether it is chosen.

As `given`, but what is multiplied is bf16, which holds both sides exactly, scales and all.
"""

import torch
from torch import Tensor

from relight.kernels.block import plain, short
from relight.kernels.build import Kernel, Macros
from relight.kernels.codec import StackedFp4, StackedWeight
from relight.kernels.experts import FastExperts
from relight.kernels.experts.given import (
    ACT_BLOCKS,
    THREADS,
    TILE_OUTPUTS,
    UNIT,
    GivenExperts,
    Hidden,
    Pairs,
)
from relight.kernels.forms import Form
from relight.kernels.launch import Launch

SOURCE = "experts/groups.cu"

TILE_PAIRS = 128
"""TOKENS of the source."""

SHARED_BYTES = 1024 + 4 * (TILE_PAIRS * 2 * UNIT + TILE_OUTPUTS * (UNIT // 2 + 4))
"""Four units of both sides, from a whole 1,024 on."""

MOST_SCALE = 128
"""2^1: E2M1 in the place of a bf16 is its value times 2^-126, and the largest bf16 is 2^127."""


def fits(*stacks: StackedWeight) -> bool:
    """Whether warp groups can multiply stacks that `given` takes."""
    return all(isinstance(w, StackedFp4) and _small(w.scale) for w in stacks)


def _small(scale: Tensor) -> bool:
    """Shapes without values, of which trials are named before there is a device, count as small."""
    return scale.is_meta or not bool((scale > MOST_SCALE).any())


def gate_up(form: Form, boundary: torch.dtype, act_block: int) -> Kernel:
    macros = (*_product(form, boundary, act_block), ("LAYS", 0), ("PAIRED", 1))
    return Kernel(_name("gate-up", boundary, act_block), SOURCE, "group_gate_up", macros)


def down(form: Form, boundary: torch.dtype) -> Kernel:
    macros = (*_product(form, boundary, 128), ("LAYS", 0), ("PAIRED", 0))
    return Kernel(_name("down", boundary, 128), SOURCE, "group_down", macros)


def lay(form: Form, act_block: int) -> Kernel:
    """E4M3 as bf16, where warp groups look for it."""
    macros = (*_product(form, torch.bfloat16, act_block), ("LAYS", 1), ("PAIRED", 0))
    return Kernel(f"experts tokens laid by {act_block}", SOURCE, "lay", macros)


def _name(what: str, boundary: torch.dtype, act_block: int) -> str:
    blocks = "" if act_block == 128 else f" by {act_block}"
    return f"experts fp4{blocks} given {what} by groups to {short(boundary)}"


def _product(form: Form, boundary: torch.dtype, act_block: int) -> Macros:
    bf16 = int(boundary == torch.bfloat16)
    return (
        *(one for one in plain(form) if one[0] != "OPERAND"),
        ("OPERAND", '"bf16"'),
        ("IN_BF16", bf16),
        ("OUT_BF16", bf16),
        ("FORMAT", 4),
        ("BLOCK", act_block),
        ("X_BYTES", 2),
        ("X_BF16", 1),
        ("CONVERTS_E4M3", 0),
        ("WARP_GROUPS", 1),
    )


def kernels(form: Form) -> list[Kernel]:
    if not form.groups:
        return []
    boundary = torch.bfloat16
    made = [
        make for block in ACT_BLOCKS for make in (lay(form, block), gate_up(form, boundary, block))
    ]
    return [*made, down(form, boundary)]


class GroupExperts(GivenExperts):
    """The prefill family of `experts`, quantised, for stacks without an objection that fit."""

    TILE_PAIRS = TILE_PAIRS

    def hidden(
        self,
        x: Tensor,
        pairs: Pairs,
        route: Tensor,
        w1: StackedFp4,
        w3: StackedFp4,
        limit: float,
        boundary: torch.dtype,
    ) -> Hidden:
        """Values [pairs, I] on the grid of E4M3, in the order of tiles, as the next product takes
        them."""
        tools, (_, inner, packed) = self.tools, w1.data.shape
        laid = self.lay(*tools.quantise(x, w1.act_block), w1.act_block)
        hidden = laid.new_empty((pairs.count, inner))
        kernel = gate_up(tools.form, boundary, w1.act_block)
        tools.load(kernel, THREADS, SHARED_BYTES)(
            (inner // UNIT, pairs.most_tiles),
            w1.data,
            w3.data,
            w1.scale,
            w3.scale,
            laid,
            route,
            pairs.order,
            pairs.tiles,
            pairs.num_tiles,
            hidden,
            2 * packed,
            inner,
            pairs.slots,
            limit,
        )
        return (hidden,)

    def lay(self, codes: Tensor, scales: Tensor, act_block: int) -> Tensor:
        laid = torch.empty(codes.shape, dtype=torch.bfloat16, device=codes.device)
        words = codes.numel() // 32
        if words:
            kernel = lay(self.tools.form, act_block)
            self.tools.load(kernel, 256)((-(-words // 256), 1), codes, scales, laid, words)
        return laid

    def _down(self, boundary: torch.dtype, act_block: int) -> Launch:
        return self.tools.load(down(self.tools.form, boundary), THREADS, SHARED_BYTES)


def fitted(fast: FastExperts, *stacks: StackedWeight) -> FastExperts:
    """For stacks that `given` takes: by warp groups where a device has them and they can."""
    if isinstance(fast, GivenExperts) and fast.tools.form.groups and fits(*stacks):
        return GroupExperts(fast.tools)
    return fast
