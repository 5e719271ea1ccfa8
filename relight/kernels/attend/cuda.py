"""Sparse attention on CUDA devices: which kernels there are. Knows no layer, and not
whether it is chosen."""

from dataclasses import dataclass, replace

import torch

from relight.base.formats import RowFormat, compressed_row_v41, kv_row, window_row_v41
from relight.kernels.attend.keys import KEY_BLOCK
from relight.kernels.block import short
from relight.kernels.build import Kernel, Macros
from relight.kernels.forms import Form

SOURCE, GIVEN_SOURCE, GROUPS_SOURCE = "attend/step.cu", "attend/given.cu", "attend/groups.cu"

TILE_HEADS, CHUNK = 16, 64
"""Heads and dims of a block; `TILE` and `CHUNK` of the source."""

GIVEN_THREADS = 256

GROUP_DIMS = (128, 256, 512)
"""Half of them is what one instruction of a warp group multiplies."""

GIVEN_HEADS = 64
"""Of a row, which a block of the kernel for given rows has all; `ROOM` of the source."""

STATIC_BYTES = 4 * 1024
"""More than that kernel has of shared memory beside what is asked for."""

FORMATS = {"fp8": 0, "fp8-all": 1, "fp4-fine": 2}
"""Of `cuda/keys.cuh`."""

V4_ROW = kv_row(512, 64)
V41_ROWS = window_row_v41(512), compressed_row_v41(512)


@dataclass(frozen=True, slots=True)
class Shape:
    """`dtype` is that of queries, of numerators and of results."""

    heads: int
    window: RowFormat
    entries: RowFormat  # where there are none, as `window`
    dtype: torch.dtype

    @property
    def dim(self) -> int:
        return self.window.dim

    @property
    def plain(self) -> int:
        """Dims in front of those that an "fp8" row has in bf16: dims = plain + wide and bytes =
        plain + 2 wide."""
        rows = (self.window, self.entries)
        return min(2 * self.dim - r.data_bytes if r.name == "fp8" else self.dim for r in rows)

    @property
    def chunks(self) -> int:
        return self.dim // CHUNK

    def groups(self, heads: int) -> int:
        """Of so many heads each."""
        return -(-self.heads // heads)

    @property
    def given_bytes(self) -> int:
        """Shared memory of a given row: queries, a block of keys, numerators of it, all bf16."""
        return 2 * ((GIVEN_HEADS + KEY_BLOCK) * self.dim + GIVEN_HEADS * KEY_BLOCK)

    @property
    def group_bytes(self) -> int:
        """The same by warp groups: two blocks of keys, from a whole 1,024 on."""
        keys = 2 * 2 * KEY_BLOCK * self.dim
        return 1024 + 2 * GIVEN_HEADS * (self.dim + KEY_BLOCK) + keys

    @property
    def objection(self) -> str:
        """Why there are no kernels for it; empty if there are."""
        for rows in (self.window, self.entries):
            if rows.name not in FORMATS:
                return f"rows are {rows.name}"
        if self.entries.dim != self.dim or self.dim % CHUNK or self.dim > 8 * CHUNK:
            return f"rows have {self.dim} and {self.entries.dim} values"
        return f"{self.plain} values are FP8" if self.plain % CHUNK else ""

    def macros(self, form: Form) -> Macros:
        bf16 = self.dtype == torch.bfloat16
        matrix = is_matrix(form, self)
        return (
            ("STEP_FORM", form.number),
            ("OPERAND", '"bf16"' if matrix else '"f16"'),
            ("X_BF16", int(matrix)),
            ("PDL", int(form.early)),
            ("MATRIX", int(matrix)),
            ("HEADS", self.heads),
            ("DIM", self.dim),
            ("PLAIN", self.plain),
            ("WINDOW_FORMAT", FORMATS[self.window.name]),
            ("ENTRY_FORMAT", FORMATS[self.entries.name]),
            ("IN_BF16", int(bf16)),
            ("OUT_BF16", int(bf16)),
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """How blocks of a step's kernels share the work, on which no bit hangs: heads and keys of
    scores, and of values dims, warps, blocks of a processor, and whether rows are asked for early,
    which hides a wait and takes registers."""

    heads: int
    keys: int
    dims: int
    warps: int
    blocks: int
    ahead: bool

    @property
    def parts(self) -> int:
        """Of a block of keys, each with a best of its own."""
        return KEY_BLOCK // self.keys

    @property
    def part_bytes(self) -> int:
        """Shared memory for what the warps of values leave for each other."""
        return 4 * self.warps * TILE_HEADS * (self.dims + 4)

    @property
    def value_bytes(self) -> int:
        """The same and places of keys, sums and factors: no more than that."""
        return self.part_bytes + self.warps * (16 * KEY_BLOCK + 8 * TILE_HEADS) + 64

    @property
    def macros(self) -> Macros:
        return (
            ("SCORE_HEADS", self.heads),
            ("SCORE_KEYS", self.keys),
            ("VALUE_DIMS", self.dims),
            ("VALUE_WARPS", self.warps),
            ("VALUE_BLOCKS", self.blocks),
            ("AHEAD", int(self.ahead)),
        )


PLAIN_CUT = Cut(16, 64, 64, 8, 1, False)
"""Without a matrix unit."""

FEW_CUT = Cut(32, 32, 32, 11, 1, True)
"""Of a few rows, where a wait is what counts. 11 warps take 704 keys, what layers list, at once."""

SOME_CUT = Cut(32, 32, 64, 11, 1, False)
"""Of some rows, and of many where 128 dims do not fit."""

MANY_CUT = Cut(32, 32, 128, 11, 1, False)
"""Else: half as many blocks, of which each has the same numerators."""

FEW, SOME = 2, 4
"""Rows whose 64 and 32 blocks all have a processor of an H200. Registers are for one block a
processor, so the others would begin when the first have ended."""


def cut(form: Form, shape: Shape, rows: int) -> Cut:
    if not is_matrix(form, shape):
        return PLAIN_CUT
    if rows <= FEW:
        return FEW_CUT
    fits = shape.dim % MANY_CUT.dims == 0 and MANY_CUT.value_bytes <= form.shared_limit
    return MANY_CUT if rows > SOME and fits else SOME_CUT


def is_matrix(form: Form, shape: Shape) -> bool:
    return form.bf16 and shape.dtype == torch.bfloat16


def scores(form: Form, shape: Shape, how: Cut) -> Kernel:
    """The same for all that cut scores alike."""
    how = replace(PLAIN_CUT, heads=how.heads, keys=how.keys)
    made = _kernel("scores", "attend_scores", form, shape)
    return replace(made, macros=made.macros + how.macros)


def values(form: Form, shape: Shape, how: Cut) -> Kernel:
    made = _kernel(f"values by {how.dims}", "attend_values", form, shape)
    return replace(made, macros=made.macros + how.macros)


def is_given(form: Form, shape: Shape) -> bool:
    """Whether there is a kernel for given rows; else those of a step serve them."""
    fits = shape.given_bytes + STATIC_BYTES <= form.shared_limit
    return form.bf16 and shape.dtype == torch.bfloat16 and shape.heads <= GIVEN_HEADS and fits


def given(form: Form, shape: Shape) -> Kernel:
    return _kernel("given", "attend_given", form, shape, GIVEN_SOURCE)


def is_grouped(form: Form, shape: Shape) -> bool:
    """Whether warp groups serve given rows."""
    return form.groups and is_given(form, shape) and shape.dim in GROUP_DIMS


def grouped(form: Form, shape: Shape) -> Kernel:
    made = _kernel("given by groups", "attend_groups", form, shape, GROUPS_SOURCE)
    return replace(made, macros=(*made.macros, ("WARP_GROUPS", 1)))


def _kernel(what: str, entry: str, form: Form, shape: Shape, source: str = SOURCE) -> Kernel:
    rows = f"{shape.window.name}+{shape.entries.name}"
    name = f"attend {what} {shape.heads}x{shape.dim} {rows} {short(shape.dtype)}"
    return Kernel(name, source, entry, shape.macros(form))


def shapes(form: Form) -> list[Shape]:
    """Those of V4-Flash and V4.1-Flash, with the boundary that official numerics have there."""
    dtype = torch.bfloat16 if form.bf16 else torch.float32
    return [Shape(64, V4_ROW, V4_ROW, dtype), Shape(64, *V41_ROWS, dtype)]


def kernels(form: Form) -> list[Kernel]:
    some = shapes(form)
    cuts = [(shape, cut(form, shape, rows)) for shape in some for rows in (1, FEW + 1, SOME + 1)]
    of_a_step = [make(form, *one) for one in cuts for make in (scores, values)]
    of_a_step = list(dict.fromkeys(of_a_step))
    of_given = [given(form, shape) for shape in some if is_given(form, shape)]
    return of_a_step + of_given + [grouped(form, one) for one in some if is_grouped(form, one)]
