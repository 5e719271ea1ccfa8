import pytest
import torch

from relight.base.formats import compressed_row_v41, window_row_v41
from relight.kernels.codec import e4m3_decode
from relight.kernels.fine_fp4 import fine_fp4_dequantise, fine_fp4_quantise
from relight.kernels.rows import Rows


def test_codes_scales_and_values_equal_official(device: str, vectors) -> None:
    packed, scales = fine_fp4_quantise(vectors("quant/x"), 16)
    assert torch.equal(packed, vectors("quant/fp4_block16_e4m3_packed"))
    assert torch.equal(scales, vectors("quant/fp4_block16_e4m3_scales"))
    values = fine_fp4_dequantise(packed, scales)
    assert torch.equal(values, vectors("quant/fp4_block16_e4m3_back").float())


def test_values_are_exact_in_bf16(device: str) -> None:
    values = fine_fp4_dequantise(*fine_fp4_quantise(torch.randn(50, 64).to(device) * 9, 16))
    assert torch.equal(values, values.to(torch.bfloat16).float())


def test_a_group_is_off_by_half_its_widest_step_at_most(device: str) -> None:
    """A scale is rounded by a sixteenth at most, and the widest step is 2 of 6."""
    x = torch.randn(200, 128).to(device)
    packed, scales = fine_fp4_quantise(x, 16)
    error = (fine_fp4_dequantise(packed, scales) - x).abs().unflatten(-1, (-1, 16)).amax(-1)
    assert bool((error <= 1.4 * e4m3_decode(scales)).all())


def test_zeros_and_tiny_values_keep_a_scale_above_zero(device: str) -> None:
    packed, scales = fine_fp4_quantise(torch.zeros(2, 32, device=device), 16)
    assert bool((e4m3_decode(scales) == 2.0**-9).all())
    assert bool((fine_fp4_dequantise(packed, scales) == 0).all())


def test_a_nan_stays_in_its_group(device: str) -> None:
    x = torch.randn(1, 64).to(device)
    wanted = fine_fp4_dequantise(*fine_fp4_quantise(x, 16))
    x[0, 20] = float("nan")
    found = fine_fp4_dequantise(*fine_fp4_quantise(x, 16))
    assert bool(found[0, 16:32].isnan().all())
    assert torch.equal(found[0, 32:], wanted[0, 32:])
    assert torch.equal(found[0, :16], wanted[0, :16])


@pytest.mark.parametrize("format", [window_row_v41(512), compressed_row_v41(512)])
def test_a_row_reads_back_as_it_was_rounded(device: str, format) -> None:
    rows = Rows.empty(format, 6, torch.device(device))
    values = torch.randn(3, 512).to(device)
    at = torch.tensor([4, 0, 2], device=device)
    rows.put(at, values)
    found = rows.get(at)
    assert (found - values).abs().max() < 0.7
    again = Rows.empty(format, 6, torch.device(device))
    again.put_packed(at, *rows.get_packed(at))
    assert torch.equal(again.get(at), found)
    assert torch.equal(found, found.to(torch.bfloat16).float()), "lossless against bf16"


def test_rows_of_v41_have_the_published_bytes() -> None:
    assert (window_row_v41(512).bytes, compressed_row_v41(512).bytes) == (528, 288)
