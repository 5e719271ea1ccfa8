"""Compares the float32 network with what the official code computes in float32 (tests/golden)."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from relight.base.config import read_config
from relight.model.reference import LayerTrace, ReferenceModel, Trace
from tests.model.official import dequantised, fp4, fp8
from tests.model.traces import (
    CLEAR,
    check_entries,
    check_logits,
    check_routing,
    prompts_of,
    with_prefix,
)

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDER = GOLDEN / "v4"
PROMPTS = prompts_of(FOLDER)


@pytest.fixture(scope="module")
def model() -> ReferenceModel:
    checkpoint = FOLDER / "checkpoint"
    return ReferenceModel(read_config(checkpoint).config, dequantised(checkpoint))


def run(model: ReferenceModel, ids: Tensor) -> tuple[Tensor, list[LayerTrace]]:
    trace = Trace()
    return model.forward(ids, trace), trace.layers


def check_layer(golden: dict[str, Tensor], index: int, done: LayerTrace, first: int) -> None:
    """Compares what the golden holds of this layer with the rows from position `first` on."""
    if f"h.{index}" in golden:
        assert_close(done.streams[0, first:], golden[f"h.{index}"], rtol=0, atol=1e-4)

    check_routing(golden, index, done, first)

    if done.selection is not None:
        check_entries(golden, index, done.selection, first)
    if f"compressed_kv.{index}" in golden:
        assert done.memory.compressed is not None
        assert_close(done.memory.compressed[0], golden[f"compressed_kv.{index}"], rtol=0, atol=2e-5)
    if f"index_keys.{index}" in golden:
        assert done.memory.index_keys is not None
        keys = done.memory.index_keys[0]
        rotated = keys @ hadamard(keys.shape[-1])
        assert_close(rotated, golden[f"index_keys.{index}"], rtol=0, atol=2e-5)


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
    check_logits(logits, golden)
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
