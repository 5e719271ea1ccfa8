"""Reads the flat config.json of V4. Knows no file."""

from relight.base.config_common import (
    DSPARK_FIELDS,
    WITHOUT_EFFECT,
    read_dspark,
    read_expert_format,
    read_fp8_block,
    read_ratios,
    read_rope_scaling,
    read_sizes,
)
from relight.base.fields import Fields
from relight.base.schedule import schedule
from relight.base.specs import PAGE_TOKENS, DraftSpec, LayerSpec, ModelConfig

FP8_BLOCK = 128


def parse_v4(fields: Fields) -> tuple[ModelConfig, tuple[str, ...], tuple[str, ...]]:
    """The model, the names of unknown fields and those of assumed ones."""
    fields.fixed("model_type", "deepseek_v4", required=True)
    if "compress_ratios" not in fields and "layer_types" in fields:
        fields.refuse(
            "compress_ratios",
            "one ratio a layer",
            "this config.json was written by save_pretrained: run `relight convert` on its folder",
        )
    quantisation = fields.nested(
        "quantization_config", "a folder written by save_pretrained needs `relight convert`"
    )
    scaling = fields.nested("rope_scaling", "copy it from the published config.json")
    expert_format, assumed = read_expert_format(fields, quantisation)
    layers, num_stages = _layers(fields)
    config = read_sizes(
        fields,
        fields,
        rope_scaling=read_rope_scaling(scaling),
        expert_format=expert_format,
        fp8_block=read_fp8_block(quantisation, FP8_BLOCK),
        layers=layers,
        draft=_draft(fields, num_stages, len(layers)),
    )
    unknown = fields.unknown(WITHOUT_EFFECT) + scaling.unknown() + quantisation.unknown()
    return config, unknown, assumed


def _layers(fields: Fields) -> tuple[tuple[LayerSpec, ...], int]:
    """The backbone layers, and the number of draft stages listed behind them."""
    num_hash = fields.integer("num_hash_layers", least=0)
    ratios, num_stages = read_ratios(fields)
    if num_hash > len(ratios):
        fields.refuse(
            "num_hash_layers",
            f"at most {len(ratios)}, which is num_hidden_layers",
            "correct one of the two",
        )
    for index, ratio in enumerate(ratios):
        if ratio not in (0, 4) and not (ratio > 4 and PAGE_TOKENS % ratio == 0):
            fields.refuse(
                "compress_ratios",
                "0 (sliding), 4 (CSA) or a larger divisor of 128 (HCA)",
                "correct this entry",
                found=f"has {ratio} at layer {index}",
            )
    return schedule(ratios, num_hash), num_stages


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
    if has_dspark:
        return read_dspark(fields, num_stages, num_layers)
    if num_stages > 1:
        fields.refuse(
            DSPARK_FIELDS[0],
            f"the four dspark_* fields, since compress_ratios lists {num_stages} draft stages",
            "copy them from the published config.json",
        )
    return DraftSpec("mtp1", 1) if num_stages else DraftSpec("none")
