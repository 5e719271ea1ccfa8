"""Rows: a two-level array of packed rows, as the cache holds them. Knows the formats of a row, not
what a row means nor who owns it.

Formats (`base/formats.py`): "fp8" is a V4 KV row, its first dims E4M3 in groups of 64 and its last
(rotary) ones bf16; "fp4" is an index key, packed E2M1 in groups of 32; "fp8-all" is a V4.1 window
row, E4M3 in groups of 32; "fp4-fine" is a V4.1 compressed row, packed E2M1 in groups of 16;
"float32" is raw. Scales are UE8M0 bytes, of "fp4-fine" E4M3 ones.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from relight.base.formats import (
    FINE_FP4_GROUP,
    FP4_SCALE_GROUP,
    FP8_SCALE_GROUP,
    SMALL_FP8_GROUP,
    RowFormat,
)
from relight.kernels.codec import fp4_dequantise, fp4_quantise, fp8_dequantise, fp8_quantise
from relight.kernels.fine_fp4 import fine_fp4_dequantise, fine_fp4_quantise

KNOWN = "fp8, fp4, fp8-all, fp4-fine or float32"


@dataclass(frozen=True, slots=True)
class Rows:
    """Row i is [i // inner, i % inner]; both levels may be strided views."""

    format: RowFormat
    data: Tensor  # [outer, inner, data_bytes] uint8
    scale: Tensor  # [outer, inner, scale_bytes] uint8

    @staticmethod
    def empty(format: RowFormat, count: int, device: torch.device) -> "Rows":
        """`count` rows of zero bytes."""
        data = torch.zeros((1, count, format.data_bytes), dtype=torch.uint8, device=device)
        scale = torch.zeros((1, count, format.scale_bytes), dtype=torch.uint8, device=device)
        return Rows(format, data, scale)

    @property
    def count(self) -> int:
        return self.data.shape[0] * self.data.shape[1]

    def get_packed(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The bytes of rows [..]: data [.., data_bytes] and scales [.., scale_bytes]."""
        outer, inner = self._places(index)
        return self.data[outer, inner], self.scale[outer, inner]

    def put_packed(self, index: Tensor, data: Tensor, scale: Tensor) -> None:
        outer, inner = self._places(index)
        self.data[outer, inner] = data
        self.scale[outer, inner] = scale

    def get(self, index: Tensor) -> Tensor:
        """The values of rows [..]: float32 [.., dim]."""
        return unpack(self.format, *self.get_packed(index))

    def put(self, index: Tensor, values: Tensor) -> None:
        """Writes values [m, dim], rounded to the format, to rows index [m]."""
        self.put_packed(index, *pack(self.format, values))

    def _places(self, index: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.data.shape[1]
        return index // inner, index % inner


def pack(format: RowFormat, values: Tensor) -> tuple[Tensor, Tensor]:
    """Values [.., dim] -> the bytes of a row, data and scales. Unused scale bytes are zero."""
    if format.name == "float32":
        return _bytes(values.float()), _scale_bytes(format, values)
    if format.name == "fp4":
        return fp4_quantise(values, FP4_SCALE_GROUP)
    if format.name == "fp8-all":
        return fp8_quantise(values, SMALL_FP8_GROUP)
    if format.name == "fp4-fine":
        return fine_fp4_quantise(values, FINE_FP4_GROUP)
    assert format.name == "fp8", f"row format is {format.name!r}; wanted {KNOWN}"
    nope = _nope(format)
    codes, scales = fp8_quantise(values[..., :nope], FP8_SCALE_GROUP)
    scale = _scale_bytes(format, values)
    scale[..., : scales.shape[-1]] = scales
    return torch.cat([codes, _bytes(values[..., nope:].to(torch.bfloat16))], dim=-1), scale


def unpack(format: RowFormat, data: Tensor, scale: Tensor) -> Tensor:
    """The inverse of `pack`: float32 [.., dim]."""
    if format.name == "float32":
        return data.contiguous().view(torch.float32)
    if format.name == "fp4":
        return fp4_dequantise(data, scale)
    if format.name == "fp8-all":
        return fp8_dequantise(data, scale)
    if format.name == "fp4-fine":
        return fine_fp4_dequantise(data, scale)
    assert format.name == "fp8", f"row format is {format.name!r}; wanted {KNOWN}"
    nope = _nope(format)
    values = fp8_dequantise(data[..., :nope], scale[..., : nope // FP8_SCALE_GROUP])
    rope = data[..., nope:].contiguous().view(torch.bfloat16)
    return torch.cat([values, rope.float()], dim=-1)


def _nope(format: RowFormat) -> int:
    """dims = nope + rope and bytes = nope + 2 rope, so nope = 2 dims - bytes."""
    return 2 * format.dim - format.data_bytes


def _bytes(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.uint8)


def _scale_bytes(format: RowFormat, values: Tensor) -> Tensor:
    shape = (*values.shape[:-1], format.scale_bytes)
    return torch.zeros(shape, dtype=torch.uint8, device=values.device)
