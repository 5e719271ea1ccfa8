"""Sums, products and functions whose bits do not depend on place, company or threads."""

import pytest
import torch

from relight.kernels.invariant import (
    BLOCK_ROWS,
    in_blocks,
    inverse_rms,
    keep_largest,
    matmul_rows,
    sigmoid,
    silu,
    softplus,
    tree_sum,
)
from relight.kernels.testing import (
    FAMILIES,
    THREADS,
    assert_bits_equal,
    assert_rows_invariant,
    same_bits,
    threads,
)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 100, 129, 4096])
def test_a_tree_sum_is_the_same_in_any_layout_and_padded_with_zeros(device: str, size: int) -> None:
    x = torch.randn(7, size).to(device)
    whole = tree_sum(x, -1)
    assert_bits_equal(tree_sum(x.t().contiguous(), 0), whole)
    assert_bits_equal(tree_sum(x.t(), 0), whole)
    assert_bits_equal(torch.stack([tree_sum(row, 0) for row in x]), whole)
    power = 1 << (size - 1).bit_length()
    assert_bits_equal(tree_sum(torch.nn.functional.pad(x, (0, power - size)), -1), whole)
    assert torch.allclose(whole.double(), x.double().sum(-1), atol=1e-4)


def test_a_tree_sum_over_nothing_is_zero(device: str) -> None:
    assert tree_sum(torch.zeros(3, 0, device=device), 1).tolist() == [0, 0, 0]


@pytest.mark.parametrize("function", [sigmoid, silu, softplus, torch.exp, torch.cos, torch.sin])
def test_functions_do_not_depend_on_an_elements_place(device: str, function) -> None:
    x = (torch.randn(1003) * 10).to(device)
    whole = function(x)
    for start in (1, 3, 8, 13):
        assert_bits_equal(function(x[start:]), whole[start:], f"from {start}")
    assert_bits_equal(torch.cat([function(part) for part in x.split(1)]), whole, "alone")
    assert_bits_equal(function(x[::3]), whole[::3], "strided")
    for count in THREADS:
        with threads(count):
            assert_bits_equal(function(x.repeat(200))[-1003:], whole, f"{count} threads")


def test_functions_are_accurate_and_do_not_overflow(device: str) -> None:
    x = torch.linspace(-200, 200, 4001, device=device)
    for ours, theirs in ((sigmoid, torch.sigmoid), (softplus, torch.nn.functional.softplus)):
        assert torch.allclose(ours(x).double(), theirs(x.double()), rtol=1e-5, atol=1e-7)
    assert torch.allclose(silu(x).double(), torch.nn.functional.silu(x.double()), rtol=1e-5)


def test_inverse_rms_of_zeros_is_that_of_eps(device: str) -> None:
    assert inverse_rms(torch.zeros(2, 5, device=device), 0.25).tolist() == [[2.0], [2.0]]


SHAPES = [(128, 96), (33, 7), (100, 24), (24, 32), (1024, 40), (4096, 64)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("inner", "columns"), SHAPES)
def test_rows_of_a_product_are_invariant(device: str, family, inner: int, columns: int) -> None:
    w = torch.randn(columns, inner).to(device)
    inputs = {"x": torch.randn(150, inner).to(device)}
    assert_rows_invariant(lambda x: matmul_rows(x, w, family), inputs, family)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_product_is_right(device: str, family) -> None:
    x, w = torch.randn(70, 48).to(device), torch.randn(20, 48).to(device)
    assert torch.allclose(matmul_rows(x, w, family).double(), x.double() @ w.double().T, atol=1e-4)
    assert matmul_rows(x[:0], w, family).shape == (0, 20)


def test_the_families_are_two(device: str) -> None:
    """Else a test of roles would prove nothing."""
    x, w = torch.randn(64, 1000).to(device), torch.randn(64, 1000).to(device)
    assert not same_bits(matmul_rows(x, w, "prefill"), matmul_rows(x, w, "step"))


def test_cuts_of_a_long_prompt_change_no_bit(device: str) -> None:
    x, w = torch.randn(2100, 96).to(device), torch.randn(64, 96).to(device)
    whole = matmul_rows(x, w, "prefill")
    for cut in (1000, 1024, 2099):
        parts = [matmul_rows(part, w, "prefill") for part in x.split(cut)]
        assert_bits_equal(torch.cat(parts), whole, f"cut at {cut}")


def test_blocks_are_padded_with_zeros_to_one_shape(device: str) -> None:
    seen = []

    def double(x):
        seen.append((tuple(x.shape), float(x.sum())))
        return 2 * x

    x = torch.ones(BLOCK_ROWS + 3, 2, device=device)
    assert torch.equal(in_blocks(double, x), 2 * x)
    assert seen == [((BLOCK_ROWS, 2), 2.0 * BLOCK_ROWS), ((BLOCK_ROWS, 2), 6.0)]


def test_the_largest_are_kept_and_of_equals_the_first(device: str) -> None:
    x = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0], [5.0, 5.0, 5.0, 5.0, 5.0, 6.0]]).to(device)
    least = torch.tensor([2.0, 5.0], device=device)
    count = torch.tensor([4, 3], device=device)
    kept = keep_largest(x, least, count)
    assert kept.int().tolist() == [[0, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 1]]
