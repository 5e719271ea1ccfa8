"""Every code, tie, floor and special value of the number formats."""

import pytest
import torch
from torch import Tensor

from relight.kernels.codec import (
    FP4_FLOOR,
    FP8_FLOOR,
    DenseWeight,
    Fp4Weight,
    Fp8Weight,
    StackedDense,
    StackedFp4,
    StackedFp8,
    ceil_power_of_two,
    e2m1_decode,
    e2m1_encode,
    e2m1_round,
    e4m3_decode,
    e4m3_encode,
    e4m3_round,
    e8m0_decode,
    fp4_dequantise,
    fp4_pack,
    fp4_quantise,
    fp4_round,
    fp4_unpack,
    fp8_dequantise,
    fp8_quantise,
    fp8_round,
)
from relight.kernels.testing import assert_bits_equal

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_TIES = ((0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6))


def all_bytes(device: str) -> Tensor:
    return torch.arange(256, device=device).to(torch.uint8)


def all_bf16() -> Tensor:
    """Every bf16 value but NaNs and infinities, as float32."""
    values = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    return values[values.isfinite()].float()


def midpoints(values: Tensor) -> Tensor:
    """The ties between neighbours, and the floats just below and above."""
    middle = (values[1:] + values[:-1]) / 2
    infinity = torch.tensor(float("inf"))
    return torch.cat([middle, middle.nextafter(infinity), middle.nextafter(-infinity)])


def test_every_e8m0_byte_is_its_power_of_two(device: str) -> None:
    found = e8m0_decode(all_bytes(device)).cpu()
    assert found[:255].tolist() == [2.0 ** (byte - 127) for byte in range(255)]
    assert found[255].isnan()


def test_every_e4m3_byte_has_torchs_value(device: str) -> None:
    found = e4m3_decode(all_bytes(device)).cpu()
    assert_bits_equal(found, all_bytes("cpu").view(torch.float8_e4m3fn).float())
    assert found.isnan().nonzero().flatten().tolist() == [127, 255]


def test_every_e4m3_value_encodes_to_its_byte(device: str) -> None:
    assert torch.equal(e4m3_encode(e4m3_decode(all_bytes(device))), all_bytes(device))


def test_e4m3_rounds_to_nearest_even_and_saturates(device: str) -> None:
    codes = e4m3_decode(all_bytes("cpu")[:127])
    ties = midpoints(codes)
    limits = torch.tensor([448.0, 464.0, 480.0, 1e30, float("inf"), 2.0**-10, 2.0**-11, 1e-45, 0.0])
    x = torch.cat([all_bf16(), ties, limits, torch.randn(10_000) * 100])
    x = torch.cat([x, -x])
    wanted = x.clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(e4m3_encode(x.to(device)).cpu(), wanted.view(torch.uint8))
    assert torch.equal(e4m3_round(x.to(device)).cpu(), wanted.float())


def test_every_e2m1_code_has_its_value_both_ways(device: str) -> None:
    codes = torch.arange(16, device=device).to(torch.uint8)
    values = e2m1_decode(codes)
    assert values.tolist() == [*E2M1, *(-value for value in E2M1)]
    assert torch.equal(e2m1_encode(values), codes), "−0 has code 8"


def test_e2m1_ties_go_to_the_even_code(device: str) -> None:
    x, wanted = (torch.tensor(column) for column in zip(*E2M1_TIES, strict=True))
    assert torch.equal(e2m1_encode(x.to(device)).cpu(), wanted.to(torch.uint8))
    assert torch.equal(e2m1_encode(-x.to(device)).cpu(), (wanted + 8).to(torch.uint8))


def test_e2m1_is_the_nearest_value_and_saturates(device: str) -> None:
    grid = torch.tensor(E2M1, dtype=torch.float64)
    x = torch.cat([all_bf16().abs(), midpoints(grid.float()), torch.rand(10_000) * 7])
    distance = (x.double().unsqueeze(1) - grid).abs()
    nearest = distance == distance.amin(1, keepdim=True)
    even = nearest & (torch.arange(8) % 2 == 0)
    wanted = torch.where(nearest.sum(1) == 2, even.int().argmax(1), nearest.int().argmax(1))
    wanted = torch.where(x > 6, 7, wanted)
    assert torch.equal(e2m1_encode(x.to(device)).cpu().long(), wanted)
    assert torch.equal(e2m1_round(x.to(device)).cpu(), grid.float()[wanted])


def test_the_low_nibble_is_the_even_column(device: str) -> None:
    codes = torch.tensor([[1, 15, 0, 7]], dtype=torch.uint8, device=device)
    assert fp4_pack(codes).tolist() == [[0xF1, 0x70]]
    assert torch.equal(fp4_unpack(fp4_pack(codes)), codes)


def test_all_packed_bytes_decode_as_their_nibbles(device: str) -> None:
    packed = all_bytes(device).view(2, 128)
    scale = torch.full((2, 8), 128, dtype=torch.uint8, device=device)
    assert torch.equal(fp4_dequantise(packed, scale), e2m1_decode(fp4_unpack(packed)) * 2)


def test_scales_round_up_to_powers_of_two(device: str) -> None:
    exponents = torch.arange(-126, 128, dtype=torch.float64)
    power = torch.exp2(exponents).float().to(device)
    byte = (exponents + 127).to(torch.uint8).to(device)
    infinity = torch.tensor(float("inf"), device=device)
    assert torch.equal(ceil_power_of_two(power), byte)
    assert torch.equal(ceil_power_of_two(power.nextafter(infinity)), byte + 1)
    assert torch.equal(ceil_power_of_two(power.nextafter(-infinity))[1:], byte[1:])
    special = torch.tensor([float("inf"), float("nan")], device=device)
    assert ceil_power_of_two(special).tolist() == [255, 255]


@pytest.mark.parametrize(
    ("quantise", "largest", "first", "block"),
    [(fp8_quantise, 448.0, -21, 64), (fp4_quantise, 6.0, -125, 32)],
)
def test_the_scale_changes_just_above_the_largest_code(
    device: str, quantise, largest: float, first: int, block: int
) -> None:
    exponents = torch.arange(first, 119)
    amax = torch.exp2(exponents.double()).mul(largest).float()
    x = torch.zeros(len(amax), block)
    x[:, 3] = -amax
    wanted = (exponents + 127).to(torch.uint8)
    assert torch.equal(quantise(x.to(device), block)[1].cpu().squeeze(1), wanted)
    x[:, 3] = amax.nextafter(torch.tensor(float("inf")))
    assert torch.equal(quantise(x.to(device), block)[1].cpu().squeeze(1), wanted + 1)
    x[:, 3] = amax.nextafter(torch.tensor(0.0))
    assert torch.equal(quantise(x.to(device), block)[1].cpu().squeeze(1), wanted)


def test_blocks_below_the_floor_have_the_floors_scale(device: str) -> None:
    small = torch.tensor([0.0, 1e-45, 1e-38, 1e-6, FP8_FLOOR], device=device)
    x = small.unsqueeze(1).repeat(1, 64)
    scales = fp8_quantise(x, 64)[1]
    assert scales.unique().tolist() == [127 - 22]  # 1e-4 / 448 = 2^-22.1, rounded up
    small = torch.tensor([0.0, 1e-45, 2.0**-127, FP4_FLOOR], device=device)
    scales = fp4_quantise(small.unsqueeze(1).repeat(1, 32), 32)[1]
    assert scales.unique().tolist() == [1]


def test_zero_blocks_stay_zero_with_their_signs(device: str) -> None:
    x = torch.zeros(2, 64, device=device)
    x[1] = -0.0
    codes, scales = fp8_quantise(x, 64)
    assert codes.tolist() == [[0] * 64, [0x80] * 64]
    assert_bits_equal(fp8_dequantise(codes, scales), x)
    packed, scales = fp4_quantise(x, 32)
    assert packed.tolist() == [[0] * 32, [0x88] * 32]
    assert_bits_equal(fp4_dequantise(packed, scales), x)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")])
def test_a_block_that_is_not_finite_is_nan_and_alone(device: str, special: float) -> None:
    x = torch.randn(2, 128).to(device)
    sick = x.clone()
    sick[0, 70] = special
    for quantise, dequantise, block in (
        (fp8_quantise, fp8_dequantise, 64),
        (fp4_quantise, fp4_dequantise, 32),
    ):
        bad = torch.zeros(2, 128, dtype=torch.bool, device=device)
        bad[0, 64 : 64 + block] = True
        found = dequantise(*quantise(sick, block))
        assert torch.equal(found.isnan(), bad)
        assert_bits_equal(found[~bad], dequantise(*quantise(x, block))[~bad])


def test_grids_are_what_quantising_and_back_gives(device: str) -> None:
    x = (torch.randn(64, 256) * torch.exp2(torch.randint(-30, 30, (64, 1)).float())).to(device)
    for block in (32, 64, 128):
        assert torch.equal(fp8_round(x, block), fp8_dequantise(*fp8_quantise(x, block)))
    assert torch.equal(fp4_round(x), fp4_dequantise(*fp4_quantise(x)))
    assert torch.equal(fp8_round(fp8_round(x, 64), 64), fp8_round(x, 64))
    assert torch.equal(fp4_round(fp4_round(x)), fp4_round(x))


def test_bf16_inputs_are_their_float32_values(device: str) -> None:
    x = torch.randn(16, 128).to(torch.bfloat16).to(device)
    for found, wanted in zip(fp8_quantise(x, 64), fp8_quantise(x.float(), 64), strict=True):
        assert torch.equal(found, wanted)
    for found, wanted in zip(fp4_quantise(x), fp4_quantise(x.float()), strict=True):
        assert torch.equal(found, wanted)


def test_quantisers_equal_the_official_ones(device: str, vectors) -> None:
    x = vectors("quant/x")
    for block in (32, 64, 128):
        codes, scales = fp8_quantise(x, block)
        assert torch.equal(codes, vectors(f"quant/fp8_block{block}_values"))
        assert torch.equal(scales, vectors(f"quant/fp8_block{block}_scales"))
        back = fp8_dequantise(codes, scales).to(torch.bfloat16)
        assert_bits_equal(back, vectors(f"quant/fp8_block{block}_back"))
    packed, scales = fp4_quantise(x)
    assert torch.equal(packed, vectors("quant/fp4_block32_e8m0_packed"))
    assert torch.equal(scales, vectors("quant/fp4_block32_e8m0_scales"))
    back = fp4_dequantise(packed, scales).to(torch.bfloat16)
    assert_bits_equal(back, vectors("quant/fp4_block32_e8m0_back"))


def codes_and_scales(shape: tuple[int, ...], scales: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    codes = torch.randint(0, 256, shape).to(torch.uint8)
    codes = torch.where((codes & 127) == 127, codes - 1, codes)  # no NaN
    return codes, torch.randint(100, 140, scales).to(torch.uint8)


def test_fp8_weights_decode_block_by_block(device: str) -> None:
    codes, scale = codes_and_scales((200, 150), (2, 2))
    found = Fp8Weight(codes.to(device), scale.to(device), 128).decode().cpu()
    values = e4m3_decode(codes)
    for row, column in ((0, 0), (127, 127), (128, 0), (199, 149), (5, 128)):
        wanted = values[row, column] * 2.0 ** (int(scale[row // 128, column // 128]) - 127)
        assert found[row, column] == wanted
    assert torch.equal(found, found.to(torch.bfloat16).float()), "bf16 holds every value"


def test_fp4_weights_decode_group_by_group(device: str) -> None:
    codes, scale = codes_and_scales((6, 64), (6, 4))
    found = Fp4Weight(codes.to(device), scale.to(device)).decode().cpu()
    factors = e8m0_decode(scale).repeat_interleave(32, 1)
    assert torch.equal(found, e2m1_decode(fp4_unpack(codes)) * factors)
    assert torch.equal(found, found.to(torch.bfloat16).float()), "bf16 holds every value"


def test_a_weight_knows_its_shape_and_what_its_input_needs() -> None:
    codes, scale = codes_and_scales((256, 128), (2, 1))
    fp8, fp4 = Fp8Weight(codes, scale, 128), Fp4Weight(codes, codes[:, :8])
    dense = DenseWeight(torch.zeros(3, 5, dtype=torch.bfloat16))
    assert (fp8.shape, fp8.quantised, fp8.act_block) == ((256, 128), True, 128)
    assert (fp4.shape, fp4.quantised, fp4.act_block) == ((256, 256), True, 128)
    assert (dense.shape, dense.quantised, dense.act_block) == ((3, 5), False, 0)
    assert dense.decode().dtype == torch.float32


def test_an_expert_of_a_stack_is_its_own_weight(device: str) -> None:
    codes, scale = codes_and_scales((3, 128, 64), (3, 1, 1))
    groups = torch.randint(100, 140, (3, 128, 4)).to(torch.uint8)
    for stack, wanted in (
        (StackedFp8(codes, scale, 128), Fp8Weight(codes[1], scale[1], 128)),
        (StackedFp4(codes, groups), Fp4Weight(codes[1], groups[1])),
        (StackedDense(codes.float()), DenseWeight(codes[1].float())),
    ):
        assert torch.equal(stack.expert(1).decode(), wanted.decode())
