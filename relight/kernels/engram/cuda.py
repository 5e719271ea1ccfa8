"""n-grams on CUDA devices: which kernels there are. Knows no layer, and not whether it is
chosen."""

import torch

from relight.kernels.block import Block, block_of, short
from relight.kernels.build import Kernel
from relight.kernels.forms import Form

SOURCE = "engram/rows.cu"

GROUP = 32
"""Values of a table's row that share a scale."""

ROWS_THREADS, GATHER_THREADS, GATHERED = 32, 256, 4
"""Values that a thread of `gather` brings."""

V41_WIDTH = 5120

ANY = Block(64, 32)
"""Of kernels that hold no vector."""


def block(width: int) -> Block | None:
    """How a stream is held, if it can be."""
    return block_of(width)


def table_rows(form: Form) -> Kernel:
    return _kernel("rows", "table_rows", form, ANY, torch.float32)


def gather(form: Form, boundary: torch.dtype) -> Kernel:
    return _kernel("gather", "gather", form, ANY, boundary)


def gate(form: Form, block: Block, boundary: torch.dtype) -> Kernel:
    return _kernel(f"gate D={block.width}", "gate", form, block, boundary)


def _kernel(what: str, entry: str, form: Form, block: Block, boundary: torch.dtype) -> Kernel:
    macros = block.macros(form, boundary, boundary)
    return Kernel(f"engram {what} {short(boundary)}", SOURCE, entry, macros)


def kernels(form: Form) -> list[Kernel]:
    """Those of V4.1-Flash."""
    boundary = torch.bfloat16 if form.bf16 else torch.float32
    held = block(V41_WIDTH)
    assert held is not None
    return [table_rows(form), gather(form, boundary), gate(form, held, boundary)]
