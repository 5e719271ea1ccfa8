"""The definition of rope."""

import math

import torch
from torch import Tensor

from relight.base.config import RopeScaling


def frequencies(theta: float, dim: int, scaling: RopeScaling | None) -> Tensor:
    plain = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if scaling is None:
        return plain

    def pair_that_turns(times: float) -> float:
        """The pair, as a real number, that turns so often in the original context."""
        length = scaling.original_max_position
        return dim * math.log(length / (2 * math.pi * times)) / (2 * math.log(theta))

    low = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(scaling.beta_slow)), dim - 1)
    pairs = torch.arange(dim // 2, dtype=torch.float32)
    ramp = ((pairs - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / scaling.factor * ramp + plain * (1 - ramp)


def rotate(
    x: Tensor, positions: Tensor, frequencies: Tensor, inverse: bool, boundary: torch.dtype
) -> Tensor:
    dims = 2 * frequencies.shape[0]
    angles = positions.float().unsqueeze(1) * frequencies  # [n, pairs]
    angles = angles.view(-1, *[1] * (x.dim() - 2), frequencies.shape[0])
    cos, sin = torch.cos(angles), torch.sin(angles)
    if inverse:
        sin = -sin
    plain, turning = x.split([x.shape[-1] - dims, dims], dim=-1)
    even, odd = turning.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return torch.cat([plain.to(boundary), turned.flatten(-2).to(boundary)], dim=-1)
