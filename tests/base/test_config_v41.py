"""Reads the nested config.json of V4.1; refuses what contradicts itself by the whole field name."""

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from relight.base.config import parse_config, read_config
from relight.base.config_json import config_json
from relight.base.errors import BadConfig
from relight.base.official import V41_FLASH, check_official_numerics, official_name

CONFIG = Path(__file__).parent / "configs" / "v41_flash.json"
GOLDEN = Path(__file__).parents[1] / "golden" / "v41" / "checkpoint"

PUBLISHED = json.loads(CONFIG.read_text())


def changed(change: dict[str, Any]) -> dict[str, Any]:
    """The published fields with some replaced; a dotted name is of a nested object."""
    data = copy.deepcopy(PUBLISHED)
    for name, value in change.items():
        place, field = data, name
        while "." in field:
            first, _, field = field.partition(".")
            place = place[first]
        place[field] = value
    return data


def text(**change: Any) -> dict[str, Any]:
    return {f"text_config.{name}": value for name, value in change.items()}


def test_the_published_config_is_read_without_an_unknown_field():
    parsed = read_config(CONFIG)
    assert parsed.config == V41_FLASH
    assert parsed.unknown == parsed.assumed == ()
    assert official_name(parsed.config) == "V4.1-Flash"
    check_official_numerics(parsed.config)


def test_layers_have_the_published_roles_and_sources():
    layers = V41_FLASH.layers
    assert Counter(layer.attention for layer in layers) == {
        "sliding": 2,
        "full": 4,
        "reindex": 4,
        "reuse": 30,
    }
    assert [layers[i].attention for i in (1, 2, 3, 20, 21, 24, 25)] == [
        *("sliding", "full", "reuse", "full", "reuse", "reindex", "reuse")
    ]
    assert (layers[0].kv_source, layers[0].index_source) == (None, None)
    assert (layers[13].kv_source, layers[13].index_source) == (8, 8)
    assert (layers[39].kv_source, layers[39].index_source) == (20, 36)
    assert {layer.index for layer in layers if layer.engram_rows} == {1, 14}
    assert {layer.routing for layer in layers} == {"bias"}


def test_the_draft_has_experts_of_its_own():
    assert (V41_FLASH.num_experts, V41_FLASH.experts_per_token) == (384, 6)
    assert (V41_FLASH.draft_experts, V41_FLASH.draft_experts_per_token) == (128, 3)


def test_a_model_without_a_tower_is_read():
    parsed = read_config(GOLDEN)
    assert parsed.config.vision is None
    assert parsed.unknown == ()
    check_official_numerics(parsed.config)


@pytest.mark.parametrize("config", [V41_FLASH, read_config(GOLDEN).config])
def test_an_exported_config_reads_back_as_itself(config):
    assert parse_config(json.loads(json.dumps(config_json(config)))).config == config


def test_unknown_fields_are_listed_by_their_whole_names():
    data = changed({"moon": 1, "vision_config.moon": 2, **text(moon=3)})
    data["text_config"]["rope_scaling"]["mscale"] = 1.0
    assert parse_config(data).unknown == (
        "moon",
        "text_config.moon",
        "text_config.rope_scaling.mscale",
        "vision_config.moon",
    )


CONTRADICTIONS = [
    ("text_config", {"text_config": None}, "JSON object"),
    ("text_config.model_type", text(model_type="deepseek_v4"), "'deepseek_v41_text'"),
    ("text_config.compress_ratios", text(compress_ratios=[0] * 42 + [1]), "ends with [0, 0, 1]"),
    ("text_config.compress_ratios", text(compress_ratios=[4] * 40 + [0] * 3), "has 4 at layer 0"),
    ("text_config.kv_source_layer_ids", text(kv_source_layer_ids=[8, 14, 20]), "before layer 2"),
    ("text_config.kv_source_layer_ids", text(kv_source_layer_ids=[20, 2]), "ascending"),
    ("text_config.kv_source_layer_ids", text(kv_source_layer_ids=[2, 8, 14, 40]), "below 40"),
    ("text_config.kv_source_layer_ids", text(kv_source_layer_ids=[2, 8, 14]), "ratio 1"),
    ("text_config.index_source_layer_ids", text(index_source_layer_ids=[2, 8, 20]), "every layer"),
    (
        "text_config.index_source_layer_ids",
        text(index_source_layer_ids=[1, 2, 8, 14, 20]),
        "no sliding layer",
    ),
    ("text_config.candidate_source_layer_id", text(candidate_source_layer_id=14), "wanted 20"),
    ("text_config.candidate_topk_blocks", text(candidate_topk_blocks=64), "index_topk 512"),
    ("text_config.engram_num_embeddings", text(engram_num_embeddings=[1, 2]), "384006168"),
    ("text_config.engram_num_embeddings", text(engram_layer_ids=[1]), "sums of the primes"),
    ("text_config.engram_n_heads", text(engram_n_heads=65), "at most 64"),
    ("text_config.engram_max_ngram_size", text(engram_max_ngram_size=9), "at most 8"),
    ("text_config.engram_layer_ids", text(engram_layer_ids=list(range(9))), "at most 8"),
    ("text_config.engram_head_dim", text(engram_head_dim=48), "multiple of 32"),
    ("text_config.engram_pad_token_id", text(engram_pad_token_id=129280), "below vocab_size"),
    (
        "text_config.engram_compressed_vocab_size",
        text(engram_compressed_vocab_size=129281),
        "at most vocab_size",
    ),
    ("text_config.num_nextn_predict_layers", text(num_nextn_predict_layers=1), "wanted 3"),
    ("text_config.dspark_block_size", text(dspark_block_size=None), "an integer"),
    ("text_config.dspark_num_experts_per_tok", text(dspark_num_experts_per_tok=129), "at most"),
    ("text_config.dspark_n_routed_experts", text(dspark_n_routed_experts=2**30), "in all 3"),
    ("text_config.hc_mult", text(hc_mult=2), "wanted 4"),
    ("text_config.rope_scaling.rope_type", text(rope_scaling={"rope_type": "linear"}), "'yarn'"),
    (
        "quantization_config.weight_block_size",
        {"quantization_config.weight_block_size": [128, 128]},
        "[32, 32]",
    ),
    ("eos_token_id", {"eos_token_id": 129280}, "below vocab_size 129280"),
    ("vision_config.model_type", {"vision_config.model_type": "clip"}, "deepseek_v41_vision"),
    ("vision_config.num_hidden_layers", {"vision_config.num_hidden_layers": 2**30}, "at most"),
    ("model_type", {"model_type": "deepseek_v41_text"}, "the inner part"),
    ("model_type", {"model_type": "deepseek_v4"}, "wanted 'deepseek_v41'"),
]


@pytest.mark.parametrize(("field", "change", "says"), CONTRADICTIONS)
def test_a_contradiction_is_refused_by_field_found_wanted_and_remedy(field, change, says):
    with pytest.raises(BadConfig) as caught:
        parse_config(changed(change), source="config.json")
    assert caught.value.param == field
    assert says in caught.value.message
    assert caught.value.message.startswith(f"config.json: {field} ")
    assert caught.value.message.count("; ") >= 2


OPTIONAL = {"attention_bias", "attention_dropout", "hidden_act", "initializer_range", "use_cache"}
OPTIONAL |= {"norm_topk_prob", "num_key_value_heads", "scoring_func", "tie_word_embeddings"}
OPTIONAL |= {"topk_method"}


@pytest.mark.parametrize("field", sorted(PUBLISHED["text_config"].keys() - OPTIONAL))
def test_a_missing_or_senseless_value_is_refused_by_name(field):
    data = copy.deepcopy(PUBLISHED)
    del data["text_config"][field]
    with pytest.raises(BadConfig, match="is missing") as caught:
        parse_config(data)
    assert caught.value.param == f"text_config.{field}"
    for value in (None, "x", -1, 2**63, 1e400, [], {}, 10**400):
        with pytest.raises(BadConfig, match="text_config"):
            parse_config(changed(text(**{field: value})))


def test_a_tower_needs_the_id_of_its_token():
    data = copy.deepcopy(PUBLISHED)
    del data["image_token_id"]
    with pytest.raises(BadConfig, match="image_token_id is missing"):
        parse_config(data)


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden_size", 5136), ("q_lora_rank", 1000), ("head_dim", 520), ("index_head_dim", 80)],
)
def test_a_width_of_broken_blocks_is_refused_for_official_numerics(field, value):
    change = text(**{field: value})
    if field == "hidden_size":
        change |= {"quantization_config.expert_dtype": "fp8"}
    config = parse_config(changed(change)).config
    with pytest.raises(BadConfig, match=field):
        check_official_numerics(config)
