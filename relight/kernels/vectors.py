"""Norm, rotation, Hadamard and rounding of vectors, each way through them one launch on a CUDA
device (`cuda/row.cu`). Knows no layer: which way a vector goes is its caller's."""

from dataclasses import dataclass

import torch
from torch import Tensor

from relight.kernels.block import (
    Block,
    block_of,
    in_place,
    in_words,
    plain,
    rounded_by,
    rounds,
    short,
)
from relight.kernels.build import Kernel
from relight.kernels.forms import Form
from relight.kernels.rows import Rows
from relight.kernels.sources import source
from relight.kernels.toolbox import Toolbox

SOURCE, TURN_SOURCE = "cuda/row.cu", "cuda/turn.cu"

KV_WIDTH, INDEX_WIDTH, ROPE = 512, 128, 64
"""Of V4 and V4.1: key and value in one vector, index keys and queries, values that are rotated."""

VALUES, GRID, FP8_ROW, FP8_ALL_ROW, FP4_ROW, FP4_FINE_ROW = range(6)
"""`END` of the source."""

NORM_THREADS = 256
MOST_BLOCKS = 4096
"""As many as an H200 has room for; with more vectors each block goes on."""

LOW_RANK = ((1024, 128), (1280, 32))
"""Widths of V4 and V4.1 whose norm is the input of products alone, and the block of scales."""

THREADS = {KV_WIDTH: 128, INDEX_WIDTH: 32}

TURN_THREADS, TURNED_AT_ONCE = 256, 8
"""Of many vectors as many as a warp turns, all of one row."""

MANY = 4096
"""From more vectors on a warp takes several or a whole one, and a device is full all the same."""


@dataclass(frozen=True, slots=True)
class Way:
    """What is done with a vector. `norm`: 0 none, 1 with a weight, 2 without."""

    norm: int = 0
    rope: int = 0
    hadamard: bool = False
    end: int = VALUES

    @property
    def ops(self) -> frozenset[str]:
        """Whose definitions it stands for."""
        stages = {
            "norm": self.norm,
            "rope": self.rope,
            "quant": self.end == GRID or self.hadamard,
            "store": self.end >= FP8_ROW,
        }
        return frozenset(op for op, done in stages.items() if done)

    def __str__(self) -> str:
        norm = ("", "norm ", "plain norm ")[self.norm]
        stages = f"{norm}{'rope ' * bool(self.rope)}{'hadamard ' * self.hadamard}"
        ends = ("values", "fp4 grid", "fp8 row", "fp8-all row", "fp4 row", "fp4-fine row")
        return stages + ends[self.end]


NORM = Way(norm=1)
QUERIES = Way(norm=2, rope=ROPE)
TURNED = Way(rope=ROPE)
KEPT = {
    "fp8": Way(norm=1, rope=ROPE, end=FP8_ROW),
    "fp8-all": Way(norm=1, rope=ROPE, end=FP8_ALL_ROW),
    "fp4": Way(norm=1, rope=ROPE, end=FP4_ROW),
    "fp4-fine": Way(rope=ROPE, end=FP4_FINE_ROW),
}
"""By the format of rows. What becomes a compressed row of V4.1 was normed before."""

INDEX_QUERIES = Way(rope=ROPE, hadamard=True, end=GRID)
PLAIN_INDEX_QUERIES = Way(rope=ROPE, end=GRID)


def held(width: int, way: Way = NORM, vectors: int = 1) -> Block | None:
    """How a vector is held, which decides no bit. Those that are rotated are held so that a group
    of values that share a scale is a warp's or half of one's; queries, which have none, by a warp
    each if there are many, so that nobody waits."""
    if way == QUERIES and vectors > MANY:
        return Block(width, 32)
    if width in THREADS:
        return Block(width, THREADS[width])
    return block_of(width, NORM_THREADS)


def kernel(
    form: Form,
    way: Way,
    block: Block,
    x: torch.dtype,
    boundary: torch.dtype,
    act_block: int = 0,
) -> Kernel:
    """`act_block`: values are also rounded for products that take so many by a scale."""
    macros = (
        *block.macros(form, x, boundary),
        ("ROUNDS", act_block),
        ("NORM", way.norm),
        ("ROPE", way.rope),
        ("HADAMARD", int(way.hadamard)),
        ("END", way.end),
    )
    by = " of a warp" if way == QUERIES and block.threads == 32 else ""
    name = f"vector {block.width}{by} {short(x)} to {way} {short(boundary)}{rounded_by(act_block)}"
    return Kernel(name, SOURCE, "row_op", macros)


def turn(form: Form, boundary: torch.dtype, at_once: int) -> Kernel:
    """In place, so many of a row by a warp."""
    bf16 = int(boundary == torch.bfloat16)
    own = (("ROPE", ROPE), ("AT_ONCE", at_once), ("IN_BF16", bf16), ("OUT_BF16", bf16))
    name = f"vectors turned by {at_once} {short(boundary)}"
    return Kernel(name, TURN_SOURCE, "turn", (*plain(form), *own))


def kernels(form: Form) -> list[Kernel]:
    """Those of V4-Flash and V4.1-Flash."""
    boundary = torch.bfloat16 if form.bf16 else torch.float32
    kv, index = Block(KV_WIDTH, 128), Block(INDEX_WIDTH, 32)
    norms = [block for width in (1024, 1280, 4096, 5120, KV_WIDTH) if (block := held(width))]
    ways = (
        *((block, NORM) for block in norms),
        *((Block(KV_WIDTH, 32), QUERIES), (kv, QUERIES)),
        *((kv, KEPT["fp8"]), (index, INDEX_QUERIES)),
        *((kv, KEPT["fp8-all"]), (kv, KEPT["fp4-fine"])),
        *((index, KEPT["fp4"]), (index, PLAIN_INDEX_QUERIES)),
    )
    found = [kernel(form, way, block, boundary, boundary) for block, way in ways]
    found += [turn(form, boundary, at_once) for at_once in (1, TURNED_AT_ONCE)]
    for width, act_block in LOW_RANK:
        block = block_of(width, NORM_THREADS)
        assert block is not None
        found.append(kernel(form, NORM, block, boundary, boundary, act_block))
    return found


def way_into(rows: Rows) -> Way | None:
    """How vectors are normed, rotated and put into such rows; None where kernels do not write
    them."""
    of = rows.format
    wide = {"fp8": of.dim + ROPE, "fp8-all": of.dim}.get(of.name, of.dim // 2)
    fits = of.data_bytes == wide and in_words(rows)
    return KEPT.get(of.name) if fits else None


OPS = frozenset(("norm", "rope", "quant", "store"))


class RowVectors:
    """Those of `ops` that were chosen for a family. What takes several of them at once is
    done by kernels only where all of them were."""

    def __init__(self, tools: Toolbox, ops: frozenset[str] = OPS) -> None:
        self._tools = tools
        self._ops = ops

    def takes(self, way: Way, x: Tensor, boundary: torch.dtype, rope: int = 0) -> bool:
        """Whether vectors x [.., d], of which `rope` values are rotated, may go this way."""
        width = x.shape[-1]
        fits = width in THREADS if way.rope else held(width) is not None
        if way.hadamard:
            fits = width == INDEX_WIDTH
        whole = x.dtype == boundary and in_place(x)
        return way.ops <= self._ops and fits and rope == way.rope and whole

    def norm(self, x: Tensor, weight: Tensor, eps: float, act_block: int = 0) -> Tensor:
        """`rms_norm` of x [n, d], in the dtype of x; handed over to products that round their input
        in blocks of `act_block`, if that is any."""
        return self._run(NORM, x, weight=weight, eps=eps, act_block=act_block)

    def queries(self, x: Tensor, eps: float, positions: Tensor, frequencies: Tensor) -> Tensor:
        """x [n, H, d], each vector normed without a weight, then rotated by positions [n]."""
        return self._run(QUERIES, x, eps=eps, positions=positions, frequencies=frequencies)

    def rotate(
        self, x: Tensor, positions: Tensor, frequencies: Tensor, *, inverse: bool = False
    ) -> Tensor:
        """`rotate` of x [n, .., d] by positions [n], in its place: x is what is returned."""
        rows, width = len(x), x.shape[-1]
        heads = x.shape[1:-1].numel()
        at_once = TURNED_AT_ONCE if rows * heads > MANY else 1
        warps = rows * -(-heads // at_once)
        if warps:
            launch = self._tools.load(turn(self._tools.form, x.dtype, at_once), TURN_THREADS)
            sign, blocks = -1.0 if inverse else 1.0, -(-warps * 32 // TURN_THREADS)
            launch((blocks, 1), x, positions, frequencies, sign, rows, heads, width)
        return x

    def index_queries(
        self, x: Tensor, positions: Tensor, frequencies: Tensor, *, turned: bool = True
    ) -> Tensor:
        """x [n, H, 128] rotated, if `turned` times Hadamard's matrix, on the FP4 grid: float32."""
        way = INDEX_QUERIES if turned else PLAIN_INDEX_QUERIES
        return self._run(way, x, positions=positions, frequencies=frequencies)

    def keep(
        self,
        x: Tensor,
        weight: Tensor | None,
        eps: float,
        positions: Tensor,
        frequencies: Tensor,
        rows: Rows,
        places: Tensor,
    ) -> None:
        """x [n, d], normed by a weight if there is one, and rotated, into rows places [n]."""
        way = way_into(rows)
        assert way is not None, f"kernels write no rows of format {rows.format.name}"
        assert (weight is not None) == bool(way.norm), f"rows of format {rows.format.name}"
        self._run(
            way,
            x,
            weight=weight,
            eps=eps,
            positions=positions,
            frequencies=frequencies,
            places=places,
            rows=rows,
        )

    def _run(
        self,
        way: Way,
        x: Tensor,
        *,
        weight: Tensor | None = None,
        eps: float = 0.0,
        positions: Tensor | None = None,
        frequencies: Tensor | None = None,
        places: Tensor | None = None,
        rows: Rows | None = None,
        act_block: int = 0,
    ) -> Tensor:
        vectors = x.numel() // x.shape[-1]
        block = held(x.shape[-1], way, vectors)
        assert block is not None, f"vectors of {x.shape[-1]} are not shared evenly by 32 threads"
        y = x if rows else x.new_empty(x.shape, dtype=torch.float32 if way.end == GRID else x.dtype)
        act_block = act_block if rounds(block.width, block.threads) else 0
        if vectors:
            made = kernel(self._tools.form, way, block, x.dtype, x.dtype, act_block)
            launch = self._tools.load(made, block.threads)
            turned = (positions, frequencies, x.shape[1:-1].numel())
            to, blocks = source(rows), min(vectors, MOST_BLOCKS)
            if act_block:
                to = (*self._tools.hand_over(y, act_block), *to[2:])
            launch((blocks, 1), x, y, weight, eps, *turned, places, *to, vectors)
        return y
