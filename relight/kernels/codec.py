"""Bits and values of the number formats in checkpoints and caches: E4M3, E2M1 and UE8M0, and the
weights made of them. Knows no op.

Encoding is arithmetic on float32 bits, decoding is by table, so neither needs a device that knows
these types. All scales are powers of two: multiplying by them and by their inverses is exact.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

E4M3_MAX = 448.0
E2M1_MAX = 6.0

FP8_FLOOR = 1e-4
"""Least block maximum that sets an FP8 scale (official activation and KV quantisation)."""

FP4_FLOOR = 6.0 * 2.0**-126
"""Least block maximum that sets an FP4 scale: the scale stays a normal float."""

NAN_SCALE = 255

_MANTISSA_BITS = 23
_MANTISSA = 0x007FFFFF
_EXPONENT = 0x7F800000
_BIAS = 127


def e8m0_decode(scale: Tensor) -> Tensor:
    """UE8M0 bytes -> float32 2^(byte - 127); 0 is the subnormal 2^-127, 255 is NaN."""
    return _e8m0_table(scale.device).index_select(0, scale.reshape(-1).int()).view(scale.shape)


@functools.cache
def _e8m0_table(device: torch.device) -> Tensor:
    values = [2.0 ** (byte - _BIAS) for byte in range(NAN_SCALE)]
    return torch.tensor([*values, float("nan")], device=device)


def e4m3_decode(codes: Tensor) -> Tensor:
    """E4M3 (fn) bytes -> float32; 0x7f and 0xff are NaN, there is no infinity."""
    return _e4m3_table(codes.device).index_select(0, codes.reshape(-1).int()).view(codes.shape)


@functools.cache
def _e4m3_table(device: torch.device) -> Tensor:
    magnitudes = []
    for code in range(127):
        exponent, mantissa = code >> 3, code & 7
        whole = 8 + mantissa if exponent else mantissa
        magnitudes.append(whole * 2.0 ** (max(exponent, 1) - 10))
    half = torch.tensor([*magnitudes, float("nan")])
    return torch.cat([half, -half]).to(device)


def e4m3_round(x: Tensor) -> Tensor:
    """The nearest E4M3 value in float32, ties to even, clamped to ±448; NaN stays. A zero result
    may lose its sign."""
    return _round_to_grid(x.clamp(-E4M3_MAX, E4M3_MAX), mantissa_bits=3, min_exponent=-6)


def e4m3_encode(x: Tensor) -> Tensor:
    """float32 -> E4M3 bytes of `e4m3_round`, with the sign of zero kept."""
    codes = _grid_codes(e4m3_round(x), mantissa_bits=3, min_exponent=-6)
    codes = torch.where(x.isnan(), 0x7F, codes)
    return (codes + 0x80 * torch.signbit(x)).to(torch.uint8)


def e2m1_round(x: Tensor) -> Tensor:
    """The nearest of ±{0, 0.5, 1, 1.5, 2, 3, 4, 6} in float32, ties to the even code, clamped."""
    return _round_to_grid(x.clamp(-E2M1_MAX, E2M1_MAX), mantissa_bits=1, min_exponent=0)


def e2m1_encode(x: Tensor) -> Tensor:
    """float32 -> E2M1 codes 0…15 (bit 3 is the sign, kept for zero) as bytes. There is no NaN: it
    becomes code 7 or 15."""
    codes = _grid_codes(e2m1_round(x), mantissa_bits=1, min_exponent=0)
    codes = torch.where(x.isnan(), 7, codes)
    return (codes + 8 * torch.signbit(x)).to(torch.uint8)


def e2m1_decode(codes: Tensor) -> Tensor:
    """Codes 0…15 as bytes -> float32."""
    return _e2m1_table(codes.device).index_select(0, codes.reshape(-1).int()).view(codes.shape)


@functools.cache
def _e2m1_table(device: torch.device) -> Tensor:
    half = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    return torch.cat([half, -half]).to(device)


@functools.cache
def _e2m1_pairs(device: torch.device) -> Tensor:
    """[256] int64: both float32 values of a packed byte side by side, so that a look-up moves one
    word."""
    table, byte = _e2m1_table(device), torch.arange(256, device=device)
    return torch.stack([table[byte & 15], table[byte >> 4]], dim=1).view(torch.int64).flatten()


def fp4_pack(codes: Tensor) -> Tensor:
    """Codes [.., d] -> bytes [.., d / 2]: the low nibble is the even column."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def fp4_unpack(packed: Tensor) -> Tensor:
    """Bytes [.., d / 2] -> codes [.., d]."""
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def fp4_decode_packed(packed: Tensor) -> Tensor:
    """Bytes [.., d / 2] -> float32 values [.., d]."""
    pairs = _e2m1_pairs(packed.device).index_select(0, packed.reshape(-1).int())
    return pairs.view(torch.float32).view(*packed.shape[:-1], 2 * packed.shape[-1])


def _round_to_grid(x: Tensor, mantissa_bits: int, min_exponent: int) -> Tensor:
    """Rounds to multiples of 2^(e - mantissa_bits), e the exponent of x but at least min_exponent.

    Adding 1.5 * 2^(e - mantissa_bits + 23) leaves just those bits in the float32 mantissa, and the
    addition itself rounds to nearest even.
    """
    exponent = (x.contiguous().view(torch.int32) & _EXPONENT).clamp_(
        min=(min_exponent + _BIAS) << _MANTISSA_BITS
    )
    exponent += (_MANTISSA_BITS - mantissa_bits) << _MANTISSA_BITS
    shift = exponent.bitwise_or_(1 << (_MANTISSA_BITS - 1)).view(torch.float32)
    return (x + shift).sub_(shift)


def _grid_codes(values: Tensor, mantissa_bits: int, min_exponent: int) -> Tensor:
    """Codes without sign of values on the grid, int32: consecutive values have consecutive
    codes."""
    bits = values.contiguous().view(torch.int32)
    exponent = ((bits & _EXPONENT) >> _MANTISSA_BITS).clamp_(min=min_exponent + _BIAS)
    step = ((2 * _BIAS + mantissa_bits - exponent) << _MANTISSA_BITS).view(torch.float32)
    multiple = (values.abs() * step).nan_to_num(0.0).to(torch.int32)
    return ((exponent - (min_exponent + _BIAS)) << mantissa_bits) + multiple


def ceil_power_of_two(x: Tensor) -> Tensor:
    """UE8M0 bytes of 2^ceil(log2(x)) for x > 0, on the bits of float32: the exponent, and one more
    where the mantissa is not zero. NaN and infinity give 255."""
    return _exponent_up(x).to(torch.uint8)


def _exponent_up(x: Tensor) -> Tensor:
    bits = x.contiguous().view(torch.int32)
    up = (bits >> _MANTISSA_BITS) + ((bits & _MANTISSA) != 0).int()
    return up.clamp_(max=NAN_SCALE)


def fp8_scales(x: Tensor, block: int, floor: float = FP8_FLOOR) -> Tensor:
    """UE8M0 bytes [.., d / block] of the FP8 blocks of x [.., d] float32."""
    return ceil_power_of_two(_fp8_least(_split(x, block), floor))


def fp4_scales(x: Tensor, block: int) -> Tensor:
    """UE8M0 bytes [.., d / block] of the FP4 blocks of x [.., d] float32."""
    return ceil_power_of_two(_fp4_least(_split(x, block)))


def _fp8_least(blocks: Tensor, floor: float) -> Tensor:
    """What the scale of each block must be at least."""
    return blocks.abs().amax(-1).clamp_(min=floor).mul_(1.0 / E4M3_MAX)


def _fp4_least(blocks: Tensor) -> Tensor:
    return blocks.abs().amax(-1).clamp_(min=FP4_FLOOR).mul_(1.0 / E2M1_MAX)


def _split(x: Tensor, block: int) -> Tensor:
    """x [.., d] as [.., blocks, block]."""
    assert x.shape[-1] % block == 0, f"{x.shape[-1]} values are no whole blocks of {block}"
    return x.reshape(*x.shape[:-1], x.shape[-1] // block, block)


def _rounded(blocks: Tensor, least: Tensor, grid: Callable[[Tensor], Tensor]) -> Tensor:
    """Blocks [.., blocks, block] divided by their scales, rounded and multiplied again: [.., d]."""
    up = _exponent_up(least)
    scale = _e8m0_table(up.device).index_select(0, up.flatten()).view(up.shape).unsqueeze(-1)
    return grid(blocks * scale.reciprocal()).mul_(scale).flatten(-2)


def _blocks(x: Tensor, scales: Tensor) -> Tensor:
    """x [.., d] as [.., blocks, width], a view."""
    blocks: Tensor = x.unflatten(-1, (scales.shape[-1], x.shape[-1] // scales.shape[-1]))
    return blocks


def _unscaled(x: Tensor, scales: Tensor) -> Tensor:
    """x [.., d] divided by its blocks' scales, by exact multiplication: a new tensor."""
    return (_blocks(x, scales) * (1.0 / e8m0_decode(scales)).unsqueeze(-1)).flatten(-2)


def _scale(values: Tensor, scales: Tensor) -> Tensor:
    """Multiplies values [.., d] in place by their blocks' scales."""
    _blocks(values, scales).mul_(e8m0_decode(scales).unsqueeze(-1))
    return values


def fp8_quantise(x: Tensor, block: int, floor: float = FP8_FLOOR) -> tuple[Tensor, Tensor]:
    """x [.., d] -> E4M3 codes [.., d] and UE8M0 scales [.., d / block], as the official kernel:
    scale 2^ceil(log2(max(amax, floor) * (1/448))), values clamped, ties to even."""
    x = x.float()
    scales = fp8_scales(x, block, floor)
    return e4m3_encode(_unscaled(x, scales)), scales


def fp8_dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    return _scale(e4m3_decode(codes), scales)


def fp8_round(x: Tensor, block: int, floor: float = FP8_FLOOR) -> Tensor:
    """x [.., d] -> the float32 values that `fp8_quantise` and `fp8_dequantise` give."""
    blocks = _split(x.float(), block)
    return _rounded(blocks, _fp8_least(blocks, floor), e4m3_round)


def fp4_quantise(x: Tensor, block: int = 32) -> tuple[Tensor, Tensor]:
    """x [.., d] -> packed E2M1 bytes [.., d / 2] and UE8M0 scales [.., d / block], as the official
    kernel: scale 2^ceil(log2(max(amax, 6 * 2^-126) * (1/6)))."""
    x = x.float()
    scales = fp4_scales(x, block)
    return fp4_pack(e2m1_encode(_unscaled(x, scales))), scales


def fp4_dequantise(packed: Tensor, scales: Tensor) -> Tensor:
    return _scale(fp4_decode_packed(packed), scales)


def fp4_round(x: Tensor, block: int = 32) -> Tensor:
    """x [.., d] -> the float32 values that `fp4_quantise` and `fp4_dequantise` give."""
    blocks = _split(x.float(), block)
    return _rounded(blocks, _fp4_least(blocks), e2m1_round)


class FastLinear(Protocol):
    """Kernels for products of rows of one family, handed to a weight at load."""

    def takes(self, x: Tensor, w: "Weight", quantised: bool) -> bool: ...

    def takes_groups(self, x: Tensor, w: "Weight", boundary: torch.dtype) -> bool: ...

    def linear(self, x: Tensor, w: "Weight", boundary: torch.dtype) -> Tensor: ...

    def grouped(self, x: Tensor, w: "Weight", boundary: torch.dtype) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """A matrix that is stored as it is, float32 or bfloat16. `act_block` 0: its input is never
    quantised."""

    data: Tensor  # [N, K]
    made: FastLinear | None = field(default=None, kw_only=True, repr=False)  # of made rows
    given: FastLinear | None = field(default=None, kw_only=True, repr=False)  # of given rows

    quantised = False
    act_block = 0

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], self.data.shape[1]

    def decode(self) -> Tensor:
        """float32 [N, K]; the stored tensor itself if that is float32."""
        return self.data.float()

    def rows(self, start: int, stop: int) -> "DenseWeight":
        return DenseWeight(self.data[start:stop])


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """E4M3 with one UE8M0 scale per `block` × `block` values. Inputs are quantised in blocks of the
    same width."""

    data: Tensor  # [N, K] uint8
    scale: Tensor  # [ceil(N / block), ceil(K / block)] uint8
    block: int
    made: FastLinear | None = field(default=None, kw_only=True, repr=False)  # of made rows
    given: FastLinear | None = field(default=None, kw_only=True, repr=False)  # of given rows
    values: Tensor | None = field(default=None, kw_only=True, repr=False)  # decoded, if kept

    quantised = True

    @property
    def act_block(self) -> int:
        return self.block

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], self.data.shape[1]

    def decode(self) -> Tensor:
        if self.values is not None:
            return self.values
        rows, columns = self.shape
        scale = e8m0_decode(self.scale).repeat_interleave(self.block, 1)[:, :columns]
        return e4m3_decode(self.data).mul_(scale.repeat_interleave(self.block, 0)[:rows])

    def rows(self, start: int, stop: int) -> "Fp8Weight":
        """`start` is a multiple of the block."""
        assert start % self.block == 0, f"row {start} is inside a block of {self.block}"
        scale = self.scale[start // self.block : -(-stop // self.block)]
        values = None if self.values is None else self.values[start:stop]
        return Fp8Weight(self.data[start:stop], scale, self.block, values=values)


@dataclass(frozen=True, slots=True)
class Fp4Weight:
    """Packed E2M1 with one UE8M0 scale per 32 columns of a row."""

    data: Tensor  # [N, K / 2] uint8
    scale: Tensor  # [N, K / 32] uint8
    act_block: int = 128
    made: FastLinear | None = field(default=None, kw_only=True, repr=False)  # of made rows
    given: FastLinear | None = field(default=None, kw_only=True, repr=False)  # of given rows
    values: Tensor | None = field(default=None, kw_only=True, repr=False)  # decoded, if kept

    quantised = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], 2 * self.data.shape[1]

    def decode(self) -> Tensor:
        return fp4_dequantise(self.data, self.scale) if self.values is None else self.values

    def rows(self, start: int, stop: int) -> "Fp4Weight":
        values = None if self.values is None else self.values[start:stop]
        data, scale = self.data[start:stop], self.scale[start:stop]
        return Fp4Weight(data, scale, self.act_block, values=values)


Weight = DenseWeight | Fp8Weight | Fp4Weight
"""A matrix [N, K] that maps K values to N, in its stored form. `decode()` is float32 [N, K], and
`rows(start, stop)` the part that makes those outputs."""


def _one(stack: Tensor, index: int | Tensor) -> Tensor:
    return stack[index] if isinstance(index, int) else stack.index_select(0, index)[0]


@dataclass(frozen=True, slots=True)
class StackedDense:
    """One matrix an expert. That of `expert` is a copy where its number comes in a tensor [1],
    which nobody looks at."""

    data: Tensor  # [E, N, K] float32 or bfloat16

    act_block = 0

    def expert(self, index: int | Tensor) -> DenseWeight:
        return DenseWeight(_one(self.data, index))


@dataclass(frozen=True, slots=True)
class StackedFp8:
    data: Tensor  # [E, N, K] uint8
    scale: Tensor  # [E, ceil(N / block), ceil(K / block)] uint8
    block: int
    values: Tensor | None = field(default=None, kw_only=True, repr=False)  # decoded, if kept

    @property
    def act_block(self) -> int:
        return self.block

    def expert(self, index: int | Tensor) -> Fp8Weight:
        values = None if self.values is None else _one(self.values, index)
        data, scale = _one(self.data, index), _one(self.scale, index)
        return Fp8Weight(data, scale, self.block, values=values)


@dataclass(frozen=True, slots=True)
class StackedFp4:
    data: Tensor  # [E, N, K / 2] uint8
    scale: Tensor  # [E, N, K / 32] uint8
    act_block: int = 128
    values: Tensor | None = field(default=None, kw_only=True, repr=False)  # decoded, if kept

    def expert(self, index: int | Tensor) -> Fp4Weight:
        values = None if self.values is None else _one(self.values, index)
        data, scale = _one(self.data, index), _one(self.scale, index)
        return Fp4Weight(data, scale, self.act_block, values=values)


StackedWeight = StackedDense | StackedFp8 | StackedFp4
"""The matrices of all experts of a layer."""
