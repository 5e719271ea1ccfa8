"""Writes a ModelConfig as the config.json that describes it. Knows no file."""

from relight.base.config import FIXED, ModelConfig


def config_json(config: ModelConfig) -> dict[str, object]:
    """The fields of the published form; `parse_config` of the result gives `config` again."""
    draft, scaling = config.draft, config.rope_scaling
    fields: dict[str, object] = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "torch_dtype": "bfloat16",
        **FIXED,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_hash_layers": sum(layer.routing == "hash" for layer in config.layers),
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
        "rope_scaling": {
            "type": "yarn",
            "factor": scaling.factor,
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "original_max_position_embeddings": scaling.original_max_position,
        },
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
        "expert_dtype": config.expert_format,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "compress_ratios": [layer.ratio for layer in config.layers] + [0] * draft.num_stages,
        "num_nextn_predict_layers": min(draft.num_stages, 1),
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "scale_fmt": "ue8m0",
            "weight_block_size": [config.fp8_block, config.fp8_block],
        },
    }
    if draft.kind == "dspark":
        fields |= {
            "dspark_block_size": draft.block_size,
            "dspark_noise_token_id": draft.noise_token_id,
            "dspark_target_layer_ids": list(draft.target_layers),
            "dspark_markov_rank": draft.markov_rank,
        }
    return fields
