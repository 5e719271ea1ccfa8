from dataclasses import dataclass
from functools import partial

import torch

from relight.kernels.bind import Binder
from relight.kernels.codec import DenseWeight, Fp4Weight, Fp8Weight, StackedFp4
from relight.kernels.experts import Experts, experts
from relight.kernels.linear import grouped, linear
from relight.kernels.testing import FAMILIES

U8, BF16, F32 = torch.uint8, torch.bfloat16, torch.float32


class Fast:
    """Answers with ones, so that one sees who has answered."""

    def takes(self, x, w, quantised) -> bool:
        return quantised

    def takes_groups(self, x, w, boundary) -> bool:
        return boundary == BF16

    def linear(self, x, w, boundary):
        return torch.ones(x.shape[0], w.shape[0], dtype=boundary)

    def grouped(self, x, w, boundary):
        return torch.ones(x.shape[0], x.shape[1], w.shape[0] // x.shape[1], dtype=boundary)

    def experts(self, x, ids, weights, w1, w3, w2, limit, boundary):
        return torch.ones(x.shape)


def fp8(outputs: int, inner: int, block: int = 128) -> Fp8Weight:
    scale = torch.zeros(-(-outputs // block), -(-inner // block), dtype=U8)
    return Fp8Weight(torch.zeros(outputs, inner, dtype=U8), scale, block)


@dataclass(frozen=True)
class Layer:
    good: Fp8Weight
    fine: Fp8Weight
    norm: torch.Tensor
    head: DenseWeight | None = None


def stack(outputs: int, inner: int) -> StackedFp4:
    scale = torch.zeros(3, outputs, inner // 32, dtype=U8)
    return StackedFp4(torch.zeros(3, outputs, inner // 2, dtype=U8), scale)


def test_weights_are_found_wherever_they_are_and_share_their_tensors() -> None:
    layer = Layer(fp8(128, 1024), fp8(32, 1024, 64), torch.zeros(4))
    whole = [(layer, layer), {"other": 1}, DenseWeight(torch.zeros(16, 4096, dtype=BF16))]
    fast = Fast()
    binder = Binder(fast, fast)
    (first, second), other, head = binder.bind(whole)
    assert first.good.made is second.good.made is head.made is fast
    assert first.good.data is layer.good.data
    assert first.norm is layer.norm
    assert first.fine is layer.fine
    assert other == {"other": 1}
    assert binder.bound.made == {"linear": 3}
    assert binder.bound.left == {"linear: its blocks are of 64, not one of (128, 32)": 2}
    assert layer.good.made is None


def test_nothing_chosen_leaves_all_as_it_is() -> None:
    layer = Layer(fp8(128, 1024), fp8(32, 1024, 32), torch.zeros(4))
    assert Binder(None, None).bind(layer) is layer


def test_products_go_to_the_kernels_of_the_rows_family() -> None:
    made, given = Binder(Fast(), None), Binder(None, None, given_linear=Fast())
    x = torch.zeros(2, 1024)
    for binder, family, other in ((made, "step", "prefill"), (given, "prefill", "step")):
        w = binder.bind(fp8(128, 1024))
        assert bool(linear(x, w, family, True, BF16).all())
        assert not bool(linear(x, w, other, True, BF16).any())
        assert not bool(linear(x, w, family, False, BF16).any())
        groups = x.view(1, 2, 1024)
        assert bool(grouped(groups, w, family, BF16).all())
        assert not bool(grouped(groups, w, family, F32).any())
        assert not bool(grouped(groups, w, other, BF16).any())
    assert (made.bound.made, made.bound.given) == ({"linear": 1}, {})
    assert (given.bound.made, given.bound.given) == ({}, {"linear": 1})


def test_a_weight_may_have_kernels_for_one_family_only() -> None:
    binder = Binder(Fast(), None, given_linear=Fast())
    w = binder.bind(fp8(20, 1024))
    assert w.made is not None
    assert w.given is None
    assert binder.bound.left == {"linear for prompts: it has 20 rows, not a multiple of 8": 1}


def test_a_part_of_a_weight_is_the_references() -> None:
    """A tile of it is decoded there, so kernels must not be asked for it."""
    w = Binder(Fast(), None).bind(fp8(256, 1024))
    assert w.rows(0, 128).made is None
    assert Fp4Weight(torch.zeros(2, 16, dtype=U8), torch.zeros(2, 1, dtype=U8)).made is None


def test_experts_go_to_the_kernels_of_the_rows_family_where_they_are_quantised() -> None:
    plain = Experts(stack(256, 512), stack(256, 512), stack(512, 256))
    made, given = Binder(None, Fast()), Binder(None, None, given_experts=Fast())
    x, ids, route = torch.zeros(1, 512), torch.tensor([[0, 2]]), torch.ones(1, 2)

    def found(stacks: Experts) -> list[tuple[str, bool]]:
        calls = [(family, quantised) for family in FAMILIES for quantised in (True, False)]
        run = partial(experts, x, ids, route, stacks, 10.0)
        return [call for call in calls if bool(run(*call, BF16).any())]

    assert found(made.bind(plain)) == [("step", True)]
    assert found(given.bind(plain)) == [("prefill", True)]
    assert found(plain) == []
    assert (made.bound.made, made.bound.given) == ({"experts": 1}, {})
    assert (given.bound.made, given.bound.given) == ({}, {"experts": 1})
    narrow = Experts(stack(64, 512), stack(64, 512), stack(512, 64))
    assert given.bind(narrow).given is None
    (reason,) = given.bound.left
    assert reason.startswith("experts for prompts: they map 512 values to 64")
