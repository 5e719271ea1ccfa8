"""Routed experts with few rows on CUDA devices: which kernels there are. Knows no router, and not
whether it is chosen."""

from relight.kernels.build import Kernel
from relight.kernels.forms import Form, Walk

SOURCE = "experts/step.cu"

MOST_TOKENS = 16
"""Rows of a call; `MOST` of the source."""

WIDTH, INNER = 4096, 2048  # V4-Flash's


def gate_up_walk(form: Form) -> Walk:
    blocks = 1 if form.number == 70 else 2
    ahead = 4 if form.number == 80 else 1
    return Walk(4, WIDTH, 8, tiles=2, ahead=ahead, min_blocks=blocks, paired=True)


def down_walk(form: Form) -> Walk:
    return Walk(
        4,
        INNER,
        4,
        tiles=2 if form.number == 80 else 1,
        ahead=1,
        min_blocks=4 if form.number == 80 else 2,
    )


def gate_up(form: Form, boundary_bf16: bool) -> tuple[Kernel, Walk]:
    walk = gate_up_walk(form)
    return _kernel("gate-up", "step_gate_up", form, walk, boundary_bf16), walk


def down(form: Form, boundary_bf16: bool) -> tuple[Kernel, Walk]:
    walk = down_walk(form)
    return _kernel("down", "step_down", form, walk, boundary_bf16), walk


def _kernel(what: str, entry: str, form: Form, walk: Walk, boundary_bf16: bool) -> Kernel:
    boundary = "bf16" if boundary_bf16 else "f32"
    macros = (*walk.macros(form), ("BOUNDARY_BF16", int(boundary_bf16)))
    return Kernel(f"experts fp4 {what} K={walk.inner} to {boundary}", SOURCE, entry, macros)


def kernels(form: Form) -> list[Kernel]:
    """Those of V4-Flash's shapes, with the boundary that official numerics have there."""
    return [gate_up(form, form.bf16)[0], down(form, form.bf16)[0]]
