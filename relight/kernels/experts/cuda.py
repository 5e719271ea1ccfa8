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

MOST_WIDTH = 9216
"""Rows of two tokens lie in shared memory, two bytes a value, beside seven KiB of sums."""


L2_FETCH = ".L2::128B"
"""A unit is half a line of each row; the other half is asked for next, and may come with it."""


PAIRS = 3
"""Of tokens that one walk serves, where an expert has more than two: weights are asked for and
decoded once. Sums of more pairs have no registers."""

FEW_ROWS = 2
"""A pair. Of one row V4's products are 384 blocks each, which an H200 holds at once by three a
processor; V4.1's are 432 and 480, by four, and a block of the down product may ask for half of its
tile."""


def tiles_of_block(rows: int) -> int:
    """How many tiles a block walks: few, where there are few blocks for a device to share evenly;
    more, where a block's beginning is what counts."""
    return 2 if rows == 1 else 4


def rounds(form: Form) -> bool:
    """Whether the down product rounds its tokens itself, for each of its blocks anew: one launch
    less between two that read weights."""
    return form.number != 70


def gate_up_walk(form: Form, inner: int, act_block: int = 128, *, few: bool = False) -> Walk:
    """`few`: of `FEW_ROWS` at most, which decides no bits."""
    found = _ruled(form, inner)
    if inner in (V4_WIDTHS[0], V41_WIDTHS[0]):
        blocks = 2 if form.number != 80 else 4 if few and inner == V41_WIDTHS[0] else 3
        old = form.number == 70  # of eight slices, as the rule has it
        found = replace(found, ahead=1) if old else Walk(4, inner, 4, min_blocks=blocks)
    return replace(found, tiles=2, paired=True, block=act_block)


def down_walk(form: Form, inner: int, act_block: int = 128, *, few: bool = False) -> Walk:
    """`few`: as above."""
    found, modern = _ruled(form, inner), form.number == 80
    if inner == V4_WIDTHS[1]:
        old = Walk(4, inner, 4, ahead=1, min_blocks=2)
        found = Walk(4, inner, 4, tiles=2, min_blocks=3) if modern else old
    if inner == V41_WIDTHS[1]:
        old = Walk(4, inner, 3, row_warps=2, ahead=1, min_blocks=2)
        blocks = 5 if few and not form.early else 4
        found = Walk(4, inner, 3, tiles=2, min_blocks=blocks) if modern else old
        if few and form.early:
            found = replace(found, ahead=3)
    return replace(found, block=act_block)


def _ruled(form: Form, inner: int) -> Walk:
    """Where the next tile's units are asked for they have the registers of this one's."""
    found = walk_of(4, inner)
    flows = form.number != 70
    return replace(found, ahead=1) if flows and found.units % found.ahead else found


def pairs_of_walk(form: Form, inner: int, *, few: bool = False) -> int:
    """Decides no bits. Tokens of a length that is cut by a rule may have no room."""
    measured = inner in (*V4_WIDTHS, *V41_WIDTHS)
    return PAIRS if measured and form.number == 80 and not few else 1


def gate_up(
    form: Form, inner: int, boundary_bf16: bool, act_block: int = 128, *, few: bool = False
) -> tuple[Kernel, Walk]:
    walk, pairs = gate_up_walk(form, inner, act_block, few=few), pairs_of_walk(form, inner, few=few)
    same = (walk, pairs) == (gate_up_walk(form, inner, act_block), pairs_of_walk(form, inner))
    what = "gate-up" if same else "gate-up of few rows"
    return _kernel(what, "step_gate_up", form, walk, pairs, boundary_bf16, False), walk


def down(
    form: Form, inner: int, boundary_bf16: bool, act_block: int = 128, *, few: bool = False
) -> tuple[Kernel, Walk]:
    walk, pairs = down_walk(form, inner, act_block, few=few), pairs_of_walk(form, inner, few=few)
    same = (walk, pairs) == (down_walk(form, inner, act_block), pairs_of_walk(form, inner))
    what = "down" if same else "down of few rows"
    return _kernel(what, "step_down", form, walk, pairs, boundary_bf16, rounds(form)), walk


def objection_to_widths(width: int, inner: int) -> str:
    """Why experts of these widths are not for these kernels; empty if they are. Widths of whole
    units are whole blocks of outputs, too."""
    if max(width, inner) > MOST_WIDTH:
        return f"rows of {max(width, inner)} values, and of more than {MOST_WIDTH} two have no room"
    return objection(4, width) or objection(4, inner)


def _kernel(
    what: str, entry: str, form: Form, walk: Walk, pairs: int, boundary_bf16: bool, rounds: bool
) -> Kernel:
    boundary = "bf16" if boundary_bf16 else "f32"
    macros = (
        *walk.macros(form, token_tiles=pairs),
        ("BOUNDARY_BF16", int(boundary_bf16)),
        ("ROUNDS", int(rounds)),
        ("L2_FETCH", f'"{L2_FETCH}"'),
    )
    blocks = "" if walk.block == 128 else f" by {walk.block}"
    name = f"experts fp4{blocks} {what} K={walk.inner} to {boundary}"
    return Kernel(name, SOURCE, entry, macros)


def kernels(form: Form) -> list[Kernel]:
    """Those of the shapes of V4-Flash and V4.1-Flash, with the boundary that official numerics have
    there."""
    found = []
    for (width, inner), block in zip((V4_WIDTHS, V41_WIDTHS), ACT_BLOCKS, strict=True):
        for few in (False, True):
            found.append(gate_up(form, width, form.bf16, block, few=few)[0])
            found.append(down(form, inner, form.bf16, block, few=few)[0])
    return list(dict.fromkeys(found))
