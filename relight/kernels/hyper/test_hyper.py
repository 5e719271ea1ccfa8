import pytest
import torch
from torch import Tensor

from relight.kernels import hyper
from relight.kernels.hyper import reference
from relight.kernels.invariant import tree_sum
from relight.kernels.testing import (
    FAMILIES,
    assert_bits_equal,
    assert_rows_invariant,
    bf16_steps,
)

BF16, F32 = torch.bfloat16, torch.float32
HC = 4


def parameters(width: int, device: str, outputs: int = 24) -> tuple[Tensor, Tensor, Tensor]:
    fn = torch.randn(outputs, HC * width) / width**0.5
    scale = torch.rand(3 if outputs == 24 else 1) * 2
    return fn.to(device), torch.randn(outputs).to(device), scale.to(device)


def mixed(streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, family) -> hyper.Mix:
    return hyper.mix(
        streams, fn, base, scale, iterations=20, eps=1e-6, norm_eps=1e-6, family=family
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_mix_equals_official(device: str, vectors, family) -> None:
    streams, fn, base, scale = (vectors(f"mhc_v4/{n}") for n in ("streams", "fn", "base", "scale"))
    found = mixed(streams, fn, base, scale, family)
    for part in ("pre", "post", "comb"):
        assert (getattr(found, part) - vectors(f"mhc_v4/{part}")).abs().max() < 2e-6, part


def test_collapse_and_expand_equal_official(device: str, vectors) -> None:
    def get(name: str) -> Tensor:
        return vectors(f"mhc_v4/{name}")

    found = hyper.collapse(get("streams"), get("pre"), BF16)
    assert bf16_steps(found, get("collapsed")) <= 1
    found = hyper.expand(get("sublayer_out"), get("streams"), get("post"), get("comb"), BF16)
    assert bf16_steps(found, get("expanded")) <= 1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("boundary", [F32, BF16])
def test_rows_are_invariant(device: str, family, boundary) -> None:
    fn, base, scale = parameters(40, device)
    head = parameters(40, device, HC)
    inputs = {
        "streams": torch.randn(140, HC, 40).to(boundary).to(device),
        "out": torch.randn(140, 40).to(boundary).to(device),
    }

    def sublayer(streams: Tensor, out: Tensor) -> tuple[Tensor, ...]:
        mix = mixed(streams, fn, base, scale, family)
        last = hyper.head(streams, *head, eps=1e-6, norm_eps=1e-6, family=family)
        return (
            mix.pre,
            mix.post,
            mix.comb,
            last,
            hyper.collapse(streams, mix.pre, boundary),
            hyper.expand(out, streams, mix.post, mix.comb, boundary),
        )

    assert_rows_invariant(sublayer, inputs, family)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_streams_are_mixed_by_a_doubly_stochastic_matrix(device: str, family) -> None:
    comb = mixed(torch.randn(30, HC, 64).to(device), *parameters(64, device), family).comb
    assert bool((comb > 0).all())
    assert (comb.sum(-2) - 1).abs().max() < 1e-5, "columns are normalised last"
    assert (comb.sum(-1) - 1).abs().mean() < 1e-2, "rows converge with the iterations"


def test_collapse_and_expand_are_their_formulas(device: str) -> None:
    streams, out = torch.randn(9, HC, 32).to(device), torch.randn(9, 32).to(device)
    pre, post, comb = (torch.rand(9, *shape).to(device) for shape in ((HC,), (HC,), (HC, HC)))
    found = hyper.collapse(streams, pre, F32)
    assert torch.allclose(found, torch.einsum("nk,nkd->nd", pre, streams), atol=1e-5)
    assert torch.allclose(hyper.mean(streams, F32), streams.mean(1), atol=1e-6)
    found = hyper.expand(out, streams, post, comb, F32)
    exact = torch.einsum("nk,nd->nkd", post, out) + torch.einsum("njk,njd->nkd", comb, streams)
    assert torch.allclose(found, exact, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_rows_give_no_rows(device: str, family) -> None:
    mix = mixed(torch.zeros(0, HC, 32, device=device), *parameters(32, device), family)
    assert (mix.pre.shape, mix.comb.shape) == ((0, HC), (0, HC, HC))


@pytest.mark.parametrize("count", [1, 3, 200])
def test_normalising_in_place_sums_as_a_tree_does(device: str, count: int) -> None:
    def one_by_one(logits: Tensor, iterations: int, eps: float) -> Tensor:
        powers = torch.exp(logits - logits.amax(2, keepdim=True))
        comb = powers / tree_sum(powers, 2).unsqueeze(2) + eps
        for number in range(iterations):
            if number:
                comb = comb / (tree_sum(comb, 2).unsqueeze(2) + eps)
            comb = comb / (tree_sum(comb, 1).unsqueeze(1) + eps)
        return comb

    logits = 4 * torch.randn(count, HC, HC).to(device)
    logits[0, 0, 0] = float("nan") if count > 1 else 1.0
    for iterations in (1, 2, 20):
        found = reference._sinkhorn(logits, iterations, 1e-6)
        assert_bits_equal(found, one_by_one(logits, iterations, 1e-6))
