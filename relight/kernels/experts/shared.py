"""What goes on around the products of the shared expert, launched on a CUDA device. Knows no
router."""

import torch
from torch import Tensor

from relight.kernels.block import in_place, plain, rounded_by, rounds, short
from relight.kernels.build import Kernel
from relight.kernels.experts.cuda import ACT_BLOCKS
from relight.kernels.forms import Form
from relight.kernels.toolbox import Toolbox

SOURCE = "experts/shared.cu"

THREADS = 256


def kernel(form: Form, entry: str, boundary: torch.dtype, act_block: int = 0) -> Kernel:
    """`act_block`: what comes out is also rounded for products that take so many values by a
    scale."""
    bf16 = int(boundary == torch.bfloat16)
    macros = (
        *plain(form),
        ("IN_BF16", bf16),
        ("OUT_BF16", bf16),
        ("ROUNDS", act_block),
    )
    name = f"shared expert {entry} {short(boundary)}{rounded_by(act_block)}"
    return Kernel(name, SOURCE, entry, macros)


def kernels(form: Form) -> list[Kernel]:
    boundary = torch.bfloat16 if form.bf16 else torch.float32
    rounded = [kernel(form, "gated", boundary, block) for block in ACT_BLOCKS]
    return [*rounded, *(kernel(form, entry, boundary) for entry in ("gated", "joined"))]


class RowShared:
    """`swiglu` without a weight, and the sum behind it, for either family."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def takes(self, x: Tensor, boundary: torch.dtype) -> bool:
        """Whether x [n, d], and others like it, are for these kernels."""
        return x.dtype == boundary and x.shape[1] % 8 == 0 and in_place(x)

    def swiglu(self, gate: Tensor, up: Tensor, limit: float, act_block: int = 0) -> Tensor:
        """`experts.swiglu` of gate and up [n, I]; handed over to products that round their input in
        blocks of `act_block`, if that is any."""
        y, width = torch.empty_like(gate), gate.shape[1]
        act_block = act_block if rounds(width, THREADS) else 0
        handed = self._tools.hand_over(y, act_block) if act_block else (None, None)
        self._run("gated", gate, up, y, width, float(limit), *handed, act_block=act_block)
        return y

    def add(self, routed: Tensor, shared: Tensor) -> Tensor:
        """routed [n, D] float32 and shared [n, D] -> their sum in the dtype of shared."""
        y = torch.empty_like(shared)
        self._run("joined", routed, shared, y, shared.shape[1])
        return y

    def _run(
        self, entry: str, x: Tensor, *rest: Tensor | int | float | None, act_block: int = 0
    ) -> None:
        y, (rows, width) = rest[1], x.shape
        assert isinstance(y, Tensor)
        if rows:
            made = kernel(self._tools.form, entry, y.dtype, act_block)
            launch = self._tools.load(made, THREADS)
            launch((rows, -(-width // (2 * THREADS))), x, *rest)
