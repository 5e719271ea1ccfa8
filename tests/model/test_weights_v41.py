"""The weights of V4.1: which tensors each role has, and that no stored byte is lost."""

import json
import shutil

import pytest
import torch

from relight.base.checkpoint import open_model
from relight.base.errors import BadCheckpoint
from relight.base.numerics import OFFICIAL
from relight.kernels.codec import StackedFp4
from relight.model.network import load, network
from relight.model.transformer_v41 import TransformerV41
from relight.model.weights import nbytes
from relight.model.weights_v41 import ModelWeightsV41
from tests.model.harness import GOLDEN

CHECKPOINT = GOLDEN / "v41" / "checkpoint"


@pytest.fixture(scope="module")
def weights() -> ModelWeightsV41:
    loaded = load(open_model(CHECKPOINT), torch.device("cpu"))
    assert isinstance(loaded, ModelWeightsV41)
    return loaded


def test_each_role_has_what_it_needs_and_no_more(weights):
    has = [
        tuple(part is not None for part in (layer.source, layer.queries, layer.engram))
        for layer in weights.layers
    ]
    full, reindex, reuse = (True, True), (False, True), (False, False)
    assert has == [
        (*reuse, False),
        (*full, True),
        (*reuse, False),
        (*full, False),
        (*reuse, True),
        (*reindex, False),
        (*reuse, False),
    ]
    pooled, single = weights.layers[1].source, weights.layers[3].source
    assert (pooled.pooled is None, pooled.single is None) == (False, True)
    assert (single.pooled is None, single.single is None) == (True, False)


def test_products_quantise_their_inputs_in_blocks_of_32(weights):
    layer = weights.layers[5]
    for weight in (layer.attention.wq_a, layer.queries.wq_b, layer.ffn.shared.w1):
        assert weight.act_block == 32
    stack = layer.ffn.experts.w1
    assert isinstance(stack, StackedFp4)
    assert stack.expert(0).act_block == 32


def test_every_stored_byte_but_those_for_images_is_in_the_tree(weights):
    used = open_model(CHECKPOINT).tensors.used.values()
    stored = sum(tensor.nbytes for tensor in used)
    norms = sum(tensor.nbytes for tensor in used if "norm" in tensor.name)  # become float32
    for_images = sum(tensor.nbytes for tensor in used if "bias_vl" in tensor.name)
    # Where rows are pooled the norm is told again, beside positions that V4.1 lacks. The gains are
    # products in float32 of two tensors in bf16: as many bytes.
    again = nbytes(weights.layers[1].source.pooled.ape) + nbytes(weights.layers[1].source.norm)
    tables = nbytes(weights.token_classes)
    tables += sum(
        nbytes(layer.engram.factors) + nbytes(layer.engram.primes)
        for layer in weights.layers
        if layer.engram
    )
    assert weights.nbytes == stored + norms - for_images + again + tables


def test_the_network_of_such_weights_is_v41s(weights):
    config = open_model(CHECKPOINT).config
    assert isinstance(network(config, weights, OFFICIAL), TransformerV41)


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    """Classes of tokens are made of it."""
    for file in CHECKPOINT.iterdir():
        if file.name != "tokenizer.json":
            shutil.copy(file, tmp_path)
    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json"):
        load(open_model(tmp_path), torch.device("cpu"))


def test_a_missing_table_is_named(tmp_path):

    for file in CHECKPOINT.iterdir():
        shutil.copy(file, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["engram_layer_ids"] = [1, 5]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadCheckpoint, match=r"layers\.5\.engram\.embed\.weight is missing"):
        open_model(tmp_path)
