"""Rotary positions on the last dims of a vector, in interleaved pairs. Knows no layer."""

import torch
from torch import Tensor

from relight.base.config import RopeScaling
from relight.kernels.check import F32, FLOATS, I64, expect, expect_boundary
from relight.kernels.rope import reference


def frequencies(theta: float, dim: int, scaling: RopeScaling | None) -> Tensor:
    """Radians per position of each pair, float32 [dim / 2], on the CPU.

    theta^(-2i / dim); with YaRN `scaling`, pairs that turn less than beta_slow times in the
    original context are slowed by `factor`, those that turn more than beta_fast times are not,
    with a linear ramp between. There is no YaRN magnitude (mscale).
    """
    assert dim % 2 == 0, f"dim is {dim}; wanted an even number"
    return reference.frequencies(theta, dim, scaling)


def rotate(
    x: Tensor,
    positions: Tensor,
    frequencies: Tensor,
    inverse: bool = False,
    *,
    boundary: torch.dtype,
) -> Tensor:
    """x [n, .., d] with its last 2 * len(frequencies) dims rotated by positions [n] int64 times
    frequencies, backwards with `inverse`. Float32 inside, the result in `boundary`."""
    assert x.dim() >= 2, f"x has shape {tuple(x.shape)}; wanted [n, .., d]"
    assert x.dtype in FLOATS, f"x is {x.dtype}; wanted one of {FLOATS}"
    expect(positions, "positions", (x.shape[0],), I64)
    expect(frequencies, "frequencies", (None,), F32)
    assert 2 * frequencies.shape[0] <= x.shape[-1]
    expect_boundary(boundary)
    return reference.rotate(x, positions, frequencies, inverse, boundary)
