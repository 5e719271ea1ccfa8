import pytest
import torch
from torch import Tensor

from relight.kernels.codec import DenseWeight
from relight.kernels.compress import pool
from relight.kernels.invariant import matmul_rows
from relight.kernels.testing import assert_bits_equal, assert_rows_invariant, bf16_steps

BF16, F32 = torch.bfloat16, torch.float32


def members(x: Tensor, wkv: Tensor, wgate: Tensor, ape: Tensor) -> tuple[Tensor, Tensor]:
    """Values and gates [groups, members, d] of whole groups; ratio 4 overlaps (A halves of the
    group before, B halves of the own)."""
    ratio = ape.shape[0]
    count = x.shape[0] // ratio
    x = x[: count * ratio].float()
    values = matmul_rows(x, DenseWeight(wkv).decode(), "prefill").unflatten(0, (count, ratio))
    gates = matmul_rows(x, DenseWeight(wgate).decode(), "prefill").unflatten(0, (count, ratio))
    gates = gates + ape
    if ratio != 4:
        return values, gates
    return overlap(values, 0.0), overlap(gates, float("-inf"))


def overlap(rows: Tensor, absent: float) -> Tensor:
    first, second = rows.chunk(2, dim=-1)
    before = torch.cat([torch.full_like(first[:1], absent), first[:-1]])
    return torch.cat([before, second], dim=1)


@pytest.mark.parametrize("name", ["ratio4", "ratio4_index", "ratio128"])
def test_pooled_and_normed_entries_equal_official(device: str, vectors, name: str) -> None:
    def get(part: str) -> Tensor:
        return vectors(f"compressor_{name}/{part}")

    values, gates = members(get("x"), get("wkv"), get("wgate"), get("ape"))
    found = pool(values, gates, get("norm").float(), 1e-6, BF16)
    assert bf16_steps(found, get("normed")) <= 1


@pytest.mark.parametrize("boundary", [F32, BF16])
@pytest.mark.parametrize("count", [8, 128])
def test_groups_are_invariant(device: str, boundary, count: int) -> None:
    norm = torch.randn(48).to(device)
    inputs = {name: torch.randn(70, count, 48).to(device) for name in ("values", "gates")}
    for family in ("prefill", "step"):
        assert_rows_invariant(
            lambda values, gates: pool(values, gates, norm, 1e-6, boundary), inputs, family
        )


def test_a_member_with_gate_minus_infinity_is_absent_whatever_its_value(device: str) -> None:
    values, gates = torch.randn(5, 8, 16).to(device), torch.randn(5, 8, 16).to(device)
    gates[:, :4] = float("-inf")
    norm = torch.ones(16, device=device)
    wanted = pool(values, gates, norm, 1e-6, F32)
    values[:, :4] = float("nan")
    assert_bits_equal(pool(values, gates, norm, 1e-6, F32), wanted)
    alone = pool(values[:, 4:].contiguous(), gates[:, 4:].contiguous(), norm, 1e-6, F32)
    assert torch.allclose(alone, wanted, rtol=1e-5, atol=1e-6)


def test_pooling_is_a_softmax_per_channel_then_a_norm(device: str) -> None:
    values, gates = torch.randn(9, 8, 32).to(device), (torch.randn(9, 8, 32) * 5).to(device)
    norm = torch.randn(32).to(device)
    entry = (gates.double().softmax(1) * values.double()).sum(1)
    exact = entry * (entry.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * norm
    assert torch.allclose(pool(values, gates, norm, 1e-6, F32).double(), exact, atol=1e-5)


def test_no_groups_give_no_entries(device: str) -> None:
    none = torch.zeros(0, 8, 16, device=device)
    assert pool(none, none, torch.ones(16, device=device), 1e-6, BF16).shape == (0, 16)
