"""Float32 tokens for devices whose matrix unit multiplies fp16: each as two of them
(`linear/halves.cu`). Knows no weight."""

import torch
from torch import Tensor

from relight.kernels.block import plain
from relight.kernels.build import Kernel
from relight.kernels.forms import Form
from relight.kernels.toolbox import Toolbox

SOURCE = "linear/halves.cu"

THREADS = 256


def kernels(form: Form) -> list[Kernel]:
    """Of devices before SM80."""
    return [] if form.bf16 else [_kernel(form, entry) for entry in ("split", "join")]


def _kernel(form: Form, entry: str) -> Kernel:
    return Kernel(f"halves {entry}", SOURCE, entry, plain(form))


class Halves:
    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def split(self, x: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        """x [n, groups * K] float32 -> float16 [2 n, groups * K], what is high and behind it what
        is low, and the scale of each K values [n, groups]."""
        n, width = x.shape
        parts = torch.empty((2, n, width), dtype=torch.float16, device=x.device)
        scale = x.new_empty((n, groups))
        if n:
            launch = self._tools.load(_kernel(self._tools.form, "split"), THREADS)
            launch((n * groups, 1), x, parts[0], parts[1], scale, width // groups)
        return parts.flatten(0, 1), scale

    def join(self, y: Tensor, scale: Tensor) -> Tensor:
        """What a product made of them, y [2 n, N] float32 -> [n, N]."""
        (n, groups), columns = scale.shape, y.shape[1]
        found = y.new_empty((n, columns))
        if n:
            launch = self._tools.load(_kernel(self._tools.form, "join"), THREADS)
            launch((n, -(-columns // THREADS)), y[:n], y[n:], scale, found, columns, groups)
        return found
