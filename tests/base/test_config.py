import json
from pathlib import Path
from typing import Any

import pytest

from relight.base.config import parse_config, read_config
from relight.base.config_json import config_json
from relight.base.errors import BadConfig
from relight.base.official import (
    V4_FLASH,
    V4_FLASH_BASE,
    V4_FLASH_DSPARK,
    V4_PRO,
    check_official_numerics,
    official_name,
)

CONFIGS = Path(__file__).parent / "configs"
GOLDEN = Path(__file__).parents[1] / "golden" / "v4" / "checkpoint"


def fields(name: str = "v4_flash") -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("name", "official"),
    [
        ("v4_flash", V4_FLASH),
        ("v4_flash_base", V4_FLASH_BASE),
        ("v4_flash_0731", V4_FLASH_DSPARK),
        ("v4_pro", V4_PRO),
    ],
)
def test_published_configs_are_read_without_an_unknown_field(name, official):
    parsed = read_config(CONFIGS / f"{name}.json")
    assert parsed.config == official
    assert parsed.unknown == ()
    assert parsed.assumed == ()
    assert official_name(parsed.config) is not None
    check_official_numerics(parsed.config)


def test_44_ratios_are_43_layers_and_the_mtp_block():
    data = fields("v4_flash")
    config = parse_config(data).config
    assert len(data["compress_ratios"]) == 44
    assert config.num_layers == 43
    assert (config.draft.kind, config.draft.num_stages) == ("mtp1", 1)
    kinds = [layer.attention for layer in config.layers]
    assert [kinds.count(kind) for kind in ("sliding", "csa", "hca")] == [2, 21, 20]
    assert [layer.routing for layer in config.layers[:4]] == ["hash", "hash", "hash", "bias"]


def test_46_ratios_are_43_layers_and_three_dspark_stages_although_nextn_says_1():
    data = fields("v4_flash_0731")
    draft = parse_config(data).config.draft
    assert len(data["compress_ratios"]) == 46
    assert data["num_nextn_predict_layers"] == 1
    assert (draft.kind, draft.num_stages, draft.block_size) == ("dspark", 3, 5)
    assert draft.target_layers == (40, 41, 42)


def test_a_list_of_the_backbone_alone_means_no_draft():
    parsed = read_config(GOLDEN)
    assert parsed.config.draft.kind == "none"
    assert parsed.unknown == ()
    assert [layer.attention for layer in parsed.config.layers] == ["sliding", "csa", "hca", "csa"]


@pytest.mark.parametrize("ratio", [8, 16, 32, 64, 128])
def test_every_divisor_of_a_page_above_4_is_hca(ratio):
    data = fields()
    data["compress_ratios"][3] = ratio
    layer = parse_config(data).config.layers[3]
    assert (layer.attention, layer.ratio) == ("hca", ratio)


def test_unknown_fields_are_listed_by_name_in_nested_objects_too():
    data = fields()
    data["temperature_of_the_moon"] = 3
    data["rope_scaling"]["mscale"] = 1.0
    data["quantization_config"]["modules_to_not_convert"] = []
    assert parse_config(data).unknown == (
        "temperature_of_the_moon",
        "rope_scaling.mscale",
        "quantization_config.modules_to_not_convert",
    )


def test_rope_scaling_is_read_with_type_and_with_rope_type():
    data = fields()
    del data["rope_scaling"]["type"]
    data["rope_scaling"]["rope_type"] = "yarn"
    assert parse_config(data).config == V4_FLASH


def test_expert_format_may_stand_in_quantization_config():
    data = fields()
    del data["expert_dtype"]
    data["quantization_config"]["expert_dtype"] = "fp8"
    assert parse_config(data).config == V4_FLASH_BASE


def test_a_missing_expert_format_is_reported_as_assumed():
    data = fields()
    del data["expert_dtype"]
    parsed = parse_config(data)
    assert parsed.config.expert_format == "fp4"
    assert parsed.assumed == ("expert_dtype",)


DSPARK = {name: value for name, value in fields("v4_flash_0731").items() if "dspark" in name}

CONTRADICTIONS = [
    ("compress_ratios", {"compress_ratios": [0, 0, 4]}, "has 3 entries"),
    ("compress_ratios", {"compress_ratios": [0] * 43 + [4]}, "ends with [4]"),
    ("compress_ratios", {"compress_ratios": [2] * 43 + [0]}, "has 2 at layer 0"),
    ("compress_ratios", {"compress_ratios": [12] * 43 + [0]}, "has 12 at layer 0"),
    ("compress_ratios", {"compress_ratios": [256] * 43 + [0]}, "has 256 at layer 0"),
    ("compress_ratios", {"compress_ratios": "0,4"}, "list of integers"),
    ("num_hash_layers", {"num_hash_layers": 44}, "at most 43"),
    ("num_hash_layers", {"num_hash_layers": -1}, "at least 0"),
    ("num_nextn_predict_layers", {"num_nextn_predict_layers": 0}, "wanted 1"),
    ("num_nextn_predict_layers", {"num_nextn_predict_layers": 3}, "wanted 1"),
    ("num_nextn_predict_layers", {"compress_ratios": [0] * 43}, "wanted 0"),
    ("num_nextn_predict_layers", {"compress_ratios": [0] * 46}, "wanted 3"),
    (
        "dspark_block_size",
        {"compress_ratios": [0] * 46, "num_nextn_predict_layers": 3},
        "lists 3 draft stages",
    ),
    (
        "dspark_block_size",
        {"compress_ratios": [0] * 43, "num_nextn_predict_layers": 0, **DSPARK},
        "no dspark_* field",
    ),
    ("dspark_markov_rank", {"dspark_block_size": 5, **DSPARK, "dspark_markov_rank": None}, "None"),
    ("dspark_target_layer_ids", {**DSPARK, "dspark_target_layer_ids": [42, 43]}, "below 43"),
    ("dspark_target_layer_ids", {**DSPARK, "dspark_target_layer_ids": [41, 40]}, "ascending"),
    ("dspark_target_layer_ids", {**DSPARK, "dspark_target_layer_ids": []}, "ascending"),
    ("dspark_noise_token_id", {**DSPARK, "dspark_noise_token_id": 129280}, "below vocab_size"),
    ("o_groups", {"o_groups": 7}, "a divisor of num_attention_heads 64"),
    ("qk_rope_head_dim", {"qk_rope_head_dim": 63}, "an even number"),
    ("qk_rope_head_dim", {"qk_rope_head_dim": 514}, "at most head_dim 512"),
    ("qk_rope_head_dim", {"qk_rope_head_dim": 256}, "at most index_head_dim 128"),
    ("expert_dtype", {"expert_dtype": "int4"}, "'fp4' or 'fp8'"),
    ("scoring_func", {"scoring_func": "softmax"}, "'sqrtsoftplus'"),
    ("topk_method", {"topk_method": "greedy"}, "'noaux_tc'"),
    ("norm_topk_prob", {"norm_topk_prob": False}, "True"),
    ("norm_topk_prob", {"norm_topk_prob": 1}, "True"),
    ("hidden_act", {"hidden_act": "gelu"}, "'silu'"),
    ("hc_mult", {"hc_mult": 2}, "wanted 4"),
    ("hc_sinkhorn_iters", {"hc_sinkhorn_iters": 0}, "at least 1"),
    ("n_shared_experts", {"n_shared_experts": 2}, "wanted 1"),
    ("num_key_value_heads", {"num_key_value_heads": 8}, "wanted 1"),
    ("tie_word_embeddings", {"tie_word_embeddings": True}, "False"),
    ("sliding_window", {"sliding_window": 100}, "a divisor of the page of 128 tokens"),
    ("sliding_window", {"sliding_window": 256}, "a divisor of the page of 128 tokens"),
    ("num_experts_per_tok", {"num_experts_per_tok": 257}, "at most n_routed_experts 256"),
    ("eos_token_id", {"eos_token_id": 129280}, "below vocab_size 129280"),
    ("eos_token_id", {"eos_token_id": [1, 2]}, "an integer"),
    ("hidden_size", {"hidden_size": 4096.0}, "an integer"),
    ("hidden_size", {"hidden_size": True}, "an integer"),
    ("hidden_size", {"hidden_size": 4100}, "multiple of 32"),
    ("rms_norm_eps", {"rms_norm_eps": "1e-6"}, "number above 0"),
    ("rope_theta", {"rope_theta": float("nan")}, "number above 0"),
    ("swiglu_limit", {"swiglu_limit": float("inf")}, "finite"),
    ("rope_scaling", {"rope_scaling": None}, "JSON object"),
    ("rope_scaling.type", {"rope_scaling": {"type": "linear", "factor": 4}}, "'yarn'"),
    ("rope_scaling.factor", {"rope_scaling": {"type": "yarn"}}, "is missing"),
    ("quantization_config.quant_method", {"quantization_config": {}}, "is missing"),
    (
        "quantization_config.weight_block_size",
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}},
        "[128, 128]",
    ),
    (
        "quantization_config.expert_dtype",
        {
            "quantization_config": {
                "quant_method": "fp8",
                "weight_block_size": [128, 128],
                "expert_dtype": "fp8",
            }
        },
        "as at the root",
    ),
    ("model_type", {"model_type": "deepseek_v3"}, "wanted 'deepseek_v4'"),
]


@pytest.mark.parametrize(("field", "change", "says"), CONTRADICTIONS)
def test_a_contradiction_is_refused_by_field_found_wanted_and_remedy(field, change, says):
    base = "v4_flash_0731" if any("dspark" in name for name in change) else "v4_flash"
    with pytest.raises(BadConfig) as caught:
        parse_config({**fields(base), **change}, source="config.json")
    assert caught.value.param == field
    assert says in caught.value.message
    assert caught.value.message.startswith(f"config.json: {field} ")
    assert "; wanted " in caught.value.message
    assert caught.value.message.count("; ") >= 2


REQUIRED = sorted(
    fields().keys()
    - {"architectures", "attention_dropout", "initializer_range", "torch_dtype"}
    - {"transformers_version", "use_cache", "expert_dtype"}
    - {"num_key_value_heads", "scoring_func", "topk_method", "norm_topk_prob", "hidden_act"}
    - {"attention_bias", "tie_word_embeddings"}
)


@pytest.mark.parametrize("field", REQUIRED)
def test_a_missing_field_is_refused_by_name(field):
    data = fields()
    del data[field]
    with pytest.raises(BadConfig, match="is missing") as caught:
        parse_config(data)
    assert caught.value.param == field


def test_a_config_of_save_pretrained_is_sent_to_convert():
    data = {**fields(), "layer_types": ["sliding_attention"] * 43}
    del data["compress_ratios"]
    with pytest.raises(BadConfig, match="relight convert"):
        parse_config(data)


@pytest.mark.parametrize("field", REQUIRED)
def test_a_senseless_value_is_refused_by_name(field):
    huge = 10**400
    for value in (None, "x", -1, 2**63, 1e400, [], {}, huge, -huge):
        with pytest.raises(BadConfig, match=field):
            parse_config({**fields(), field: value})


@pytest.mark.parametrize("change", [{"n_routed_experts": 2**30}, {"num_hidden_layers": 2**30}])
def test_a_slip_in_a_count_is_refused_before_tensors_are_listed(change):
    with pytest.raises(BadConfig, match=next(iter(change))):
        parse_config({**fields(), **change})


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "not JSON"), ("[1]", "a JSON object"), ('{"a": 1, "a": 2}', "a appears twice")],
)
def test_a_damaged_config_file_is_named(tmp_path, text, says):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadConfig, match=says) as caught:
        read_config(tmp_path)
    assert str(tmp_path / "config.json") in caught.value.message


def test_a_folder_without_config_is_named(tmp_path):
    with pytest.raises(BadConfig, match="not found"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "config", [V4_FLASH, V4_FLASH_BASE, V4_FLASH_DSPARK, V4_PRO, read_config(GOLDEN).config]
)
def test_an_exported_config_reads_back_as_itself(config):
    assert parse_config(json.loads(json.dumps(config_json(config)))).config == config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", 4160),
        ("q_lora_rank", 1000),
        ("o_lora_rank", 1001),
        ("moe_intermediate_size", 2080),
        ("head_dim", 520),
        ("index_head_dim", 96),
    ],
)
def test_a_width_of_broken_blocks_is_refused_for_official_numerics(field, value):
    config = parse_config({**fields(), field: value}).config
    with pytest.raises(BadConfig, match=field) as caught:
        check_official_numerics(config)
    assert "--numerics reference" in caught.value.message


def test_only_exact_sizes_carry_an_official_name():
    assert official_name(V4_FLASH) == "V4-Flash (preview)"
    assert official_name(parse_config({**fields(), "index_topk": 256}).config) is None
