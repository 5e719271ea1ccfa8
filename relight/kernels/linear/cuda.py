"""Products of made rows on CUDA devices: which kernels there are and how they are called. Knows no
layer, and not whether it is chosen."""

from dataclasses import replace

from relight.kernels.build import Kernel
from relight.kernels.cuts import MOST_SLICES, slices_of, walk_of
from relight.kernels.forms import Form, Walk
from relight.kernels.linear import halves

SOURCE = "linear/step.cu"

TILE_TOKENS = 8
MOST_TOKENS = 2 * TILE_TOKENS
"""Rows that one pass over the weights serves."""

BLOCKS = (128, 32)
"""Of E4M3 scales: V4's and V4.1's."""

_FP8 = {
    128: {
        1024: Walk(8, 1024, slices=2, row_warps=4, tiles=2, ahead=2, min_blocks=2, ring=True),
        2048: Walk(8, 2048, slices=4, row_warps=2, tiles=1, ahead=4, min_blocks=2, ring=True),
        4096: Walk(8, 4096, slices=8, ahead=4, ring=True),
        8192: Walk(8, 8192, slices=16, tiles=2, ahead=2, ring=True),
        12288: Walk(8, 12288, slices=16, ahead=2, ring=True),
    },
    32: {
        1280: Walk(8, 1280, slices=2, row_warps=4, tiles=2, ahead=2, min_blocks=2, ring=True),
        2304: Walk(8, 2304, slices=9, tiles=2, ahead=2, min_blocks=2, ring=True),
        5120: Walk(8, 5120, slices=8, ahead=4, min_blocks=2, ring=True),
        6144: Walk(8, 6144, slices=4, row_warps=2, tiles=2, ahead=2, min_blocks=2, ring=True),
        8192: Walk(8, 8192, slices=8, tiles=2, ahead=2, min_blocks=2, ring=True),
        15360: Walk(8, 15360, slices=8, tiles=2, ahead=2, min_blocks=2, ring=True),
    },
}
"""By block of scales, then by K; all other lengths are cut by a rule (`cuts`). Blocks have
registers and shared memory for two on a processor: V4.1's matrices have 80 to 400 of them, and one
more than there is room for takes as long again as all others."""

_PEERS = {(8192, 2): (2, 3), (15360, 1): (4, 6), (15360, 2): (4, 6)}
"""Of block 32, by K and tiles of tokens: into how many blocks of a cluster a block is cut, where a
device has them, and how many of these fit on a processor. 160 blocks on 132 processors are two for
some and one for the others; 640 are five for all but a few. 16 tokens have the registers, too."""

_SMALL = {8192: Walk(8, 8192, slices=16, ahead=2, ring=True)}
"""Of block 128, where a block has no 160 KiB: the other needs 128 KiB for the ring."""

SUMS_BYTES = 40 * 1024
"""More than a block has beside its ring."""

MANY_OUTPUTS = 16_384
"""Fewer, as the indexer's, would leave processors idle in blocks of 64 or 128."""

_WIDE = Walk(8, 4096, slices=8, tiles=2, ahead=2, min_blocks=2, ring=True)
_BF16 = {
    256: Walk(16, 256, slices=2, row_warps=4, ahead=2, ring=True),
    512: Walk(16, 512, slices=4, ahead=2, ring=True),
    4096: Walk(16, 4096, slices=16, ahead=2, ring=True),
    5120: Walk(16, 5120, slices=10, ahead=4, ring=True),
}
_HEADS = (4096, 5120)
"""K of those matrices of many outputs of which a warp has 32 rows."""

_FEW_PEERS = {4096: 4, 5120: 2}
FEW_BLOCKS = 64
"""By K of bf16, into how many blocks of a cluster a block of few outputs is cut, unless more blocks
than these come of it."""

V4_LENGTHS, V41_LENGTHS = (1024, 2048, 4096, 8192, 12288), (1280, 2304, 5120, 6144, 8192, 15360)
V4_BF16, V41_BF16 = (4096, 256), (5120, 512)
"""Lengths of rows of V4-Flash and V4.1-Flash, drafts too."""

BF16_OUTPUTS = (MANY_OUTPUTS, 1024, 64)
"""Each has a form of its own."""

ROUNDING = (8192,)
"""K of those matrices whose tokens no kernel in front can round: what a block of `wo_a` makes is no
whole block of scales."""

INDEX_QUERIES = {128: (1024, 8192), 32: (1280, 4096)}
"""K and outputs of those matrices of few that have a form of their own, by block."""


def fp8_walk(
    form: Form,
    inner: int,
    token_tiles: int,
    *,
    wide: bool = False,
    block: int = 128,
    outputs: int = MANY_OUTPUTS,
) -> Walk:
    """`wide`: tokens are not quantised. How many outputs there are decides no bits."""
    if not form.copies:
        return replace(_old(8, inner, token_tiles), block=block)
    if wide and inner == _WIDE.inner:
        return replace(_WIDE, block=block)
    small = _SMALL if block == 128 and form.shared_limit < 160 * 1024 else {}
    found = small.get(inner) or _FP8[block].get(inner) or walk_of(8, inner, ring=True)
    if outputs < MANY_OUTPUTS and found.block_rows > 32:
        found = replace(found, row_warps=2, tiles=1, ahead=min(4, found.units))
    elif form.clusters and block == 32 and (inner, token_tiles) in _PEERS:
        peers, min_blocks = _PEERS[inner, token_tiles]
        found = replace(found, peers=peers, min_blocks=min_blocks)
    return replace(found, block=block)


def bf16_walk(form: Form, inner: int, token_tiles: int, outputs: int = MANY_OUTPUTS) -> Walk:
    """How many outputs there are decides no bits: few are one block a processor, which asks for all
    it reads at once, or if very few several of a cluster; of many a warp has more rows, if there is
    shared memory for it."""
    if not form.copies:
        return _old(16, inner, token_tiles)
    found = _BF16.get(inner) or walk_of(16, inner, ring=True)
    if outputs < MANY_OUTPUTS:
        peers = _FEW_PEERS.get(inner, 1) if form.clusters else 1
        fit = outputs // found.block_rows * peers <= FEW_BLOCKS
        wished = replace(found, ahead=found.units, peers=peers if fit else 1)
    else:
        wished = replace(found, tiles=2) if inner in _HEADS else found
    return wished if wished.ring_bytes <= form.shared_limit - SUMS_BYTES else found


def _old(bits: int, inner: int, token_tiles: int) -> Walk:
    """Before SM80: at most 256 threads and units in registers. 128 registers a thread leave room
    for two blocks; sixteen tokens need more and have the device alone."""
    slices = slices_of(bits, inner, min(MOST_SLICES, max(inner // 512, 1)))
    walk = replace(walk_of(bits, inner), slices=slices, ahead=1)
    return replace(walk, ahead=min(2, walk.units), min_blocks=2 if token_tiles == 1 else 1)


def quantising(form: Form, block: int) -> Form:
    """What multiplies quantised tokens by weights with such scales. Form 75 does not keep the sums
    of four scales apart, and has the instruction of form 70, too."""
    return replace(form, number=70) if block == 32 and not form.bf16 else form


def fp8(
    form: Form,
    inner: int,
    token_tiles: int,
    boundary_bf16: bool,
    block: int = 128,
    outputs: int = MANY_OUTPUTS,
    *,
    rounds: bool = False,
) -> tuple[Kernel, Walk]:
    """Of quantised tokens: codes and scales; of bf16 ones, if it `rounds` them."""
    walk = fp8_walk(form, inner, token_tiles, block=block, outputs=outputs)
    few = walk != fp8_walk(form, inner, token_tiles, block=block)
    what, form = "fp8 of few outputs" if few else "fp8", quantising(form, block)
    what += " rounding" if rounds else ""
    return _kernel(what, form, walk, token_tiles, boundary_bf16, rounds=rounds), walk


def rounds_tokens(form: Form, inner: int, token_tiles: int) -> bool:
    """Whether such a product rounds its tokens itself, where they are not yet: a launch less. For
    more tokens there are too few registers, and without an instruction it takes ten."""
    return form.converts_e4m3 and inner in ROUNDING and token_tiles == 1


def grouped(
    form: Form, inner: int, token_tiles: int, boundary_bf16: bool, block: int = 128
) -> tuple[Kernel, Walk]:
    """E4M3 weights with tokens that are not rounded: bf16, before SM80 fp16."""
    walk = fp8_walk(form, inner, token_tiles, wide=True, block=block)
    x_bf16, form = form.bf16, quantising(form, block)
    what = f"fp8 x {'bf16' if x_bf16 else 'f16'}"
    return _kernel(what, form, walk, token_tiles, boundary_bf16, x_bf16=x_bf16), walk


def bf16(
    form: Form, inner: int, token_tiles: int, boundary_bf16: bool, outputs: int = MANY_OUTPUTS
) -> tuple[Kernel, Walk]:
    """bf16 weights; tokens are bf16, before SM80 fp16."""
    walk = bf16_walk(form, inner, token_tiles, outputs)
    few = walk != bf16_walk(form, inner, token_tiles)
    what = "bf16" + " of few outputs" * few + " in clusters" * (walk.peers > 1)
    return _kernel(what, form, walk, token_tiles, boundary_bf16, x_bf16=form.bf16), walk


def _kernel(
    format: str,
    form: Form,
    walk: Walk,
    token_tiles: int,
    boundary_bf16: bool,
    *,
    x_bf16: bool | None = None,
    rounds: bool = False,
) -> Kernel:
    macros = walk.macros(form, token_tiles=token_tiles, x_bf16=x_bf16)
    macros += (("ROUNDS", 1),) if rounds else ()
    rows = TILE_TOKENS * token_tiles
    blocks = "" if walk.block == 128 else f" by {walk.block}"
    to = "bf16" if boundary_bf16 else "f32"
    name = f"linear {format}{blocks} K={walk.inner} rows<={rows} to {to}"
    return Kernel(name, SOURCE, "step_linear", (*macros, ("Y_BF16", int(boundary_bf16))))


def kernels(form: Form) -> list[Kernel]:
    """Those of the shapes of V4-Flash and V4.1-Flash with the boundaries that official numerics
    have there."""
    lengths = {128: V4_LENGTHS, 32: V41_LENGTHS}
    found = []
    for tiles in (1, 2):
        for block in BLOCKS:
            for k in lengths[block]:
                rounds = rounds_tokens(form, k, tiles)
                found.append(fp8(form, k, tiles, form.bf16, block, rounds=rounds)[0])
            k, outputs = INDEX_QUERIES[block]
            few = fp8(form, k, tiles, form.bf16, block, outputs)[0]
            found += [] if few in found else [few]
            found.append(grouped(form, 4096, tiles, boundary_bf16=form.bf16, block=block)[0])
        for k in (*V4_BF16, *V41_BF16):
            found += [bf16(form, k, tiles, False, outputs)[0] for outputs in BF16_OUTPUTS]
    return [*dict.fromkeys(found), *halves.kernels(form)]
