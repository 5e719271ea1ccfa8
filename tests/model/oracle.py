"""Builds transformers' DeepseekV4ForCausalLM from our configs, with random weights, and gives its
tensors official names. Knows nothing of the engine; works with transformers 5.17 and 5.24."""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from relight.base.config import LayerSpec, ModelConfig, RopeScaling

LAYER_TYPES = {
    "sliding": "sliding_attention",
    "csa": "compressed_sparse_attention",
    "hca": "heavily_compressed_attention",
}


def layer(index: int, kind: str, ratio: int = 0) -> LayerSpec:
    """`kind` as in "csa/hash": attention, then routing."""
    attention, routing = kind.split("/")
    return LayerSpec(index, attention, ratio, routing)  # type: ignore[arg-type]


def tiny_config(
    kinds: tuple[str, ...] = ("sliding/hash", "csa/hash", "hca/bias", "csa/bias", "sliding/bias"),
    *,
    hca_ratio: int = 16,
    swiglu_limit: float = 10.0,
    index_topk: int = 8,
    window: int = 16,
) -> ModelConfig:
    """A V4 of a few hundred thousand parameters. It has many index heads, so that no score is
    exactly 0 (all ReLUs off), a tie that each implementation breaks in its own way."""
    ratios = {"sliding": 0, "csa": 4, "hca": hca_ratio}
    return ModelConfig(
        vocab_size=320,
        hidden_size=64,
        num_heads=4,
        head_dim=32,
        rope_dim=8,
        q_lora_rank=24,
        o_groups=2,
        o_lora_rank=16,
        window=window,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        compress_rope_theta=160000.0,
        rope_scaling=RopeScaling(16.0, 32.0, 1.0, 256),
        max_position=4096,
        num_experts=8,
        num_shared_experts=1,
        experts_per_token=2,
        moe_intermediate_size=32,
        routed_scaling_factor=1.5,
        swiglu_limit=swiglu_limit,
        index_heads=32,
        index_dim=16,
        index_topk=index_topk,
        hc_mult=4,
        hc_iters=20,
        hc_eps=1e-6,
        expert_format="fp4",
        fp8_block=128,
        bos_token_id=0,
        eos_token_id=1,
        layers=tuple(layer(i, kind, ratios[kind.split("/")[0]]) for i, kind in enumerate(kinds)),
    )


def transformers_config(config: ModelConfig) -> DeepseekV4Config:
    ratios = {spec.attention: spec.ratio for spec in config.layers}
    yarn = config.rope_scaling
    rope = {
        "rope_theta": config.rope_theta,
        "partial_rotary_factor": config.rope_dim / config.head_dim,
    }
    return DeepseekV4Config(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        moe_intermediate_size=config.moe_intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=1,
        head_dim=config.head_dim,
        partial_rotary_factor=config.rope_dim / config.head_dim,
        q_lora_rank=config.q_lora_rank,
        o_groups=config.o_groups,
        o_lora_rank=config.o_lora_rank,
        n_routed_experts=config.num_experts,
        n_shared_experts=config.num_shared_experts,
        num_experts_per_tok=config.experts_per_token,
        routed_scaling_factor=config.routed_scaling_factor,
        layer_types=[LAYER_TYPES[spec.attention] for spec in config.layers],
        mlp_layer_types=["hash_moe" if spec.routing == "hash" else "moe" for spec in config.layers],
        compress_rates={
            LAYER_TYPES["csa"]: ratios.get("csa", 4),
            LAYER_TYPES["hca"]: ratios.get("hca", 128),
        },
        sliding_window=config.window,
        index_n_heads=config.index_heads,
        index_head_dim=config.index_dim,
        index_topk=config.index_topk,
        rope_theta=config.rope_theta,
        compress_rope_theta=config.compress_rope_theta,
        rope_parameters={
            "main": {"rope_type": "default", **rope},
            "compress": {
                **rope,
                "rope_type": "yarn",
                "rope_theta": config.compress_rope_theta,
                "factor": yarn.factor,
                "beta_fast": yarn.beta_fast,
                "beta_slow": yarn.beta_slow,
                "original_max_position_embeddings": yarn.original_max_position,
                "attention_factor": 1.0,
            },
        },
        hc_mult=config.hc_mult,
        hc_sinkhorn_iters=config.hc_iters,
        hc_eps=config.hc_eps,
        swiglu_limit=config.swiglu_limit,
        rms_norm_eps=config.rms_norm_eps,
        max_position_embeddings=config.max_position,
    )


def random_oracle(config: ModelConfig, seed: int = 0) -> DeepseekV4ForCausalLM:
    """A float32 oracle with every tensor random, also those that transformers starts at constants.

    Matrices have a gain of 1.4 so that logits reach about ±7; sinks, biases and mixing bases are of
    the size of what they are added to, so that leaving one out shows.
    """
    model = DeepseekV4ForCausalLM._from_config(
        transformers_config(config), attn_implementation="eager", dtype=torch.float32
    )
    generator = torch.Generator().manual_seed(seed)

    def normal(tensor: Tensor, scale: float, mean: float = 0.0) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * scale + mean)

    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("tid2eid"):  # k different experts for each token
                order = torch.rand(tensor.shape[0], config.num_experts, generator=generator)
                tensor.copy_(order.argsort(dim=-1)[:, : tensor.shape[1]])
            elif name.endswith(("sinks", "position_bias", "_hc.base", "hc_base")):
                normal(tensor, 1.0)
            elif name.endswith("e_score_correction_bias"):
                normal(tensor, 0.3)
            elif "norm" in name or name.endswith(("_hc.scale", "hc_scale")):
                normal(tensor, 0.2, mean=1.0)
            elif name.endswith(("_hc.fn", "hc_fn")):
                normal(tensor, tensor.shape[-1] ** -0.5)
            elif name == "model.embed_tokens.weight":
                normal(tensor, 1.0)
            else:
                normal(tensor, 1.4 * tensor.shape[-1] ** -0.5)
    return model.eval()


def official_tensors(
    model: DeepseekV4ForCausalLM, named: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The oracle's own tensors, or those in `named` (its gradients, say), under official names;
    views where it stacks experts."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in (model.state_dict() if named is None else named).items():
        prefix, _, last = name.rpartition(".experts.")
        if prefix and last in ("gate_up_proj", "down_proj"):
            place = official_name(prefix) + ".experts"
            for expert, matrix in enumerate(tensor):
                if last == "down_proj":
                    tensors[f"{place}.{expert}.w2.weight"] = matrix
                else:
                    gate, up = matrix.chunk(2)
                    tensors[f"{place}.{expert}.w1.weight"] = gate
                    tensors[f"{place}.{expert}.w3.weight"] = up
        else:
            tensors[official_name(name)] = tensor
    return tensors


RENAMED = (
    ("lm_head.", "head."),
    ("model.", ""),
    ("embed_tokens.", "embed."),
    ("hc_head.hc_", "hc_head_"),
    (".attn_hc.", ".hc_attn_"),
    (".ffn_hc.", ".hc_ffn_"),
    (".input_layernorm.", ".attn_norm."),
    (".post_attention_layernorm.", ".ffn_norm."),
    (".self_attn.sinks", ".attn.attn_sink"),
    (".compressor.kv_norm.", ".compressor.norm."),
    (".compressor.indexer.kv_norm.", ".compressor.indexer.norm."),
    (".gate_proj.", ".wgate."),  # of a compressor; the shared expert's is named below
    (".kv_proj.", ".wkv."),
    (".position_bias", ".ape"),
    (".compressor.indexer.q_b_proj.", ".indexer.wq_b."),
    (".compressor.indexer.scorer.", ".indexer."),
    (".compressor.indexer.", ".indexer.compressor."),
    (".q_a_proj.", ".wq_a."),
    (".q_a_norm.", ".q_norm."),
    (".q_b_proj.", ".wq_b."),
    (".o_a_proj.", ".wo_a."),
    (".o_b_proj.", ".wo_b."),
    (".self_attn.", ".attn."),
    (".shared_experts.wgate.", ".shared_experts.w1."),
    (".shared_experts.down_proj.", ".shared_experts.w2."),
    (".shared_experts.up_proj.", ".shared_experts.w3."),
    (".gate.e_score_correction_bias", ".gate.bias"),
    (".mlp", ".ffn"),
)
"""Replacements, applied in this order, that turn transformers' names into official ones."""


def official_name(name: str) -> str:
    for theirs, ours in RENAMED:
        name = name.replace(theirs, ours)
    return name


@torch.no_grad()
def streams_and_logits(model: DeepseekV4ForCausalLM, ids: Tensor) -> tuple[list[Tensor], Tensor]:
    """For ids [B, T]: the streams [B, T, S, D] after each layer, the logits [B, T, vocab]."""
    streams: list[Tensor] = []

    def record(_module: torch.nn.Module, _inputs: tuple[Tensor, ...], output: object) -> None:
        streams.append(output[0] if isinstance(output, tuple) else output)  # type: ignore[arg-type]

    hooks = [block.register_forward_hook(record) for block in model.model.layers]
    try:
        logits = model(input_ids=ids, use_cache=False).logits
    finally:
        for hook in hooks:
            hook.remove()
    return streams, logits
