"""Reads a config.json strictly and derives what each layer is. Knows no tensor and no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from relight.base.errors import BadConfig
from relight.base.fields import Fields, load_json
from relight.base.files import read_regular

AttentionKind = Literal["sliding", "csa", "hca"]
RoutingKind = Literal["hash", "bias"]
DraftKind = Literal["none", "mtp1", "dspark"]


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """The role of one layer. `ratio` is tokens per compressed entry, 0 for a sliding layer."""

    index: int
    attention: AttentionKind
    ratio: int
    routing: RoutingKind


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """YaRN, used on layers with a ratio above 0 only."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """What follows the backbone in the checkpoint (`mtp.*`). `mtp1`: the preview's single block."""

    kind: DraftKind
    num_stages: int = 0
    block_size: int = 0
    noise_token_id: int = 0
    target_layers: tuple[int, ...] = ()
    markov_rank: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """DeepSeek-V4 as its config.json describes it; names follow the official fields where short."""

    vocab_size: int
    hidden_size: int
    num_heads: int
    head_dim: int
    rope_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    rms_norm_eps: float
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: RopeScaling
    max_position: int
    num_experts: int
    num_shared_experts: int
    experts_per_token: int
    moe_intermediate_size: int
    routed_scaling_factor: float
    swiglu_limit: float
    index_heads: int
    index_dim: int
    index_topk: int
    hc_mult: int
    hc_iters: int
    hc_eps: float
    expert_format: Literal["fp4", "fp8"]
    fp8_block: int
    bos_token_id: int
    eos_token_id: int
    layers: tuple[LayerSpec, ...]
    draft: DraftSpec = DraftSpec("none")

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def nope_dim(self) -> int:
        return self.head_dim - self.rope_dim


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

PAGE_TOKENS = 128
"""Tokens of a page. Windows and ratios divide it, so that nothing reaches across a page's edge
except what a boundary record holds."""


@dataclass(frozen=True, slots=True)
class ParsedConfig:
    """`unknown` lists fields that the reader does not know, `assumed` those that it filled in."""

    config: ModelConfig
    unknown: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


def read_config(path: Path) -> ParsedConfig:
    """Reads a config.json, or the one in a folder. Raises BadConfig."""
    file = path / "config.json" if path.is_dir() else path
    try:
        data = load_json(read_regular(file))
    except FileNotFoundError:
        raise BadConfig(
            f"{file}: not found; wanted the config.json of a DeepSeek-V4 checkpoint; "
            "give the folder that holds config.json and the .safetensors files",
            param="model",
        ) from None
    except OSError as error:
        raise BadConfig(
            f"{file}: cannot be read ({error.strerror}); wanted a readable file; check its rights",
            param="model",
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadConfig(
            f"{file}: is not JSON ({error}); wanted one JSON object; fetch the file again",
            param="model",
        ) from error
    return parse_config(data, source=str(file))


def parse_config(data: object, source: str = "config.json") -> ParsedConfig:
    """Turns the fields of a config.json into a ModelConfig. Raises BadConfig by field name."""
    fields = Fields(data, source)
    _check_kind(fields)
    for name, wanted in FIXED.items():
        fields.fixed(name, wanted)
    quantisation = fields.nested(
        "quantization_config", "a folder written by save_pretrained needs `relight convert`"
    )
    expert_format, assumed = _expert_format(fields, quantisation)
    scaling_fields = fields.nested("rope_scaling", "copy it from the published config.json")
    layers, num_stages = _layers(fields)
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
        rope_scaling=_rope_scaling(scaling_fields),
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
        fp8_block=_fp8_block(quantisation),
        bos_token_id=fields.integer("bos_token_id", least=0),
        eos_token_id=fields.integer("eos_token_id", least=0),
        layers=layers,
        draft=_draft(fields, num_stages, len(layers)),
    )
    _check_agreement(fields, config)
    unknown = fields.unknown(WITHOUT_EFFECT) + scaling_fields.unknown() + quantisation.unknown()
    return ParsedConfig(config, unknown, assumed)


def _check_kind(fields: Fields) -> None:
    kind = fields.raw("model_type")
    if kind in ("deepseek_v41", "deepseek_v41_text") or "text_config" in fields:
        fields.refuse(
            "model_type",
            "'deepseek_v4'",
            "this is DeepSeek-V4.1, which is not built yet; serve a DeepSeek-V4 checkpoint",
        )
    fields.fixed("model_type", "deepseek_v4", required=True)
    if "compress_ratios" not in fields and "layer_types" in fields:
        fields.refuse(
            "compress_ratios",
            "one ratio a layer",
            "this config.json was written by save_pretrained: run `relight convert` on its folder",
        )


def _expert_format(
    fields: Fields, quantisation: Fields
) -> tuple[Literal["fp4", "fp8"], tuple[str, ...]]:
    """The root field, or the one in quantization_config; fp4 where neither is there."""
    place = quantisation if "expert_dtype" not in fields else fields
    if "expert_dtype" not in place:
        return "fp4", ("expert_dtype",)
    found = place.raw("expert_dtype")
    if "expert_dtype" in quantisation and quantisation.raw("expert_dtype") != found:
        quantisation.refuse("expert_dtype", f"{found!r} as at the root", "make the two agree")
    if found not in ("fp4", "fp8"):
        place.refuse("expert_dtype", "'fp4' or 'fp8'", "no other expert format is built here")
    return found, ()


def _fp8_block(quantisation: Fields) -> int:
    quantisation.fixed("quant_method", "fp8", required=True)
    quantisation.fixed("fmt", "e4m3")
    quantisation.fixed("scale_fmt", "ue8m0")
    quantisation.fixed("activation_scheme", "dynamic")
    quantisation.fixed("weight_block_size", [128, 128], required=True)
    return 128


def _rope_scaling(fields: Fields) -> RopeScaling:
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


def _attention(ratio: int) -> AttentionKind | None:
    if ratio == 0:
        return "sliding"
    if ratio == 4:
        return "csa"
    return "hca" if ratio > 4 and PAGE_TOKENS % ratio == 0 else None


def _layers(fields: Fields) -> tuple[tuple[LayerSpec, ...], int]:
    """The backbone layers, and the number of draft stages listed behind them."""
    num_layers = fields.integer("num_hidden_layers")
    num_hash = fields.integer("num_hash_layers", least=0)
    ratios = fields.integers("compress_ratios")
    if len(ratios) < num_layers:
        fields.refuse(
            "compress_ratios",
            f"{num_layers} or more, since num_hidden_layers is {num_layers}",
            "add the missing ratios or correct num_hidden_layers",
            found=f"has {len(ratios)} entries",
        )
    if num_hash > num_layers:
        fields.refuse(
            "num_hash_layers",
            f"at most {num_layers}, which is num_hidden_layers",
            "correct one of the two",
        )
    layers = []
    for index, ratio in enumerate(ratios[:num_layers]):
        attention = _attention(ratio)
        if attention is None:
            fields.refuse(
                "compress_ratios",
                "0 (sliding), 4 (CSA) or a larger divisor of 128 (HCA)",
                "correct this entry",
                found=f"has {ratio} at layer {index}",
            )
        routing: RoutingKind = "hash" if index < num_hash else "bias"
        layers.append(LayerSpec(index, attention, ratio, routing))
    if any(ratios[num_layers:]):
        fields.refuse(
            "compress_ratios",
            "0 for each draft stage",
            "draft stages have no compressor; correct the entries behind the backbone's",
            found=f"ends with {list(ratios[num_layers:])} behind the {num_layers} backbone layers",
        )
    return tuple(layers), len(ratios) - num_layers


DSPARK_FIELDS = (
    "dspark_block_size",
    "dspark_noise_token_id",
    "dspark_target_layer_ids",
    "dspark_markov_rank",
)


def _draft(fields: Fields, num_stages: int, num_layers: int) -> DraftSpec:
    """`num_nextn_predict_layers` says 1 for three DSpark stages in the released files, so the stage
    count is what compress_ratios lists beyond the backbone."""
    declared = fields.integer("num_nextn_predict_layers", least=0)
    has_dspark = any(name in fields for name in DSPARK_FIELDS)
    if (declared > 0) != (num_stages > 0) or (not has_dspark and declared != num_stages):
        fields.refuse(
            "num_nextn_predict_layers",
            f"{num_stages}, the entries of compress_ratios behind the {num_layers} backbone layers",
            "correct one of the two",
        )
    if not has_dspark:
        if num_stages > 1:
            fields.refuse(
                DSPARK_FIELDS[0],
                f"the four dspark_* fields, since compress_ratios lists {num_stages} draft stages",
                "copy them from the published config.json",
            )
        return DraftSpec("mtp1", 1) if num_stages else DraftSpec("none")
    if num_stages == 0:
        name = next(name for name in DSPARK_FIELDS if name in fields)
        fields.refuse(
            name,
            "no dspark_* field, since compress_ratios lists no draft stage",
            "remove the dspark_* fields or add a 0 to compress_ratios for each stage",
        )
    targets = fields.integers("dspark_target_layer_ids")
    if not targets or sorted(set(targets) & set(range(num_layers))) != list(targets):
        fields.refuse(
            "dspark_target_layer_ids",
            f"ascending layer numbers below {num_layers}",
            "correct the list",
        )
    return DraftSpec(
        "dspark",
        num_stages,
        fields.integer("dspark_block_size"),
        fields.integer("dspark_noise_token_id", least=0),
        targets,
        fields.integer("dspark_markov_rank"),
    )


def _check_agreement(fields: Fields, config: ModelConfig) -> None:
    """Contradictions between fields that are each fine alone."""
    rope, heads, index = config.rope_dim, config.num_heads, config.index_dim
    vocab, token_limit = config.vocab_size, f"below vocab_size {config.vocab_size}"
    packed = 32 if config.expert_format == "fp4" else 1
    for name, agrees, wanted in (
        ("qk_rope_head_dim", rope % 2 == 0, "an even number: it is rotated in pairs"),
        ("qk_rope_head_dim", rope <= config.head_dim, f"at most head_dim {config.head_dim}"),
        ("qk_rope_head_dim", rope <= index, f"at most index_head_dim {index}"),
        ("o_groups", heads % config.o_groups == 0, f"a divisor of num_attention_heads {heads}"),
        (
            "sliding_window",
            PAGE_TOKENS % config.window == 0,
            f"a divisor of the page of {PAGE_TOKENS} tokens",
        ),
        (
            "num_experts_per_tok",
            config.experts_per_token <= config.num_experts,
            f"at most n_routed_experts {config.num_experts}",
        ),
        (
            "n_routed_experts",
            config.num_experts * config.num_layers <= MAX_EXPERTS,
            f"at most {MAX_EXPERTS:,} experts in all {config.num_layers:,} layers",
        ),
        ("bos_token_id", config.bos_token_id < vocab, token_limit),
        ("eos_token_id", config.eos_token_id < vocab, token_limit),
        ("dspark_noise_token_id", config.draft.noise_token_id < vocab, token_limit),
        ("hidden_size", config.hidden_size % packed == 0, "a multiple of 32, the FP4 scale block"),
        (
            "moe_intermediate_size",
            config.moe_intermediate_size % packed == 0,
            "a multiple of 32, the FP4 scale block",
        ),
    ):
        if not agrees:
            fields.refuse(name, wanted, "correct the field or the one that it must agree with")
