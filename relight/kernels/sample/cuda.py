"""Draws on CUDA devices: which kernels there are. Knows no request, and not whether it
is chosen."""

from relight.kernels.block import plain
from relight.kernels.build import Kernel
from relight.kernels.forms import Form

SOURCE = "sample/step.cu"

SPLITS, THREADS = 128, 256
"""Spans of a row, and threads for one; of the source."""

ENTRIES = {"largest_parts": THREADS, "drawn_parts": THREADS, "choose": 32}
"""Threads of a block by entry point."""


def kernel(form: Form, entry: str) -> Kernel:
    return Kernel(f"sample {entry.replace('_', '-')}", SOURCE, entry, plain(form))


def kernels(form: Form) -> list[Kernel]:
    return [kernel(form, entry) for entry in ENTRIES]
