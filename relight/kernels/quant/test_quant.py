import pytest
import torch

from relight.kernels.quant import fp4_grid, fp8_grid, hadamard
from relight.kernels.testing import assert_bits_equal, assert_rows_invariant


@pytest.mark.parametrize("block", [32, 64, 128])
def test_the_fp8_grid_is_official(device: str, vectors, block: int) -> None:
    found = fp8_grid(vectors("quant/x"), block)
    assert torch.equal(found.to(torch.bfloat16), vectors(f"quant/fp8_block{block}_back"))
    assert torch.equal(found.to(torch.bfloat16).float(), found), "bf16 holds every value"


def test_the_fp4_grid_is_official(device: str, vectors) -> None:
    found = fp4_grid(vectors("quant/x"))
    assert torch.equal(found.to(torch.bfloat16), vectors("quant/fp4_block32_e8m0_back"))


@pytest.mark.parametrize("size", [64, 128])
def test_the_hadamard_rotation_is_official(device: str, vectors, size: int) -> None:
    found = hadamard(vectors(f"hadamard{size}/x"), torch.bfloat16)
    assert_bits_equal(found, vectors(f"hadamard{size}/y"))


@pytest.mark.parametrize("size", [1, 2, 32, 128])
def test_the_hadamard_matrix_is_orthonormal_and_its_own_inverse(device: str, size: int) -> None:
    matrix = hadamard(torch.eye(size, device=device), torch.float32)
    assert torch.allclose(matrix @ matrix, torch.eye(size, device=device), atol=1e-6)
    assert torch.equal(matrix, matrix.t())


@pytest.mark.parametrize(
    "op",
    [
        lambda x: fp8_grid(x, 32),
        fp4_grid,
        lambda x: hadamard(x, torch.float32),
        lambda x: hadamard(x, torch.bfloat16),
    ],
)
def test_rows_are_invariant(device: str, op) -> None:
    inputs = {"x": torch.randn(130, 2, 64).to(device)}
    for family in ("prefill", "step"):
        assert_rows_invariant(op, inputs, family)
