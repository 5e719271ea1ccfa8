"""Routed experts of made rows on CUDA devices: which kernels there are. Knows no router, and not
whether it is chosen."""

from dataclasses import replace

from relight.kernels.build import Kernel
from relight.kernels.cuts import objection, walk_of
from relight.kernels.forms import Form, Walk

SOURCE = "experts/step.cu"

MOST_TOKENS = 16
"""Rows of a call; `MOST` of the source."""

ACT_BLOCKS = (128, 32)
"""Values of a token that share a scale: V4's and V4.1's."""

V4_WIDTHS, V41_WIDTHS = (4096, 2048), (5120, 2304)
"""Of the residual stream and of an expert."""

_OLD_2304 = Walk(4, 2304, 3, row_warps=2, ahead=1, min_blocks=2)  # 256 threads at most


def gate_up_walk(form: Form, inner: int, act_block: int = 128) -> Walk:
    found = walk_of(4, inner)
    if inner in (V4_WIDTHS[0], V41_WIDTHS[0]):  # of eight slices, as the rule has it
        ahead, blocks = 4 if form.number == 80 else 1, 1 if form.number == 70 else 2
        found = replace(found, ahead=ahead, min_blocks=blocks)
    return replace(found, tiles=2, paired=True, block=act_block)


def down_walk(form: Form, inner: int, act_block: int = 128) -> Walk:
    found, modern = walk_of(4, inner), form.number == 80
    if inner == V4_WIDTHS[1]:
        blocks = 4 if modern else 2
        found = Walk(4, inner, 4, tiles=2 if modern else 1, ahead=1, min_blocks=blocks)
    if inner == V41_WIDTHS[1]:
        found = Walk(4, inner, 9, tiles=2, ahead=1, min_blocks=2) if modern else _OLD_2304
    return replace(found, block=act_block)


def gate_up(
    form: Form, inner: int, boundary_bf16: bool, act_block: int = 128
) -> tuple[Kernel, Walk]:
    walk = gate_up_walk(form, inner, act_block)
    return _kernel("gate-up", "step_gate_up", form, walk, boundary_bf16), walk


def down(form: Form, inner: int, boundary_bf16: bool, act_block: int = 128) -> tuple[Kernel, Walk]:
    walk = down_walk(form, inner, act_block)
    return _kernel("down", "step_down", form, walk, boundary_bf16), walk


def objection_to_widths(width: int, inner: int) -> str:
    """Why experts of these widths are not for these kernels; empty if they are. Widths of whole
    units are whole blocks of outputs, too."""
    return objection(4, width) or objection(4, inner)


def _kernel(what: str, entry: str, form: Form, walk: Walk, boundary_bf16: bool) -> Kernel:
    boundary = "bf16" if boundary_bf16 else "f32"
    macros = (*walk.macros(form), ("BOUNDARY_BF16", int(boundary_bf16)))
    blocks = "" if walk.block == 128 else f" by {walk.block}"
    name = f"experts fp4{blocks} {what} K={walk.inner} to {boundary}"
    return Kernel(name, SOURCE, entry, macros)


def kernels(form: Form) -> list[Kernel]:
    """Those of the shapes of V4-Flash and V4.1-Flash, with the boundary that official numerics have
    there."""
    found = []
    for (width, inner), block in zip((V4_WIDTHS, V41_WIDTHS), ACT_BLOCKS, strict=True):
        found.append(gate_up(form, width, form.bf16, block)[0])
        found.append(down(form, inner, form.bf16, block)[0])
    return found
