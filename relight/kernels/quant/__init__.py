"""Rounding to the grids that the models were trained with, and the rotation in front of FP4. Knows
no layer."""

import torch
from torch import Tensor

from relight.kernels.check import FLOATS, expect_boundary
from relight.kernels.quant import reference


def fp8_grid(x: Tensor, block: int) -> Tensor:
    """x [.., d] -> float32 values on the FP8 grid: E4M3 times one power of two per `block` values
    (codec.fp8_quantise). A block with a NaN becomes NaN."""
    assert x.dtype in FLOATS, f"x is {x.dtype}; wanted one of {FLOATS}"
    return reference.fp8_grid(x, block)


def fp4_grid(x: Tensor, block: int = 32) -> Tensor:
    """x [.., d] -> float32 values on the FP4 grid: E2M1 times one power of two per `block` values
    (codec.fp4_quantise). A block with a NaN becomes NaN."""
    assert x.dtype in FLOATS, f"x is {x.dtype}; wanted one of {FLOATS}"
    return reference.fp4_grid(x, block)


def hadamard(x: Tensor, boundary: torch.dtype) -> Tensor:
    """x [.., d] -> x H / sqrt(d) in `boundary`; H is Sylvester's matrix, d a power of two."""
    size = x.shape[-1]
    assert size & (size - 1) == 0, f"x has {size} columns; wanted a power of two"
    assert x.dtype in FLOATS, f"x is {x.dtype}; wanted one of {FLOATS}"
    expect_boundary(boundary)
    return reference.hadamard(x, boundary)
