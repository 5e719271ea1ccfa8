"""What goes on around the products of the shared expert, launched on a CUDA device. Knows no
router."""

import torch
from torch import Tensor

from relight.kernels.block import in_place, plain, short
from relight.kernels.build import Kernel
from relight.kernels.forms import Form
from relight.kernels.toolbox import Toolbox

SOURCE = "experts/shared.cu"

THREADS = 256


def kernel(form: Form, entry: str, boundary: torch.dtype) -> Kernel:
    bf16 = int(boundary == torch.bfloat16)
    macros = (
        *plain(form),
        ("IN_BF16", bf16),
        ("OUT_BF16", bf16),
    )
    return Kernel(f"shared expert {entry} {short(boundary)}", SOURCE, entry, macros)


def kernels(form: Form) -> list[Kernel]:
    boundary = torch.bfloat16 if form.bf16 else torch.float32
    return [kernel(form, entry, boundary) for entry in ("gated", "joined")]


class RowShared:
    """`swiglu` without a weight, and the sum behind it, for either family."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def takes(self, x: Tensor, boundary: torch.dtype) -> bool:
        """Whether x [n, d], and others like it, are for these kernels."""
        return x.dtype == boundary and x.shape[1] % 8 == 0 and in_place(x)

    def swiglu(self, gate: Tensor, up: Tensor, limit: float) -> Tensor:
        """`experts.swiglu` of gate and up [n, I]."""
        y = torch.empty_like(gate)
        self._run("gated", gate, up, y, gate.shape[1], float(limit))
        return y

    def add(self, routed: Tensor, shared: Tensor) -> Tensor:
        """routed [n, D] float32 and shared [n, D] -> their sum in the dtype of shared."""
        y = torch.empty_like(shared)
        self._run("joined", routed, shared, y, shared.shape[1])
        return y

    def _run(self, entry: str, x: Tensor, *rest: Tensor | int | float) -> None:
        y, (rows, width) = rest[1], x.shape
        assert isinstance(y, Tensor)
        if rows:
            launch = self._tools.load(kernel(self._tools.form, entry, y.dtype), THREADS)
            launch((rows, -(-width // (2 * THREADS))), x, *rest)
