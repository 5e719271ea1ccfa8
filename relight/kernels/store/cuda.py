"""Rows of the cache that are moved on CUDA devices: the kernel. Knows no attention, and not whether
it is chosen."""

from relight.kernels.block import plain
from relight.kernels.build import Kernel
from relight.kernels.forms import Form

SOURCE = "store/rows.cu"

THREADS, BLOCK_ROWS = 128, 4
"""A warp a row."""


def copy_rows(form: Form) -> Kernel:
    """PLAIN is of formats, whose values nobody looks at here."""
    return Kernel("store copy", SOURCE, "copy_rows", (*plain(form), ("PLAIN", 0)))


def kernels(form: Form) -> list[Kernel]:
    return [copy_rows(form)]
