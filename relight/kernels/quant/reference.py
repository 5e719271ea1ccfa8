"""The definition of quant; the formats are those of `kernels/codec.py`."""

import torch
from torch import Tensor

from relight.kernels.codec import fp4_round, fp8_round


def fp8_grid(x: Tensor, block: int) -> Tensor:
    return fp8_round(x, block)


def fp4_grid(x: Tensor, block: int) -> Tensor:
    return fp4_round(x, block)


def hadamard(x: Tensor, boundary: torch.dtype) -> Tensor:
    """Butterflies of columns 1, 2, 4, … apart, then the scale, then one rounding."""
    size, apart = x.shape[-1], 1
    out = x.float()
    while apart < size:
        first, second = out.unflatten(-1, (-1, 2, apart)).unbind(-2)
        out = torch.stack([first + second, first - second], dim=-2).flatten(-3)
        apart *= 2
    scale: float = size**-0.5
    return (out * scale).to(boundary)
