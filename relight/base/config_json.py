"""Writes a ModelConfig as the config.json that describes it. Knows no file."""

from relight.base.config_common import FIXED
from relight.base.specs import ModelConfig


def config_json(config: ModelConfig) -> dict[str, object]:
    """The fields of the published form; `parse_config` of the result gives `config` again."""
    return _nested(config) if config.generation == "v4.1" else _flat(config)


def _flat(config: ModelConfig) -> dict[str, object]:
    scaling: dict[str, object] = {"type": "yarn", **_yarn(config)}
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "torch_dtype": "bfloat16",
        **_sizes(config),
        "num_hash_layers": sum(layer.routing == "hash" for layer in config.layers),
        "rope_scaling": scaling,
        "expert_dtype": config.expert_format,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "num_nextn_predict_layers": min(config.draft.num_stages, 1),
        "quantization_config": {"fmt": "e4m3", **_quantisation(config)},
        **_dspark(config),
    }


def _nested(config: ModelConfig) -> dict[str, object]:
    candidates, engram, vision, draft = (
        config.candidates,
        config.engram,
        config.vision,
        config.draft,
    )
    assert candidates is not None
    assert engram is not None
    text: dict[str, object] = {
        "model_type": "deepseek_v41_text",
        **_sizes(config),
        "rope_scaling": {"rope_type": "yarn", **_yarn(config)},
        "kv_source_layer_ids": [x.index for x in config.layers if x.kv_source == x.index],
        "index_source_layer_ids": [x.index for x in config.layers if x.index_source == x.index],
        "candidate_source_layer_id": candidates.source,
        "candidate_topk_blocks": candidates.topk_blocks,
        "candidate_block_size": candidates.block_size,
        "engram_layer_ids": [x.index for x in config.layers if x.engram_rows],
        "engram_num_embeddings": [x.engram_rows for x in config.layers if x.engram_rows],
        "engram_max_ngram_size": engram.max_ngram,
        "engram_n_heads": engram.heads,
        "engram_head_dim": engram.head_dim,
        "engram_vocab_size": engram.vocab_size,
        "engram_pad_token_id": engram.pad_token_id,
        "engram_compressed_vocab_size": engram.compressed_vocab,
        "num_nextn_predict_layers": draft.num_stages,
        **_dspark(config),
    }
    if draft.kind == "dspark":
        text |= {
            "dspark_n_routed_experts": config.draft_experts,
            "dspark_num_experts_per_tok": config.draft_experts_per_token,
        }
    fields: dict[str, object] = {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "quantization_config": {**_quantisation(config), "expert_dtype": config.expert_format},
        "text_config": text,
    }
    if vision is not None:
        fields["image_token_id"] = vision.image_token_id
        fields["vision_config"] = {
            "model_type": "deepseek_v41_vision",
            "num_hidden_layers": vision.num_layers,
            "hidden_size": vision.hidden_size,
            "intermediate_size": vision.intermediate_size,
            "patch_size": vision.patch_size,
            "downsample_ratio": vision.downsample_ratio,
        }
    return fields


def _sizes(config: ModelConfig) -> dict[str, object]:
    return {
        **FIXED,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "head_dim": config.head_dim,
        "qk_rope_head_dim": config.rope_dim,
        "q_lora_rank": config.q_lora_rank,
        "o_groups": config.o_groups,
        "o_lora_rank": config.o_lora_rank,
        "sliding_window": config.window,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "compress_rope_theta": config.compress_rope_theta,
        "max_position_embeddings": config.max_position,
        "n_routed_experts": config.num_experts,
        "n_shared_experts": config.num_shared_experts,
        "num_experts_per_tok": config.experts_per_token,
        "moe_intermediate_size": config.moe_intermediate_size,
        "routed_scaling_factor": config.routed_scaling_factor,
        "swiglu_limit": config.swiglu_limit,
        "index_n_heads": config.index_heads,
        "index_head_dim": config.index_dim,
        "index_topk": config.index_topk,
        "hc_mult": config.hc_mult,
        "hc_sinkhorn_iters": config.hc_iters,
        "hc_eps": config.hc_eps,
        "compress_ratios": [x.ratio for x in config.layers] + [0] * config.draft.num_stages,
    }


def _yarn(config: ModelConfig) -> dict[str, object]:
    scaling = config.rope_scaling
    return {
        "factor": scaling.factor,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "original_max_position_embeddings": scaling.original_max_position,
    }


def _quantisation(config: ModelConfig) -> dict[str, object]:
    return {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "scale_fmt": "ue8m0",
        "weight_block_size": [config.fp8_block, config.fp8_block],
    }


def _dspark(config: ModelConfig) -> dict[str, object]:
    draft = config.draft
    if draft.kind != "dspark":
        return {}
    return {
        "dspark_block_size": draft.block_size,
        "dspark_noise_token_id": draft.noise_token_id,
        "dspark_target_layer_ids": list(draft.target_layers),
        "dspark_markov_rank": draft.markov_rank,
    }
