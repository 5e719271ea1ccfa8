import pytest
import torch
from torch import Tensor

from relight.kernels import engram
from relight.kernels.codec import Fp8Weight, fp8_quantise, fp8_round
from relight.kernels.testing import assert_bits_equal, assert_rows_invariant, bf16_steps

BOUNDARIES = (torch.float32, torch.bfloat16)


def history(classes: Tensor, pad: int, orders: int) -> Tensor:
    """Each class with those before it, own first."""
    padded = torch.cat([classes.new_full((orders - 1,), pad), classes])
    return torch.stack([padded[orders - 1 - i :][: len(classes)] for i in range(orders)], dim=1)


def test_table_rows_equal_the_official_hashes(device: str, vectors) -> None:
    classes = history(vectors("engram_hash/compressed_ids").long(), 2, 4)
    for table in range(2):
        primes = vectors("engram_hash/primes")[table]
        rows = engram.table_rows(classes, vectors("engram_hash/multipliers")[table], primes)
        assert torch.equal(rows, vectors("engram_hash/hash_ids")[:, table].long())


def test_every_hash_lies_in_the_run_of_its_prime(device: str) -> None:
    primes = torch.tensor([[11, 13], [17, 19], [23, 29]], device=device)
    factors = torch.tensor([2**61 + 1, 2**60 + 7, 2**59 + 3, 5], device=device)
    rows = engram.table_rows(torch.randint(3, (500, 4)).to(device), factors, primes)
    ends = primes.flatten().cumsum(0)
    assert bool((rows >= ends - primes.flatten()).all())
    assert bool((rows < ends).all())


def test_the_gate_equals_the_official_one(device: str, vectors) -> None:
    """Behind a product with FP8 inputs, of which a code may flip."""
    get = lambda name: vectors(f"engram_gate/{name}")  # noqa: E731
    values = engram.gather(get("embed.weight"), get("embed.scale"), get("rows").long())
    wkv = Fp8Weight(get("wkv.weight"), get("wkv.scale"), 32)
    mapped = (fp8_round(values, 32) @ wkv.decode().T).to(torch.bfloat16)
    gain = get("q_weight").float() * get("k_weight").float()
    out = engram.gate(get("streams"), mapped, gain, 1e-20, torch.bfloat16)
    assert bf16_steps(out, get("out")) <= 1


def test_gathered_rows_are_the_stored_values(device: str) -> None:
    table, scale = fp8_quantise(torch.randn(40, 64).to(device), 32)
    rows = torch.randint(40, (9, 3)).to(device)
    found = engram.gather(table, scale, rows).view(9, 3, 64)
    for row in range(40):
        wanted = Fp8Weight(table[row : row + 1], scale[row : row + 1], 32).decode()[0]
        assert bool((found[rows == row] == wanted).all())


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_rows_are_invariant(device: str, boundary) -> None:
    gain = torch.randn(4, 48).to(device)
    inputs = {
        "streams": torch.randn(100, 4, 48).to(device),
        "mapped": torch.randn(100, 5 * 48).to(device),
    }
    for family in ("prefill", "step"):
        assert_rows_invariant(
            lambda streams, mapped: engram.gate(streams, mapped, gain, 1e-20, boundary),
            inputs,
            family,
        )


def test_a_gate_opens_with_agreement_and_never_fully_closes(device: str) -> None:
    streams = torch.randn(1, 4, 32, device=device)
    value = torch.ones(1, 32, device=device)
    gates = []
    for sign in (1.0, -1.0):
        mapped = torch.cat([sign * streams.flatten(1), value], dim=1)
        out = engram.gate(streams, mapped, torch.ones(4, 32, device=device), 0.0, torch.float32)
        gates.append((out - streams).mean(-1))
    open_, closed = gates
    assert bool((open_ > 0.9).all())
    assert bool((closed > 0.0).all())
    assert bool((closed < 0.1).all())
    zero = torch.zeros(1, 4, 32, device=device)
    mapped = torch.cat([zero.flatten(1), value], dim=1)
    out = engram.gate(zero, mapped, torch.ones(4, 32, device=device), 1e-20, torch.float32)
    assert torch.allclose(out, torch.sigmoid(torch.tensor(1e-3)).to(device).expand(1, 4, 32))


def test_no_rows_give_no_rows(device: str) -> None:
    none = torch.zeros(0, 4, 8, device=device)
    gain = torch.ones(4, 8, device=device)
    out = engram.gate(none, none.new_zeros(0, 40), gain, 1e-20, torch.bfloat16)
    assert_bits_equal(out, none.to(torch.bfloat16))
