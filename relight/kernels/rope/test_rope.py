import pytest
import torch

from relight.base.config import RopeScaling
from relight.kernels.rope import frequencies, rotate
from relight.kernels.testing import assert_bits_equal, assert_rows_invariant, bf16_steps

YARN = RopeScaling(factor=16, beta_fast=32, beta_slow=1, original_max_position=65536)
TABLES = {"plain": (10000.0, None), "yarn": (160000.0, YARN)}


def test_frequencies_of_the_released_model() -> None:
    found = frequencies(160000.0, 64, YARN)
    wanted = {
        0: 1.0,
        1: 0.687656045,
        8: 0.05,
        15: 0.00363553851,
        16: 0.00226562493,
        20: 0.000296977785,
        24: 1.95312532e-05,
        25: 5.37231244e-06,
        31: 5.6805294e-07,
    }
    for pair, value in wanted.items():
        assert found[pair].item() == pytest.approx(value, rel=1e-7)


@pytest.mark.parametrize("name", TABLES)
def test_rotation_equals_official(device: str, vectors, name: str) -> None:
    table = frequencies(TABLES[name][0], 64, TABLES[name][1]).to(device)
    positions, x = vectors(f"rope_{name}/positions").long(), vectors(f"rope_{name}/x")
    angles = positions.float().unsqueeze(1) * table
    assert (angles.cos() - vectors(f"rope_{name}/cos")).abs().max() < 2e-6
    assert (angles.sin() - vectors(f"rope_{name}/sin")).abs().max() < 2e-6
    for inverse, key in ((False, "forward"), (True, "inverse")):
        found = rotate(x, positions, table, inverse=inverse, boundary=torch.bfloat16)
        assert bf16_steps(found[:, -64:], vectors(f"rope_{name}/{key}_last64")) <= 1
        assert_bits_equal(found[:, :-64], x[:, :-64])


def test_the_inverse_takes_the_rotation_off_up_to_a_million(device: str) -> None:
    table = frequencies(10000.0, 64, None).to(device)
    positions = torch.tensor([0, 1, 77, 131072, 2**20 - 1], device=device)
    x = torch.randn(5, 3, 96).to(device)
    turned = rotate(x, positions, table, boundary=torch.float32)
    back = rotate(turned, positions, table, inverse=True, boundary=torch.float32)
    assert torch.allclose(back, x, atol=1e-5)
    assert_bits_equal(turned[0], x[0], "position 0")
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-5)


@pytest.mark.parametrize("boundary", [torch.float32, torch.bfloat16])
def test_rows_are_invariant(device: str, boundary) -> None:
    table = frequencies(10000.0, 8, None).to(device)
    inputs = {
        "x": torch.randn(130, 3, 20).to(device),
        "positions": torch.randint(0, 2**20, (130,)).to(device),
    }
    for family in ("prefill", "step"):
        assert_rows_invariant(
            lambda x, positions: rotate(x, positions, table, boundary=boundary), inputs, family
        )
