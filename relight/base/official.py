"""The published models as configurations, and what official numerics ask of any size.

Knows no file: the configurations are what `read_config` makes of the published config.json files.
"""

from dataclasses import replace

from relight.base.errors import BadConfig
from relight.base.schedule import csa2_schedule
from relight.base.schedule import schedule as schedule  # for whoever makes a model of such sizes
from relight.base.specs import (
    CandidateSpec,
    DraftSpec,
    EngramSpec,
    ModelConfig,
    RopeScaling,
    VisionSpec,
)

CSA_AND_HCA = (4, 128)


V4_FLASH = ModelConfig(
    vocab_size=129280,
    hidden_size=4096,
    num_heads=64,
    head_dim=512,
    rope_dim=64,
    q_lora_rank=1024,
    o_groups=8,
    o_lora_rank=1024,
    window=128,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rope_scaling=RopeScaling(16.0, 32.0, 1.0, 65536),
    max_position=1048576,
    num_experts=256,
    num_shared_experts=1,
    experts_per_token=6,
    moe_intermediate_size=2048,
    routed_scaling_factor=1.5,
    swiglu_limit=10.0,
    index_heads=64,
    index_dim=128,
    index_topk=512,
    hc_mult=4,
    hc_iters=20,
    hc_eps=1e-6,
    expert_format="fp4",
    fp8_block=128,
    bos_token_id=0,
    eos_token_id=1,
    layers=schedule((0, 0, *CSA_AND_HCA * 20, 4), num_hash=3),
    draft=DraftSpec("mtp1", 1),
)
"""The preview: 43 layers and one MTP block."""

V4_FLASH_DSPARK = replace(
    V4_FLASH, draft=DraftSpec("dspark", 3, 5, 128799, (40, 41, 42), markov_rank=256)
)
"""V4-Flash-DSpark and V4-Flash-0731, which differ in their weights only."""

V4_FLASH_BASE = replace(V4_FLASH, expert_format="fp8")

V4_PRO = replace(
    V4_FLASH,
    hidden_size=7168,
    num_heads=128,
    q_lora_rank=1536,
    o_groups=16,
    num_experts=384,
    moe_intermediate_size=3072,
    routed_scaling_factor=2.5,
    index_topk=1024,
    layers=schedule((128, 128, *CSA_AND_HCA * 29, 4), num_hash=3),
    draft=DraftSpec("dspark", 3, 5, 128799, (58, 59, 60), markov_rank=512),
)

V41_FLASH = replace(
    V4_FLASH,
    hidden_size=5120,
    q_lora_rank=1280,
    rms_norm_eps=1e-20,
    num_experts=384,
    moe_intermediate_size=2304,
    index_heads=32,
    fp8_block=32,
    layers=csa2_schedule(
        (0, 0, *(2,) * 18, *(1,) * 20),
        kv_sources=(2, 8, 14, 20),
        index_sources=(2, 8, 14, 20, 24, 28, 32, 36),
        engram_rows={1: 384006168, 14: 384016682},
    ),
    draft=DraftSpec(
        "dspark", 3, 5, 128799, (37, 38, 39), 256, num_experts=128, experts_per_token=3
    ),
    generation="v4.1",
    candidates=CandidateSpec(source=20, topk_blocks=2048, block_size=8),
    engram=EngramSpec(
        max_ngram=4,
        heads=8,
        head_dim=256,
        vocab_size=16000000,
        pad_token_id=2,
        compressed_vocab=99092,
    ),
    vision=VisionSpec(
        num_layers=32,
        hidden_size=1024,
        intermediate_size=2816,
        patch_size=14,
        downsample_ratio=3,
        image_token_id=129264,
    ),
)

NAMES = (
    ("V4-Flash (preview)", V4_FLASH),
    ("V4-Flash with DSpark (0731)", V4_FLASH_DSPARK),
    ("V4-Flash-Base", V4_FLASH_BASE),
    ("V4-Pro", V4_PRO),
    ("V4.1-Flash", V41_FLASH),
)


def official_name(config: ModelConfig) -> str | None:
    """The published model that has exactly this configuration, None for any other."""
    return next((name for name, official in NAMES if official == config), None)


def check_official_numerics(config: ModelConfig) -> None:
    """Raises BadConfig unless every quantised width fills whole blocks.

    FP8 activations are scaled in blocks of 128 (V4) or 32 (V4.1) along K. Cached rows are scaled in
    groups of 64 before the rotary dims (V4) or of 32 and 16 over all dims (V4.1). Index keys pass a
    Hadamard transform (V4) and are FP4 in groups of 32.
    """
    c, unit = config, config.fp8_block
    widths = [
        ("hidden_size", c.hidden_size, unit),
        ("q_lora_rank", c.q_lora_rank, unit),
        ("o_groups * o_lora_rank", c.o_groups * c.o_lora_rank, unit),
        ("moe_intermediate_size", c.moe_intermediate_size, unit),
        ("num_attention_heads * head_dim / o_groups", c.num_heads * c.head_dim // c.o_groups, unit),
    ]
    if c.generation == "v4":
        widths.append(("head_dim - qk_rope_head_dim", c.nope_dim, 64))
    else:
        widths += [("head_dim", c.head_dim, 32), ("index_head_dim", c.index_dim, 32)]
    faults = [
        f"{name} is {value}, wanted a multiple of {unit}"
        for name, value, unit in widths
        if value % unit
    ]
    if c.generation == "v4" and (c.index_dim < 32 or c.index_dim & (c.index_dim - 1)):
        faults.append(f"index_head_dim is {c.index_dim}, wanted a power of two of at least 32")
    if faults:
        raise BadConfig(
            f"these sizes cannot run in official numerics: {'; '.join(faults)}; "
            "use --numerics reference or a model with whole blocks",
            param=faults[0].split(" is ")[0],
        )
