import pytest
import torch

from relight.kernels.norm import rms_norm
from relight.kernels.testing import assert_bits_equal, assert_rows_invariant

BOUNDARIES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(130, 100), (40, 3, 64)])
def test_rows_are_invariant(device: str, boundary, weighted: bool, shape) -> None:
    weight = torch.randn(shape[-1]).to(device) if weighted else None
    inputs = {"x": torch.randn(shape).to(device)}
    assert_rows_invariant(lambda x: rms_norm(x, weight, 1e-6, boundary), inputs, "prefill")
    assert_rows_invariant(lambda x: rms_norm(x, weight, 1e-6, boundary), inputs, "step")


@pytest.mark.parametrize("dtype", BOUNDARIES)
def test_the_norm_is_float32_inside_with_one_rounding(device: str, dtype) -> None:
    x, weight = (torch.randn(20, 96) * 7).to(dtype).to(device), torch.randn(96).to(device)
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-3).rsqrt() * weight
    found = rms_norm(x, weight, 1e-3, torch.float32)
    assert torch.allclose(found.double(), exact, rtol=1e-6, atol=0)
    assert_bits_equal(rms_norm(x, weight, 1e-3, torch.bfloat16), found.to(torch.bfloat16))


def test_unweighted_in_bf16_rounds_every_step_as_official_code_does(device: str) -> None:
    q = torch.randn(200, 4, 128).to(torch.bfloat16).to(device)
    official = q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6)
    found = rms_norm(q, None, 1e-6, torch.bfloat16)
    # torch sums the mean in another order: now and then one row's factor is one step off
    differs = (found != official).flatten(1).any(1)
    assert differs.float().mean() < 0.05
    assert torch.allclose(found.float(), official.float(), rtol=2.0**-6)


def test_no_rows_give_no_rows(device: str) -> None:
    x = torch.zeros(0, 3, 8, device=device)
    assert rms_norm(x, None, 1e-6, torch.bfloat16).shape == (0, 3, 8)


def test_a_wrong_weight_is_named(device: str) -> None:
    with pytest.raises(AssertionError, match=r"weight has shape \(7,\); wanted \(8,\)"):
        rms_norm(torch.zeros(2, 8), torch.zeros(7), 1e-6, torch.float32)
