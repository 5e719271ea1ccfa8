"""Rounds to the grids of the checkpoint and of the cache while gradients pass through. Knows no
layer. Values are those of `relight/kernels/codec.py`, in a form that compilers fuse."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.formats import FINE_FP4_GROUP
from relight.kernels.fine_fp4 import LEAST_MAX

COARSE_BITS = 2
"""Mantissa bits kept of matrices that are stored as bf16 or float32: one less than E4M3 has,
without its limits of range. The dtypes stay; the files compress by a third, to 11.8 MB."""


class _Through(torch.autograd.Function):
    """`round(x)` forward, the identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, round: Callable[[Tensor], Tensor]) -> Tensor:
        return round(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def through(x: Tensor, round: Callable[[Tensor], Tensor]) -> Tensor:
    """`round(x)`, exactly, whose gradient is that of x."""
    return _Through.apply(x, round)  # type: ignore[no-untyped-call, no-any-return]


def straight(x: Tensor, rounded: Tensor) -> Tensor:
    """For compiled code: equal to `rounded` up to the last bit of x's dtype."""
    return x + (rounded - x).detach()


def _scales(amax: Tensor) -> tuple[Tensor, Tensor]:
    """2^ceil(log2(amax)) and its inverse, on the bits of float32."""
    bits = amax.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    return (exponent << 23).view(torch.float32), ((254 - exponent) << 23).view(torch.float32)


def _e4m3(x: Tensor) -> Tensor:
    """The nearest E4M3 values of float32 within ±448, ties to even. By adding and taking away
    1.5 · 2^(exponent + 20): compilers may leave out a cast there and back, but no sum."""
    exponent = (x.view(torch.int32) & 0x7F800000).clamp(min=(127 - 6) << 23)
    shift = ((exponent + (20 << 23)) | 0x400000).view(torch.float32)
    return (x + shift) - shift


def fp8_rows(x: Tensor, block: int) -> Tensor:
    """E4M3 with one power of two per `block` values of the last dim."""
    blocks = x.float().unflatten(-1, (-1, block))
    amax = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scale, inverse = _scales(amax * (1.0 / 448.0))
    return (_e4m3(blocks * inverse) * scale).flatten(-2).to(x.dtype)


def fp4_rows(x: Tensor, block: int = 32) -> Tensor:
    """E2M1 with one power of two per `block` values of the last dim."""
    blocks = x.float().unflatten(-1, (-1, block))
    amax = blocks.abs().amax(-1, keepdim=True).clamp(min=6.0 * 2.0**-126)
    scale, inverse = _scales(amax * (1.0 / 6.0))
    size = (blocks * inverse).abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    values = torch.round(size / step) * step * scale
    return torch.copysign(values, blocks).flatten(-2).to(x.dtype)


def fine_fp4_rows(x: Tensor) -> Tensor:
    """E2M1 with one E4M3 scale per 16 values of the last dim, the one nearest to amax / 6."""
    groups = x.float().unflatten(-1, (-1, FINE_FP4_GROUP))
    scale = _e4m3(groups.abs().amax(-1, keepdim=True).clamp(min=LEAST_MAX) / 6.0)
    size = (groups / scale).abs().clamp(max=6.0)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    values = torch.round(size / step) * step * scale
    return torch.copysign(values, groups).flatten(-2).to(x.dtype)


def fp8_tiles(w: Tensor, block: int = 128) -> Tensor:
    """Matrices [.., N, K]: E4M3 with one power of two per `block` × `block` values."""
    rows, columns = w.shape[-2:]
    padded = F.pad(w.float(), (0, -columns % block, 0, -rows % block))
    tiles = padded.unflatten(-1, (-1, block)).unflatten(-3, (-1, block))  # [.., n, b, k, b]
    amax = tiles.abs().amax((-3, -1), keepdim=True).clamp(min=1e-4)
    scale, inverse = _scales(amax * (1.0 / 448.0))
    tiles = _e4m3(tiles * inverse) * scale
    whole = tiles.flatten(-2).flatten(-3, -2)
    return whole[..., :rows, :columns].to(w.dtype)


def coarse(x: Tensor) -> Tensor:
    """float32 with COARSE_BITS bits of mantissa, ties away from zero."""
    drop = 23 - COARSE_BITS
    bits = x.float().view(torch.int32) + (1 << (drop - 1))
    return (bits & ~((1 << drop) - 1)).view(torch.float32)


def bf16_grid(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


def hadamard(x: Tensor) -> Tensor:
    """x H / sqrt(d) over the last dim, H Sylvester's matrix, by a product."""
    return x @ _hadamard_matrix(x.shape[-1], x.device, x.dtype)


@cache
def _hadamard_matrix(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return (matrix * size**-0.5).to(device, dtype)
