"""FP4 in small groups with E4M3 scales, the form of V4.1's compressed rows. Knows no row and no op.

A scale is no power of two, so dividing by it rounds; multiplying back is exact, since E2M1 has two
significant bits and E4M3 four.
"""

import torch
from torch import Tensor

from relight.kernels.codec import (
    E2M1_MAX,
    e2m1_encode,
    e4m3_decode,
    e4m3_encode,
    fp4_decode_packed,
    fp4_pack,
)

LEAST_MAX = E2M1_MAX * 2.0**-9
"""Least group maximum that sets a scale: 2^-9 is the smallest E4M3 number."""


def fine_fp4_quantise(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """x [.., d] -> packed E2M1 bytes [.., d / 2] and E4M3 scales [.., d / group], as the official
    kernel: scale the E4M3 number nearest to max(amax, 6 * 2^-9) / 6, values clamped to ±6 scales,
    ties to even. A group with a NaN gets a NaN for its scale."""
    groups = x.float().unflatten(-1, (-1, group))
    largest = groups.abs().amax(-1)
    scales = e4m3_encode(largest.clamp(min=LEAST_MAX) / E2M1_MAX)
    values = groups / e4m3_decode(scales).unsqueeze(-1)
    return fp4_pack(e2m1_encode(values.flatten(-2))), scales


def fine_fp4_dequantise(packed: Tensor, scales: Tensor) -> Tensor:
    """The inverse: float32 [.., d]."""
    values = fp4_decode_packed(packed).unflatten(-1, (scales.shape[-1], -1))
    return torch.mul(values, e4m3_decode(scales).unsqueeze(-1)).flatten(-2)
