import pytest
import torch
from torch import Tensor

from relight.kernels.invariant import matmul_rows
from relight.kernels.route import route
from relight.kernels.testing import assert_rows_invariant


def by_bias(logits: Tensor, k: int, bias: Tensor, scale: float = 1.5) -> tuple[Tensor, Tensor]:
    return route(logits, k, scale, bias=bias, table=None, token_ids=None)


def by_table(logits: Tensor, table: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    return route(logits, table.shape[1], 1.5, bias=None, table=table, token_ids=token_ids)


def table_of(tokens: int, num_experts: int, k: int) -> Tensor:
    return torch.stack([torch.randperm(num_experts)[:k] for _ in range(tokens)])


@pytest.mark.parametrize("family", ["prefill", "step"])
def test_routing_equals_official(device: str, vectors, family) -> None:
    logits = matmul_rows(vectors("router/x").float(), vectors("router/weight").float(), family)
    ids, weights = by_bias(logits, 4, vectors("router/bias"))
    wanted, order = vectors("router/ids").long().sort(1)
    assert torch.equal(ids, wanted)
    assert (weights - vectors("router/weights").gather(1, order)).abs().max() < 2e-6


def test_rows_are_invariant(device: str) -> None:
    bias, table = torch.randn(24).to(device), table_of(50, 24, 6).to(device)
    inputs = {"logits": torch.randn(140, 24).to(device)}
    hashed = {**inputs, "token_ids": torch.randint(50, (140,)).to(device)}
    for family in ("prefill", "step"):
        assert_rows_invariant(lambda logits: by_bias(logits, 6, bias), inputs, family)
        assert_rows_invariant(
            lambda logits, token_ids: by_table(logits, table, token_ids), hashed, family
        )


def test_ties_go_to_the_lowest_expert(device: str) -> None:
    logits = torch.zeros(3, 200, device=device)
    logits[1, 150] = 1.0
    logits[2, [3, 199]] = -1.0
    ids, weights = by_bias(logits, 4, torch.zeros(200, device=device))
    assert ids.tolist() == [[0, 1, 2, 3], [0, 1, 2, 150], [0, 1, 2, 4]]
    assert torch.allclose(weights[0], torch.full((4,), 1.5 / 4, device=device))


def test_the_bias_chooses_and_does_not_weigh(device: str) -> None:
    logits = torch.randn(20, 8).to(device)
    bias = torch.tensor([9.0, 9, 9, 0, 0, 0, 0, 0], device=device)
    ids, weights = by_bias(logits, 3, bias)
    assert ids.tolist() == [[0, 1, 2]] * 20
    scores = torch.nn.functional.softplus(logits.double()).sqrt()[:, :3]
    exact = scores / scores.sum(1, keepdim=True) * 1.5
    assert torch.allclose(weights.double(), exact, rtol=1e-5)


def test_a_table_chooses_by_token_and_its_ids_come_ascending(device: str) -> None:
    table = torch.tensor([[5, 1], [0, 7], [6, 3]], device=device)
    logits = torch.randn(4, 8).to(device)
    ids, weights = by_table(logits, table, torch.tensor([2, 0, 1, 0], device=device))
    assert ids.tolist() == [[3, 6], [1, 5], [0, 7], [1, 5]]
    scores = torch.nn.functional.softplus(logits).sqrt().gather(1, ids)
    assert torch.allclose(weights, scores / scores.sum(1, keepdim=True) * 1.5)


def test_very_large_and_small_logits_have_finite_scores(device: str) -> None:
    logits = torch.tensor([[1e30, -1e4, 0.0, 50.0]], device=device)
    _, weights = by_bias(logits, 3, torch.zeros(4, device=device))
    assert bool(weights.isfinite().all())
