"""Reads the nested config.json of V4.1. Knows no file.

The root has the formats and the special tokens, `text_config` the network, `vision_config` the
image tower, which is read for the sake of its tensors' names and bytes only.
"""

from dataclasses import replace

from relight.base.config_common import (
    MAX_EXPERTS,
    WITHOUT_EFFECT,
    read_dspark,
    read_expert_format,
    read_fp8_block,
    read_layer_numbers,
    read_ratios,
    read_rope_scaling,
    read_sizes,
)
from relight.base.engram import table_rows
from relight.base.fields import Fields
from relight.base.schedule import csa2_schedule
from relight.base.specs import (
    CandidateSpec,
    DraftSpec,
    EngramSpec,
    LayerSpec,
    ModelConfig,
    VisionSpec,
)

FP8_BLOCK = 32
COPY = "copy it from the published config.json"
LARGEST = {"engram_max_ngram_size": 8, "engram_n_heads": 64, "engram_layer_ids": 8}
"""A slip in a count is refused before primes are sought."""

MOST_VISION_LAYERS = 1024
"""Likewise, before tensors are listed."""

VISION_WITHOUT_EFFECT = frozenset(
    {"max_image_tokens", "max_wh_ratio", "min_pixels", "num_attention_heads", "rope_theta"}
)
"""They say how images are read, which is not built, and nothing about tensors."""


def parse_v41(root: Fields) -> tuple[ModelConfig, tuple[str, ...], tuple[str, ...]]:
    """The model, the names of unknown fields and those of assumed ones."""
    root.fixed("model_type", "deepseek_v41", required=True)
    text = root.nested("text_config", COPY)
    text.fixed("model_type", "deepseek_v41_text", required=True)
    quantisation = root.nested("quantization_config", COPY)
    scaling = text.nested("rope_scaling", COPY)
    expert_format, assumed = read_expert_format(root, quantisation)
    ratios, num_stages = read_ratios(text)
    engram, rows = _engram(text, len(ratios))
    layers = _layers(text, ratios, rows)
    vision, unknown_in_vision = _vision(root)
    config = read_sizes(
        text,
        root,
        rope_scaling=read_rope_scaling(scaling),
        expert_format=expert_format,
        fp8_block=read_fp8_block(quantisation, FP8_BLOCK),
        layers=layers,
        draft=_draft(text, num_stages, len(layers)),
        generation="v4.1",
        candidates=_candidates(text, layers),
        engram=engram,
        vision=vision,
    )
    _check_agreement(text, config)
    unknown = (
        root.unknown(WITHOUT_EFFECT)
        + text.unknown(WITHOUT_EFFECT)
        + scaling.unknown()
        + quantisation.unknown()
        + unknown_in_vision
    )
    return config, unknown, assumed


def _layers(
    text: Fields, ratios: tuple[int, ...], engram_rows: dict[int, int]
) -> tuple[LayerSpec, ...]:
    for index, ratio in enumerate(ratios):
        if ratio not in (0, 1, 2):
            text.refuse(
                "compress_ratios",
                "0 (sliding), 1 or 2",
                "correct this entry",
                found=f"has {ratio} at layer {index}",
            )
    kv_sources = read_layer_numbers(text, "kv_source_layer_ids", len(ratios))
    index_sources = read_layer_numbers(text, "index_source_layer_ids", len(ratios))
    if not set(kv_sources) <= set(index_sources):
        text.refuse(
            "index_source_layer_ids",
            f"every layer of kv_source_layer_ids {list(kv_sources)}, whose new entries need a "
            "selection of their own",
            "correct one of the two",
        )
    layers = csa2_schedule(ratios, kv_sources, index_sources, engram_rows)
    for layer in layers:
        source = layer.kv_source
        if layer.ratio and (source is None or ratios[source] != layer.ratio):
            text.refuse(
                "kv_source_layer_ids",
                f"a source of ratio {layer.ratio} at or before layer {layer.index}",
                "correct it or compress_ratios",
            )
        if not layer.ratio and layer.index in index_sources:
            text.refuse(
                "index_source_layer_ids",
                "no sliding layer",
                "correct it or compress_ratios",
                found=f"has layer {layer.index}, of ratio 0",
            )
    return layers


def _candidates(text: Fields, layers: tuple[LayerSpec, ...]) -> CandidateSpec:
    name = "candidate_source_layer_id"
    spec = CandidateSpec(
        text.integer(name, least=0),
        text.integer("candidate_topk_blocks"),
        text.integer("candidate_block_size"),
    )
    last = max(layer.index for layer in layers if layer.attention == "full")
    if spec.source != last:
        text.refuse(
            name,
            f"{last}, the last of kv_source_layer_ids, whose entries later layers choose from",
            "correct one of the two",
        )
    topk = text.integer("index_topk")
    # The block of the newest entry is always taken, and may hold that one entry alone.
    if (spec.topk_blocks - 1) * spec.block_size + 1 < topk:
        text.refuse(
            "candidate_topk_blocks",
            f"enough blocks of {spec.block_size} for index_topk {topk} entries beside the newest",
            "give more blocks",
        )
    return spec


def _engram(text: Fields, num_layers: int) -> tuple[EngramSpec, dict[int, int]]:
    """The tables' common sizes, and the rows of each layer that has one."""
    numbers = read_layer_numbers(text, "engram_layer_ids", num_layers)
    spec = EngramSpec(
        max_ngram=text.integer("engram_max_ngram_size", least=2),
        heads=text.integer("engram_n_heads"),
        head_dim=text.integer("engram_head_dim"),
        vocab_size=text.integer("engram_vocab_size"),
        pad_token_id=text.integer("engram_pad_token_id", least=0),
        compressed_vocab=text.integer("engram_compressed_vocab_size"),
    )
    counts = (spec.max_ngram, spec.heads, len(numbers))
    for (name, limit), count in zip(LARGEST.items(), counts, strict=True):
        if count > limit:
            text.refuse(name, f"at most {limit}", COPY, found=f"gives {count}")
    rows = text.integers("engram_num_embeddings")
    wanted = table_rows(spec, len(numbers))
    if rows != wanted:
        text.refuse(
            "engram_num_embeddings",
            f"{list(wanted)}, the sums of the primes above engram_vocab_size",
            "correct one of the engram_* fields",
        )
    return spec, dict(zip(numbers, rows, strict=True))


def _draft(text: Fields, num_stages: int, num_layers: int) -> DraftSpec:
    declared = text.integer("num_nextn_predict_layers", least=0)
    if declared != num_stages:
        text.refuse(
            "num_nextn_predict_layers",
            f"{num_stages}, the entries of compress_ratios behind the {num_layers} backbone layers",
            "correct one of the two",
        )
    if num_stages == 0:
        return DraftSpec("none")
    return replace(
        read_dspark(text, num_stages, num_layers),
        num_experts=text.integer("dspark_n_routed_experts"),
        experts_per_token=text.integer("dspark_num_experts_per_tok"),
    )


def _vision(root: Fields) -> tuple[VisionSpec | None, tuple[str, ...]]:
    image_token = root.integer("image_token_id", least=0) if "image_token_id" in root else None
    if "vision_config" not in root:
        return None, ()
    if image_token is None:
        root.refuse("image_token_id", "the id of the image token, since there is a tower", COPY)
    fields = root.nested("vision_config", COPY)
    fields.fixed("model_type", "deepseek_v41_vision")
    spec = VisionSpec(
        num_layers=fields.integer("num_hidden_layers"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        patch_size=fields.integer("patch_size"),
        downsample_ratio=fields.integer("downsample_ratio"),
        image_token_id=image_token,
    )
    if spec.num_layers > MOST_VISION_LAYERS:
        fields.refuse("num_hidden_layers", f"at most {MOST_VISION_LAYERS}", COPY)
    return spec, fields.unknown(VISION_WITHOUT_EFFECT)


def _check_agreement(text: Fields, config: ModelConfig) -> None:
    """Contradictions between fields that only V4.1 has and others."""
    engram, experts, per_token = config.engram, config.draft_experts, config.draft_experts_per_token
    assert engram is not None
    vocab, classes = config.vocab_size, engram.compressed_vocab
    for name, agrees, wanted in (
        ("engram_pad_token_id", engram.pad_token_id < vocab, f"below vocab_size {vocab}"),
        ("engram_compressed_vocab_size", classes <= vocab, f"at most vocab_size {vocab}"),
        ("engram_head_dim", engram.head_dim % 32 == 0, "a multiple of 32, the FP8 scale block"),
        (
            "dspark_num_experts_per_tok",
            per_token <= experts,
            f"at most dspark_n_routed_experts {experts}",
        ),
        (
            "dspark_n_routed_experts",
            experts * config.draft.num_stages <= MAX_EXPERTS,
            f"at most {MAX_EXPERTS:,} experts in all {config.draft.num_stages:,} stages",
        ),
    ):
        if not agrees:
            text.refuse(name, wanted, "correct the field or the one that it must agree with")
