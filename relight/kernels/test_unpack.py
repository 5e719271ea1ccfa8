"""Matrices that keep their values multiply as packed ones do, bit for bit."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from relight.kernels.codec import (
    DenseWeight,
    Fp4Weight,
    Fp8Weight,
    StackedDense,
    StackedFp4,
    StackedFp8,
)
from relight.kernels.experts import Experts, experts
from relight.kernels.linear import linear
from relight.kernels.testing import FAMILIES, assert_bits_equal
from relight.kernels.unpack import unpack

F32, PLENTY = torch.float32, 2**40


def codes(*shape: int, most: int = 120) -> Tensor:
    return torch.randint(100 if most > 120 else 0, most, shape).to(torch.uint8)


@dataclass(frozen=True)
class Layer:
    weights: tuple[DenseWeight | Fp8Weight | Fp4Weight, ...]
    experts: Experts
    norm: Tensor


def layer() -> Layer:
    dense = torch.randn(96, 256).to(torch.bfloat16)
    fp4 = [StackedFp4(codes(3, 256, 128), codes(3, 256, 8, most=130)) for _ in range(3)]
    return Layer(
        (
            DenseWeight(dense),
            Fp8Weight(codes(256, 256), codes(2, 2, most=130), 128),
            Fp4Weight(codes(96, 128), codes(96, 8, most=130)),
        ),
        Experts(*fp4),
        torch.ones(5),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_values_that_are_kept_change_no_bit(family) -> None:
    packed = layer()
    kept, more = unpack(packed, PLENTY)
    x = torch.randn(5, 256)
    for before, after in zip(packed.weights, kept.weights, strict=True):
        assert after.decode() is after.decode(), "nothing is decoded any more"
        for quantised in (False, True):
            wanted = linear(x, before, family, quantised, F32)
            assert_bits_equal(linear(x, after, family, quantised, F32), wanted)
        assert_bits_equal(after.rows(0, 96).decode(), before.rows(0, 96).decode())
    ids, weights = torch.tensor([[0, 2]] * 5), torch.rand(5, 2)
    asked = (x, ids, weights)
    wanted = experts(*asked, packed.experts, 7.0, family, True, F32)
    assert_bits_equal(experts(*asked, kept.experts, 7.0, family, True, F32), wanted)
    assert kept.norm is packed.norm
    assert more == 96 * 256 * 2 + 4 * (256 * 256 + 96 * 256 + 3 * 3 * 256 * 256)


def test_stacks_of_any_format_keep_theirs() -> None:
    stacks = (
        StackedFp8(codes(2, 128, 128), codes(2, 1, 1, most=130), 128),
        StackedDense(torch.randn(2, 8, 16).to(torch.bfloat16)),
    )
    kept, _ = unpack(stacks, PLENTY)
    for before, after in zip(stacks, kept, strict=True):
        for number in range(2):
            found = after.expert(number).decode()
            assert_bits_equal(found, before.expert(number).decode())
            assert_bits_equal(after.expert(torch.tensor([number])).decode(), found)


def test_what_takes_too_much_stays_as_it_is() -> None:
    packed = layer()
    _, more = unpack(packed, PLENTY)
    kept, none = unpack(packed, more - 1)
    assert kept is packed
    assert none == 0
    assert unpack(packed, more)[1] == more
