"""How transformers writes a V4 model: its names and its config.json. Knows no values and no file.

There are two sets of names. A state dict has names of its own and stacked experts. A saved model
has almost the official ones: under `model.`, with a few left as they are in memory, and with
`attn.kv_norm` as `attn.norm`, since its renaming meets the compressor's `norm`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from relight.base.errors import BadConfig

STATE_DICT_LEAVES: Mapping[str, str] = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    **{
        f"hc_{ours}_{field}": f"{ours}_hc.{field}"
        for ours in ("attn", "ffn")
        for field in ("fn", "base", "scale")
    },
    "attn.attn_sink": "self_attn.sinks",
    "attn.wq_a.weight": "self_attn.q_a_proj.weight",
    "attn.q_norm.weight": "self_attn.q_a_norm.weight",
    "attn.wq_b.weight": "self_attn.q_b_proj.weight",
    "attn.wkv.weight": "self_attn.kv_proj.weight",
    "attn.kv_norm.weight": "self_attn.kv_norm.weight",
    "attn.wo_a.weight": "self_attn.o_a_proj.weight",
    "attn.wo_b.weight": "self_attn.o_b_proj.weight",
    **{
        f"attn.{ours}.{ours_leaf}": f"self_attn.{theirs}.{theirs_leaf}"
        for ours, theirs in (
            ("compressor", "compressor"),
            ("indexer.compressor", "compressor.indexer"),
        )
        for ours_leaf, theirs_leaf in (
            ("wkv.weight", "kv_proj.weight"),
            ("wgate.weight", "gate_proj.weight"),
            ("ape", "position_bias"),
            ("norm.weight", "kv_norm.weight"),
        )
    },
    "attn.indexer.wq_b.weight": "self_attn.compressor.indexer.q_b_proj.weight",
    "attn.indexer.weights_proj.weight": ("self_attn.compressor.indexer.scorer.weights_proj.weight"),
    "ffn.gate.weight": "mlp.gate.weight",
    "ffn.gate.bias": "mlp.gate.e_score_correction_bias",
    "ffn.gate.tid2eid": "mlp.gate.tid2eid",
    "ffn.shared_experts.w1.weight": "mlp.shared_experts.gate_proj.weight",
    "ffn.shared_experts.w2.weight": "mlp.shared_experts.down_proj.weight",
    "ffn.shared_experts.w3.weight": "mlp.shared_experts.up_proj.weight",
}
"""Behind `layers.N.`: official name to the name in a state dict."""

STATE_DICT_ROOT: Mapping[str, str] = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
    "hc_head_fn": "model.hc_head.hc_fn",
    "hc_head_base": "model.hc_head.hc_base",
    "hc_head_scale": "model.hc_head.hc_scale",
}

STACKED_EXPERTS: Mapping[str, tuple[str, int]] = {
    "w1": ("mlp.experts.gate_up_proj", 0),
    "w3": ("mlp.experts.gate_up_proj", 1),
    "w2": ("mlp.experts.down_proj", 0),
}
"""Stack of a matrix, and its place among the matrices that share the rows of an expert."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a matrix may stand: a tensor, or rows of one expert of a stacked tensor.

    `part` of `parts` equal runs of rows; `expert` is None for a tensor that is not stacked.
    """

    name: str
    expert: int | None = None
    part: int = 0
    parts: int = 1


def origins(name: str) -> Iterator[Origin]:
    """The places where the official tensor `name` may stand, most official first."""
    yield Origin(name)
    if not name.startswith("layers."):
        yield Origin(f"model.{name}")
        yield Origin(STATE_DICT_ROOT[name])
        return
    _, layer, leaf = name.split(".", 2)
    if leaf != "attn.kv_norm.weight":
        yield Origin(f"model.{name}")
    else:
        yield Origin(f"model.layers.{layer}.attn.norm.weight")
    if leaf.startswith("ffn.experts."):
        expert, matrix = leaf.split(".")[2:4]
        stack, part = STACKED_EXPERTS[matrix]
        parts = 1 if matrix == "w2" else 2
        yield Origin(f"model.layers.{layer}.{stack}", int(expert), part, parts)
    else:
        yield Origin(f"model.layers.{layer}.{STATE_DICT_LEAVES[leaf]}")


def official_origins(name: str) -> Iterator[Origin]:
    """The same for a model whose names are official, which may have a prefix."""
    yield Origin(name)
    yield Origin(f"model.{name}")


RATIO_NAMES = {
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
"""Layer types with their ratios where `compress_rates` does not say otherwise."""

ONLY_TRANSFORMERS = frozenset(
    {
        "compress_rates",
        "layer_types",
        "mlp_bias",
        "mlp_layer_types",
        "output_router_logits",
        "partial_rotary_factor",
        "rope_parameters",
        "router_aux_loss_coef",
        "router_jitter_noise",
    }
)
"""Fields that are translated below or say nothing about inference."""

QUANTISATION = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128],
}


def official_fields(data: Mapping[str, object]) -> dict[str, object]:
    """The fields of an official config.json from those that transformers writes; without a draft,
    which transformers drops. Raises BadConfig for what cannot be translated."""
    fields = {
        name: value
        for name, value in data.items()
        if name not in ONLY_TRANSFORMERS and not name.startswith("dspark_")
    }
    fields.setdefault("expert_dtype", "fp4")
    fields.setdefault("topk_method", "noaux_tc")
    fields["quantization_config"] = QUANTISATION
    fields["num_nextn_predict_layers"] = 0
    if "layer_types" in data:
        fields["compress_ratios"] = _ratios(data)
        fields["num_hash_layers"] = _num_hash_layers(data)
    elif isinstance(ratios := data.get("compress_ratios"), list):
        fields["compress_ratios"] = ratios[: _length(data)]
    if "rope_parameters" in data:
        fields |= _rope(data)
    return fields


def _ratios(data: Mapping[str, object]) -> list[int]:
    kinds, rates = data["layer_types"], data.get("compress_rates") or {}
    if not isinstance(kinds, list) or not isinstance(rates, dict):
        raise _untranslated("layer_types", kinds, "a list, with compress_rates an object")
    ratios = {"sliding_attention": 0, **RATIO_NAMES, **rates}
    for kind in kinds:
        if kind not in ratios:
            raise _untranslated("layer_types", kind, f"one of {', '.join(ratios)}")
    return [ratios[kind] for kind in kinds]


def _num_hash_layers(data: Mapping[str, object]) -> int:
    kinds = data.get("mlp_layer_types")
    if not isinstance(kinds, list):
        raise _untranslated("mlp_layer_types", kinds, "a list")
    num_hash = kinds.count("hash_moe")
    if kinds[:num_hash] != ["hash_moe"] * num_hash:
        raise _untranslated("mlp_layer_types", kinds, "hash_moe on the first layers only")
    return num_hash


def _rope(data: Mapping[str, object]) -> dict[str, object]:
    parameters = data["rope_parameters"]
    match parameters:
        case {"main": {"rope_theta": theta}, "compress": {**compress}}:
            pass
        case _:
            raise _untranslated("rope_parameters", parameters, "objects main and compress")
    compress_theta = compress.pop("rope_theta", data.get("compress_rope_theta"))
    compress.pop("partial_rotary_factor", None)
    return {
        "rope_theta": theta,
        "compress_rope_theta": compress_theta,
        "rope_scaling": compress,
    }


def _length(data: Mapping[str, object]) -> int | None:
    length = data.get("num_hidden_layers")
    return length if isinstance(length, int) else None


def _untranslated(field: str, found: object, wanted: str) -> BadConfig:
    return BadConfig(
        f"config.json: {field} is {found!r}; wanted {wanted}; save the model again",
        param=field,
    )
