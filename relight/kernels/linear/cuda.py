"""Products with few rows on CUDA devices: which kernels there are and how they are called. Knows no
layer, and not whether it is chosen."""

from relight.kernels.build import Kernel
from relight.kernels.forms import Form, Walk

SOURCE = "linear/step.cu"

TILE_TOKENS = 8
MOST_TOKENS = 2 * TILE_TOKENS
"""Rows that one pass over the weights serves."""

FP8_INNER = (1024, 2048, 4096, 8192)
BF16_INNER = (4096,)
"""Lengths of V4-Flash's rows. Another one is the reference's until it has been measured."""

_FP8 = {
    1024: Walk(8, 1024, slices=2, row_warps=4, tiles=2, ahead=2, min_blocks=2, ring=True),
    2048: Walk(8, 2048, slices=4, row_warps=2, tiles=1, ahead=4, min_blocks=2, ring=True),
    4096: Walk(8, 4096, slices=8, ahead=4, ring=True),
    8192: Walk(8, 8192, slices=16, tiles=2, ahead=2, ring=True),
}
_FP8_SMALL = Walk(8, 8192, slices=16, ahead=2, ring=True)  # two tiles need 128 KiB for the ring
_WIDE = Walk(8, 4096, slices=8, tiles=2, ahead=2, min_blocks=2)
_BF16 = Walk(16, 4096, slices=16, ahead=2, ring=True)


def fp8_walk(form: Form, inner: int, token_tiles: int, *, wide: bool = False) -> Walk:
    """`wide`: tokens are not quantised."""
    if not form.copies:
        return _old(8, inner, token_tiles)
    if wide:
        return _WIDE
    if inner == 8192 and form.shared_limit < 160 * 1024:
        return _FP8_SMALL
    return _FP8[inner]


def bf16_walk(form: Form, inner: int, token_tiles: int) -> Walk:
    assert inner in BF16_INNER, f"{inner} columns; wanted one of {BF16_INNER}"
    return _BF16 if form.copies else _old(16, inner, token_tiles)


def _old(format: int, inner: int, token_tiles: int) -> Walk:
    """Before SM80: at most 256 threads and units in registers. 128 registers a thread leave room
    for two blocks; sixteen tokens need more and have the device alone."""
    slices = min(8, inner // 512)
    return Walk(format, inner, slices, ahead=2, min_blocks=2 if token_tiles == 1 else 1)


def fp8(form: Form, inner: int, token_tiles: int, boundary_bf16: bool) -> tuple[Kernel, Walk]:
    walk = fp8_walk(form, inner, token_tiles)
    return _kernel("fp8", form, walk, token_tiles, boundary_bf16), walk


def grouped(form: Form, inner: int, token_tiles: int, boundary_bf16: bool) -> tuple[Kernel, Walk]:
    """E4M3 weights with bf16 tokens, which only form 80 can multiply."""
    assert form.bf16, f"sm_{form.capability} has no bf16 operands"
    walk = fp8_walk(form, inner, token_tiles, wide=True)
    return _kernel("fp8 x bf16", form, walk, token_tiles, boundary_bf16, x_bf16=True), walk


def bf16(form: Form, inner: int, token_tiles: int, boundary_bf16: bool) -> tuple[Kernel, Walk]:
    """bf16 weights; tokens are bf16, before SM80 fp16."""
    walk = bf16_walk(form, inner, token_tiles)
    return _kernel("bf16", form, walk, token_tiles, boundary_bf16, x_bf16=form.bf16), walk


def _kernel(
    format: str,
    form: Form,
    walk: Walk,
    token_tiles: int,
    boundary_bf16: bool,
    *,
    x_bf16: bool | None = None,
) -> Kernel:
    macros = walk.macros(form, token_tiles=token_tiles, x_bf16=x_bf16)
    rows = TILE_TOKENS * token_tiles
    name = f"linear {format} K={walk.inner} rows<={rows} to {'bf16' if boundary_bf16 else 'f32'}"
    return Kernel(name, SOURCE, "step_linear", (*macros, ("Y_BF16", int(boundary_bf16))))


def kernels(form: Form) -> list[Kernel]:
    """Those of V4-Flash's shapes with the boundaries that official numerics have there."""
    found = []
    for tiles in (1, 2):
        found += [fp8(form, inner, tiles, form.bf16)[0] for inner in FP8_INNER]
        if form.bf16:
            found.append(grouped(form, 4096, tiles, boundary_bf16=True)[0])
        found += [bf16(form, inner, tiles, boundary_bf16=False)[0] for inner in BF16_INNER]
    return found
