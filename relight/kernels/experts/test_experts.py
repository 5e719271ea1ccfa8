from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from relight.kernels.codec import StackedWeight, Weight, fp4_quantise
from relight.kernels.experts import Experts, StackedDense, StackedFp4, StackedFp8, experts, swiglu
from relight.kernels.experts.reference import TILE_ROWS
from relight.kernels.peek import looks_are_free
from relight.kernels.testing import FAMILIES, assert_bits_equal, assert_rows_invariant, bf16_steps

BF16, F32 = torch.bfloat16, torch.float32
COUNT, WIDTH, INNER, CHOSEN = 7, 64, 32, 3


def stack(kind: str, rows: int, columns: int, device: str) -> StackedWeight:
    w = torch.randn(COUNT, rows, columns) / columns**0.5
    if kind == "fp4":
        packed, scale = fp4_quantise(w)
        return StackedFp4(packed.to(device), scale.to(device), act_block=32)
    if kind == "fp8":
        codes = torch.randint(0, 100, w.shape).to(torch.uint8)
        scale = torch.full((COUNT, rows // 32, columns // 32), 118, dtype=torch.uint8)
        return StackedFp8(codes.to(device), scale.to(device), 32)
    return StackedDense(w.to(device))


def stacks(kind: str, device: str) -> Experts:
    up = (stack(kind, INNER, WIDTH, device) for _ in range(2))
    return Experts(*up, w2=stack(kind, WIDTH, INNER, device))


def inputs_of(count: int, device: str) -> dict[str, Tensor]:
    ids = torch.stack([torch.randperm(COUNT)[:CHOSEN].sort().values for _ in range(count)])
    return {
        "x": torch.randn(count, WIDTH).to(device),
        "ids": ids.to(device),
        "weights": torch.rand(count, CHOSEN).to(device),
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_one_expert_equals_official(device: str, vectors, family) -> None:
    def get(name: str) -> Tensor:
        return vectors(f"expert_v4/{name}")

    def one(name: str) -> StackedFp4:
        return StackedFp4(get(f"{name}.weight").unsqueeze(0), get(f"{name}.scale").unsqueeze(0))

    x, weights = get("x"), get("route_weight")
    ids = torch.zeros(x.shape[0], 1, dtype=torch.int64, device=device)
    all_three = Experts(one("w1"), one("w3"), one("w2"))
    found = experts(x, ids, weights, all_three, 1.0, family, True, BF16)
    assert bf16_steps(found, get("y"), get("y").abs().amax(1, keepdim=True)) <= 1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["float32", "fp8", "fp4"])
@pytest.mark.parametrize("boundary", [F32, BF16])
def test_rows_are_invariant(device: str, family, kind: str, boundary) -> None:
    all_three = stacks(kind, device)
    assert_rows_invariant(
        lambda x, ids, weights: experts(
            x, ids, weights, all_three, 2.0, family, kind != "float32", boundary
        ),
        inputs_of(70, device),
        family,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_sum_over_experts_is_right(device: str, family) -> None:
    parts, given = stacks("float32", device), inputs_of(50, device)
    found = experts(*given.values(), parts, 0.5, family, False, F32)
    exact = torch.zeros(50, WIDTH, dtype=torch.float64, device=device)
    for row in range(50):
        for e, weight in zip(given["ids"][row].tolist(), given["weights"][row], strict=True):
            w1, w3, w2 = (w.expert(e).decode().double() for w in (parts.w1, parts.w3, parts.w2))
            x = given["x"][row].double()
            gate, up = (w1 @ x).clamp(max=0.5), (w3 @ x).clamp(-0.5, 0.5)
            exact[row] += w2 @ (torch.nn.functional.silu(gate) * up * weight.double())
    assert torch.allclose(found.double(), exact, atol=1e-5)


def test_the_gate_is_clamped_above_and_the_up_side_on_both(device: str) -> None:
    gate = torch.tensor([[-9.0, 9.0, 0.5, 1.0]], device=device)
    up = torch.tensor([[-9.0, 9.0, 0.5, 1.0]], device=device)
    found = swiglu(gate, up, 2.0, F32)
    low, high = torch.nn.functional.silu(torch.tensor([-9.0, 2.0])).tolist()
    wanted = torch.tensor([[-2 * low, 2 * high]], device=device)
    assert torch.allclose(found[:, :2], wanted)
    doubled = swiglu(gate, up, 2.0, F32, torch.tensor([2.0], device=device))
    assert_bits_equal(doubled, 2 * found, "the weight multiplies in float32")
    assert_bits_equal(swiglu(gate, up, 2.0, BF16), found.to(BF16))


@dataclass
class Counting:
    """A stack that notes which experts are decoded."""

    inner: StackedWeight
    asked: list[int] = field(default_factory=list)

    @property
    def data(self) -> Tensor:
        return self.inner.data

    @property
    def act_block(self) -> int:
        return self.inner.act_block

    def expert(self, index: int | Tensor) -> Weight:
        self.asked.append(int(index))
        return self.inner.expert(index)


def test_only_chosen_experts_are_decoded_and_each_once(device: str) -> None:
    """Where nobody looks at what was chosen: as often as there may be tiles, of which those that
    stay empty are of the last expert."""
    parts = stacks("fp4", device)
    counting = Experts(Counting(parts.w1), Counting(parts.w3), Counting(parts.w2))  # type: ignore
    x = torch.randn(20, WIDTH).to(device)
    ids = torch.tensor([[1, 4]] * 19 + [[4, 6]], device=device)
    experts(x, ids, torch.rand(20, 2).to(device), counting, 1.0, "prefill", True, F32)
    empty = [] if looks_are_free(ids) else [COUNT - 1] * (20 * 2 // TILE_ROWS + COUNT - 3)
    assert [counting.w1.asked, counting.w3.asked, counting.w2.asked] == [[1, 4, 6, *empty]] * 3


def test_a_row_may_not_choose_an_expert_twice() -> None:
    """Where the host can see it: an accelerator would be waited for."""
    x, weights, ids = torch.zeros(1, WIDTH), torch.ones(1, 2), torch.tensor([[3, 3]])
    with pytest.raises(AssertionError, match="strictly ascending"):
        experts(x, ids, weights, stacks("float32", "cpu"), 1.0, "step", False, F32)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_rows_give_no_rows(device: str, family) -> None:
    given = {name: x[:0] for name, x in inputs_of(2, device).items()}
    found = experts(*given.values(), stacks("fp4", device), 1.0, family, True, BF16)
    assert found.shape == (0, WIDTH)


class Noting:
    """Stands for kernels, and notes of how many rows it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def experts(self, x: Tensor, *_: object) -> Tensor:
        self.asked.append(len(x))
        return torch.ones_like(x)


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_are_asked_for_the_rows_of_their_family(family) -> None:
    made, given = Noting(), Noting()
    parts = replace(stacks("fp4", "cpu"), made=made, given=given)
    inputs = inputs_of(3, "cpu").values()
    assert bool((experts(*inputs, parts, 1.0, family, True, BF16) == 1).all())
    assert not bool((experts(*inputs, parts, 1.0, family, False, BF16) == 1).all())
    assert (made.asked, given.asked) == (([], [3]) if family == "prefill" else ([3], []))
    experts(*inputs, replace(parts, made=None, given=None), 1.0, family, True, BF16)
