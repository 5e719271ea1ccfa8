import pytest
import torch

from relight.kernels.codec import (
    DenseWeight,
    Fp4Weight,
    Fp8Weight,
    Weight,
    fp4_quantise,
    fp8_round,
)
from relight.kernels.linear import grouped, linear
from relight.kernels.testing import FAMILIES, assert_bits_equal, assert_rows_invariant, bf16_steps

BF16, F32 = torch.bfloat16, torch.float32


def weight(kind: str, rows: int, columns: int, device: str) -> Weight:
    w = torch.randn(rows, columns)
    if kind == "fp4":
        packed, scale = fp4_quantise(w)
        return Fp4Weight(packed.to(device), scale.to(device), act_block=32)
    if kind == "fp8":
        codes = torch.randint(0, 120, w.shape).to(torch.uint8)
        scale = torch.randint(115, 122, (-(-rows // 32), -(-columns // 32))).to(torch.uint8)
        return Fp8Weight(codes.to(device), scale.to(device), 32)
    return DenseWeight(w.to(BF16 if kind == "bf16" else F32).to(device))


KINDS = ("float32", "bf16", "fp8", "fp4")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("block", [32, 128])
def test_packed_products_equal_official(device: str, vectors, family, block: int) -> None:
    name = f"fp8_gemm_block{block}"
    w: Weight = Fp8Weight(vectors(f"{name}/weight"), vectors(f"{name}/scale"), block)
    check_against(vectors, name, w, family)
    name = f"fp4_gemm_act{block}"
    w = Fp4Weight(vectors(f"{name}/weight"), vectors(f"{name}/scale"), block)
    check_against(vectors, name, w, family)


def check_against(vectors, name: str, w: Weight, family) -> None:
    x = vectors(f"{name}/x")
    assert bf16_steps(linear(x, w, family, True, BF16), vectors(f"{name}/y")) <= 1
    exact = vectors(f"{name}/y_exact")
    assert torch.allclose(linear(x, w, family, True, F32), exact, rtol=1e-5, atol=1e-5)
    plain = vectors(f"{name}/y_unquantised_x")
    assert torch.allclose(linear(x, w, family, False, F32), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("quantised", [True, False])
def test_rows_are_invariant(device: str, family, kind: str, quantised: bool) -> None:
    w = weight(kind, 72, 96, device)
    inputs = {"x": torch.randn(140, 96).to(device)}
    assert_rows_invariant(lambda x: linear(x, w, family, quantised, F32), inputs, family)


@pytest.mark.parametrize("family", FAMILIES)
def test_grouped_rows_are_invariant(device: str, family) -> None:
    w = weight("fp8", 40, 64, device)
    inputs = {"x": torch.randn(140, 2, 64).to(device)}
    for boundary in (F32, BF16):
        assert_rows_invariant(lambda x, b=boundary: grouped(x, w, family, b), inputs, family)


def test_only_packed_weights_have_their_input_rounded(device: str) -> None:
    x = torch.randn(5, 64).to(device)
    for kind in KINDS:
        w = weight(kind, 32, 64, device)
        rounded = DenseWeight(w.decode())
        wanted = linear(fp8_round(x, 32) if w.quantised else x, rounded, "step", False, F32)
        assert_bits_equal(linear(x, w, "step", True, F32), wanted, kind)


def test_the_result_is_rounded_once(device: str) -> None:
    x, w = torch.randn(70, 64).to(device), weight("bf16", 32, 64, device)
    for family in FAMILIES:
        wanted = linear(x, w, family, False, F32).to(BF16)
        assert_bits_equal(linear(x, w, family, False, BF16), wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_groups_are_separate_products(device: str, family) -> None:
    x, w = torch.randn(70, 3, 64).to(device), weight("float32", 60, 64, device)
    found = grouped(x, w, family, F32)
    exact = torch.einsum("ngk,grk->ngr", x.double(), w.decode().double().unflatten(0, (3, 20)))
    assert torch.allclose(found.double(), exact, atol=1e-4)
    both = grouped(x.to(BF16), DenseWeight(w.decode().to(BF16)), family, BF16)
    assert_bits_equal(grouped(x, w, family, BF16), both, "operands rounded to bf16")


def test_no_rows_give_no_rows(device: str) -> None:
    w = weight("fp4", 32, 64, device)
    x = torch.zeros(0, 64, device=device)
    for family in FAMILIES:
        assert linear(x, w, family, True, BF16).shape == (0, 32)
        assert grouped(x.view(0, 1, 64), w, family, BF16).shape == (0, 1, 32)


class Answers:
    """Kernels that answer with one number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def takes(self, x, w, quantised: bool) -> bool:
        return quantised

    def takes_groups(self, x, w, boundary) -> bool:
        return boundary == BF16

    def linear(self, x, w, boundary):
        return torch.full((len(x), w.shape[0]), self.number)

    def grouped(self, x, w, boundary):
        return torch.full((*x.shape[:2], w.shape[0] // x.shape[1]), self.number)


def test_each_family_asks_its_own_kernels_and_keeps_the_rest() -> None:
    x, data = torch.zeros(2, 64), torch.randn(4, 64)
    both = DenseWeight(data, made=Answers(1.0), given=Answers(2.0))
    made, given = DenseWeight(data, made=both.made), DenseWeight(data, given=both.given)
    for family, number, own, other in (("step", 1.0, made, given), ("prefill", 2.0, given, made)):
        for w, wanted in ((both, number), (own, number), (other, 0.0)):
            assert bool((linear(x, w, family, True, BF16) == wanted).all())
            assert bool((linear(x, w, family, False, BF16) == 0).all())
            groups = x.view(1, 2, 64)
            assert bool((grouped(groups, w, family, BF16) == wanted).all())
            assert bool((grouped(groups, w, family, F32) == 0).all())
