"""What goes on between the products of the shared expert, launched on a CUDA device. Knows no
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


def kernel(form: Form, boundary: torch.dtype, act_block: int = 0) -> Kernel:
    """`act_block`: what comes out is also rounded for products that take so many values by a
    scale."""
    bf16 = int(boundary == torch.bfloat16)
    macros = (
        *plain(form),
        ("IN_BF16", bf16),
        ("OUT_BF16", bf16),
        ("ROUNDS", act_block),
    )
    name = f"shared expert gated {short(boundary)}{rounded_by(act_block)}"
    return Kernel(name, SOURCE, "gated", macros)


def kernels(form: Form) -> list[Kernel]:
    boundary = torch.bfloat16 if form.bf16 else torch.float32
    rounded = [kernel(form, boundary, block) for block in ACT_BLOCKS]
    return [*rounded, kernel(form, boundary)]


class RowShared:
    """`swiglu` without a weight, for either family."""

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
        if len(gate):
            launch = self._tools.load(kernel(self._tools.form, y.dtype, act_block), THREADS)
            grid = (len(gate), -(-width // (2 * THREADS)))
            launch(grid, gate, up, y, width, float(limit), *handed)
        return y
