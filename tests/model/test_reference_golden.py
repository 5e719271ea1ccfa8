"""Compares the float32 network with what the official code computes in float32 (tests/golden)."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from relight.base.config import read_config
from relight.model.reference import LayerTrace, ReferenceModel, Selection, Trace
from tests.model.official import dequantised, fp4, fp8

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDER = GOLDEN / "v4"
PROMPTS = {
    name: torch.tensor(ids)
    for name, ids in json.loads((FOLDER / "prompts.json").read_text()).items()
}
CLEAR = 1e-4  # a choice with a smaller margin may fall either way


@pytest.fixture(scope="module")
def model() -> ReferenceModel:
    checkpoint = FOLDER / "checkpoint"
    return ReferenceModel(read_config(checkpoint).config, dequantised(checkpoint))


def run(model: ReferenceModel, ids: Tensor) -> tuple[Tensor, list[LayerTrace]]:
    trace = Trace()
    return model.forward(ids, trace), trace.layers


def with_prefix(golden: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in golden.items()
        if name.startswith(prefix)
    }


def check_layer(golden: dict[str, Tensor], index: int, done: LayerTrace, first: int) -> None:
    """Compares what the golden holds of this layer with the rows from position `first` on."""
    if f"h.{index}" in golden:
        assert_close(done.streams[0, first:], golden[f"h.{index}"], rtol=0, atol=1e-4)

    clear = done.routing.margin[0, first:] > CLEAR
    experts = done.routing.experts[0, first:]
    assert torch.equal(experts[clear], golden[f"route_ids.{index}"].long()[clear])
    weights = done.routing.weights[0, first:]
    assert_close(weights[clear], golden[f"route_weights.{index}"][clear], rtol=0, atol=1e-5)

    if done.selection is not None:
        check_selection(golden, index, done.selection, first)
    if f"compressed_kv.{index}" in golden:
        assert done.memory.compressed is not None
        assert_close(done.memory.compressed[0], golden[f"compressed_kv.{index}"], rtol=0, atol=2e-5)
    if f"index_keys.{index}" in golden:
        assert done.memory.index_keys is not None
        keys = done.memory.index_keys[0]
        rotated = keys @ hadamard(keys.shape[-1])
        assert_close(rotated, golden[f"index_keys.{index}"], rtol=0, atol=2e-5)


def check_selection(golden: dict[str, Tensor], index: int, got: Selection, first: int) -> None:
    want = golden[f"index_topk.{index}"].long()  # as wide as the longest list in this call
    clear = got.margin[0, first:] > CLEAR
    assert torch.equal(got.entries[0, first:, : want.shape[1]][clear], want[clear])
    margin = golden.get(f"index_margin.{index}")
    if margin is not None:
        assert_close(got.margin[0, first:], margin, rtol=0, atol=2e-5)


def hadamard(size: int) -> Tensor:
    """Sylvester's matrix, orthonormal: the official code stores index keys rotated by it."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix * size**-0.5


@pytest.mark.parametrize("length", [5, 37, 133, 256, 301])
def test_prompt_equals_the_official_code_in_float32(model: ReferenceModel, length: int) -> None:
    golden = with_prefix(load_file(FOLDER / "float32_prefill.safetensors"), f"p{length}/")
    logits, layers = run(model, PROMPTS[f"prefill_{length}"])
    assert_close(logits[-32:], golden["logits_last"], rtol=0, atol=5e-5)
    best = logits.gather(-1, golden["top8_ids"].long())
    assert_close(best, golden["top8_values"], rtol=0, atol=5e-5)
    for index, done in enumerate(layers):
        check_layer(golden, index, done, first=0)


@pytest.mark.parametrize("first", [3, 120, 250])
def test_official_single_token_steps_equal_one_long_call(model: ReferenceModel, first: int) -> None:
    golden = with_prefix(load_file(FOLDER / "float32_decode.safetensors"), f"d{first}/")
    logits, layers = run(model, PROMPTS["decode_and_draft"][: first + 24])
    assert_close(logits[first:], golden["logits"], rtol=0, atol=5e-5)
    for index, done in enumerate(layers):
        check_layer(golden, index, done, first)


def test_golden_selections_are_mostly_clear_and_often_bind(model: ReferenceModel) -> None:
    """Else the comparisons above would say little."""
    _, layers = run(model, PROMPTS["prefill_301"])
    for done in layers:
        assert (done.routing.margin > CLEAR).float().mean() > 0.99
        if done.selection is not None:
            assert done.selection.margin.isfinite().float().mean() > 0.7
            assert (done.selection.margin > CLEAR).float().mean() > 0.99


def test_dequantised_weights_give_the_golden_products() -> None:
    """192 × 384, so that the last row of 128 × 128 blocks is cut."""
    ops = load_file(GOLDEN / "ops" / "ops.safetensors")
    for operation, weight in (
        ("fp8_gemm_block128", lambda codes, scale: fp8(codes, scale, 128)),
        ("fp4_gemm_act128", fp4),
    ):
        golden = with_prefix(ops, f"{operation}/")
        matrix = weight(golden["weight"], golden["scale"])
        product = golden["x"].double() @ matrix.double().T
        assert_close(product.float(), golden["y_unquantised_x"], rtol=1e-6, atol=1e-6)
