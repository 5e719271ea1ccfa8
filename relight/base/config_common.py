"""Reads what the config.json of V4 and V4.1 have in common. Knows no schedule of layers."""

from typing import Literal

from relight.base.fields import Fields
from relight.base.specs import (
    PAGE_TOKENS,
    CandidateSpec,
    DraftSpec,
    EngramSpec,
    Generation,
    LayerSpec,
    ModelConfig,
    RopeScaling,
    VisionSpec,
)

FIXED: dict[str, object] = {
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
    "hc_mult": 4,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}
"""Fields with one meaning here. Left out, they mean the same."""

WITHOUT_EFFECT = frozenset(
    {
        "architectures",
        "attention_dropout",
        "dtype",
        "initializer_range",
        "pad_token_id",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Known fields that say nothing about inference."""

MAX_EXPERTS = 2**18  # ten times V4-Pro's; the table of tensors has six for each

DSPARK_FIELDS = (
    "dspark_block_size",
    "dspark_noise_token_id",
    "dspark_target_layer_ids",
    "dspark_markov_rank",
)

ExpertFormat = Literal["fp4", "fp8"]


def read_sizes(
    fields: Fields,
    tokens: Fields,
    *,
    rope_scaling: RopeScaling,
    expert_format: ExpertFormat,
    fp8_block: int,
    layers: tuple[LayerSpec, ...],
    draft: DraftSpec,
    generation: Generation = "v4",
    candidates: CandidateSpec | None = None,
    engram: EngramSpec | None = None,
    vision: VisionSpec | None = None,
) -> ModelConfig:
    """The sizes in `fields` beside what was read before; `tokens` has the ids of BOS and EOS."""
    for name, wanted in FIXED.items():
        fields.fixed(name, wanted)
    config = ModelConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        num_heads=fields.integer("num_attention_heads"),
        head_dim=fields.integer("head_dim"),
        rope_dim=fields.integer("qk_rope_head_dim"),
        q_lora_rank=fields.integer("q_lora_rank"),
        o_groups=fields.integer("o_groups"),
        o_lora_rank=fields.integer("o_lora_rank"),
        window=fields.integer("sliding_window"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope_theta=fields.number("rope_theta"),
        compress_rope_theta=fields.number("compress_rope_theta"),
        rope_scaling=rope_scaling,
        max_position=fields.integer("max_position_embeddings"),
        num_experts=fields.integer("n_routed_experts"),
        num_shared_experts=fields.integer("n_shared_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        moe_intermediate_size=fields.integer("moe_intermediate_size"),
        routed_scaling_factor=fields.number("routed_scaling_factor"),
        swiglu_limit=fields.number("swiglu_limit"),
        index_heads=fields.integer("index_n_heads"),
        index_dim=fields.integer("index_head_dim"),
        index_topk=fields.integer("index_topk"),
        hc_mult=fields.integer("hc_mult"),
        hc_iters=fields.integer("hc_sinkhorn_iters"),
        hc_eps=fields.number("hc_eps"),
        expert_format=expert_format,
        fp8_block=fp8_block,
        bos_token_id=tokens.integer("bos_token_id", least=0),
        eos_token_id=tokens.integer("eos_token_id", least=0),
        layers=layers,
        draft=draft,
        generation=generation,
        candidates=candidates,
        engram=engram,
        vision=vision,
    )
    _check_agreement(fields, tokens, config)
    return config


def read_expert_format(
    fields: Fields, quantisation: Fields
) -> tuple[ExpertFormat, tuple[str, ...]]:
    """The root field, or the one in quantization_config; fp4, and named as assumed, where neither
    is there."""
    place = quantisation if "expert_dtype" not in fields else fields
    if "expert_dtype" not in place:
        return "fp4", ("expert_dtype",)
    found = place.raw("expert_dtype")
    if "expert_dtype" in quantisation and quantisation.raw("expert_dtype") != found:
        quantisation.refuse("expert_dtype", f"{found!r} as at the root", "make the two agree")
    if found not in ("fp4", "fp8"):
        place.refuse("expert_dtype", "'fp4' or 'fp8'", "no other expert format is built here")
    return found, ()


def read_fp8_block(quantisation: Fields, block: int) -> int:
    quantisation.fixed("quant_method", "fp8", required=True)
    quantisation.fixed("fmt", "e4m3")
    quantisation.fixed("scale_fmt", "ue8m0")
    quantisation.fixed("activation_scheme", "dynamic")
    quantisation.fixed("weight_block_size", [block, block], required=True)
    return block


def read_rope_scaling(fields: Fields) -> RopeScaling:
    name = "type" if "type" in fields else "rope_type"
    fields.fixed(name, "yarn", required=True)
    fields.fixed("rope_type", "yarn")
    fields.fixed("attention_factor", 1.0)
    return RopeScaling(
        factor=fields.number("factor"),
        beta_fast=fields.number("beta_fast"),
        beta_slow=fields.number("beta_slow"),
        original_max_position=fields.integer("original_max_position_embeddings"),
    )


def read_ratios(fields: Fields) -> tuple[tuple[int, ...], int]:
    """The ratios of the backbone layers, and the number of draft stages listed behind them."""
    num_layers = fields.integer("num_hidden_layers")
    ratios = fields.integers("compress_ratios")
    if len(ratios) < num_layers:
        fields.refuse(
            "compress_ratios",
            f"{num_layers} or more, since num_hidden_layers is {num_layers}",
            "add the missing ratios or correct num_hidden_layers",
            found=f"has {len(ratios)} entries",
        )
    if any(ratios[num_layers:]):
        fields.refuse(
            "compress_ratios",
            "0 for each draft stage",
            "draft stages have no compressor; correct the entries behind the backbone's",
            found=f"ends with {list(ratios[num_layers:])} behind the {num_layers} backbone layers",
        )
    return ratios[:num_layers], len(ratios) - num_layers


def read_layer_numbers(fields: Fields, name: str, num_layers: int) -> tuple[int, ...]:
    """A list of at least one layer, ascending."""
    numbers = fields.integers(name)
    if not numbers or sorted(set(numbers) & set(range(num_layers))) != list(numbers):
        fields.refuse(name, f"ascending layer numbers below {num_layers}", "correct the list")
    return numbers


def read_dspark(fields: Fields, num_stages: int, num_layers: int) -> DraftSpec:
    if num_stages == 0:
        name = next(name for name in DSPARK_FIELDS if name in fields)
        fields.refuse(
            name,
            "no dspark_* field, since compress_ratios lists no draft stage",
            "remove the dspark_* fields or add a 0 to compress_ratios for each stage",
        )
    return DraftSpec(
        "dspark",
        num_stages,
        fields.integer("dspark_block_size"),
        fields.integer("dspark_noise_token_id", least=0),
        read_layer_numbers(fields, "dspark_target_layer_ids", num_layers),
        fields.integer("dspark_markov_rank"),
    )


def _check_agreement(fields: Fields, tokens: Fields, config: ModelConfig) -> None:
    """Contradictions between fields that are each fine alone."""
    rope, heads, index = config.rope_dim, config.num_heads, config.index_dim
    vocab, token_limit = config.vocab_size, f"below vocab_size {config.vocab_size}"
    packed = 32 if config.expert_format == "fp4" else 1
    for place, name, agrees, wanted in (
        (fields, "qk_rope_head_dim", rope % 2 == 0, "an even number: it is rotated in pairs"),
        (
            fields,
            "qk_rope_head_dim",
            rope <= config.head_dim,
            f"at most head_dim {config.head_dim}",
        ),
        (fields, "qk_rope_head_dim", rope <= index, f"at most index_head_dim {index}"),
        (
            fields,
            "o_groups",
            heads % config.o_groups == 0,
            f"a divisor of num_attention_heads {heads}",
        ),
        (
            fields,
            "sliding_window",
            PAGE_TOKENS % config.window == 0,
            f"a divisor of the page of {PAGE_TOKENS} tokens",
        ),
        (
            fields,
            "num_experts_per_tok",
            config.experts_per_token <= config.num_experts,
            f"at most n_routed_experts {config.num_experts}",
        ),
        (
            fields,
            "n_routed_experts",
            config.num_experts * config.num_layers <= MAX_EXPERTS,
            f"at most {MAX_EXPERTS:,} experts in all {config.num_layers:,} layers",
        ),
        (tokens, "bos_token_id", config.bos_token_id < vocab, token_limit),
        (tokens, "eos_token_id", config.eos_token_id < vocab, token_limit),
        (fields, "dspark_noise_token_id", config.draft.noise_token_id < vocab, token_limit),
        (
            fields,
            "hidden_size",
            config.hidden_size % packed == 0,
            "a multiple of 32, the FP4 scale block",
        ),
        (
            fields,
            "moe_intermediate_size",
            config.moe_intermediate_size % packed == 0,
            "a multiple of 32, the FP4 scale block",
        ),
    ):
        if not agrees:
            place.refuse(name, wanted, "correct the field or the one that it must agree with")
