"""The published V4 models as configurations, and what official numerics ask of any size.

Knows no file: the configurations are what `read_config` makes of the published config.json files.
"""

from dataclasses import replace

from relight.base.config import DraftSpec, LayerSpec, ModelConfig, RopeScaling
from relight.base.errors import BadConfig

CSA_AND_HCA = (4, 128)


def schedule(ratios: tuple[int, ...], num_hash: int) -> tuple[LayerSpec, ...]:
    """Layers of these compression ratios, the first `num_hash` of them routed by table."""
    return tuple(
        LayerSpec(
            index,
            "sliding" if ratio == 0 else "csa" if ratio == 4 else "hca",
            ratio,
            "hash" if index < num_hash else "bias",
        )
        for index, ratio in enumerate(ratios)
    )


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

NAMES = (
    ("V4-Flash (preview)", V4_FLASH),
    ("V4-Flash with DSpark (0731)", V4_FLASH_DSPARK),
    ("V4-Flash-Base", V4_FLASH_BASE),
    ("V4-Pro", V4_PRO),
)


def official_name(config: ModelConfig) -> str | None:
    """The published model that has exactly this configuration, None for any other."""
    return next((name for name, official in NAMES if official == config), None)


def check_official_numerics(config: ModelConfig) -> None:
    """Raises BadConfig unless every quantised width fills whole blocks.

    FP8 activations are scaled in blocks of 128 along K, cached rows in groups of 64 before the
    rotary dims, index keys pass a Hadamard transform and FP4 groups of 32.
    """
    c = config
    faults = [
        f"{name} is {value}, wanted a multiple of {unit}"
        for name, value, unit in (
            ("hidden_size", c.hidden_size, 128),
            ("q_lora_rank", c.q_lora_rank, 128),
            ("o_groups * o_lora_rank", c.o_groups * c.o_lora_rank, 128),
            ("moe_intermediate_size", c.moe_intermediate_size, 128),
            (
                "num_attention_heads * head_dim / o_groups",
                c.num_heads * c.head_dim // c.o_groups,
                128,
            ),
            ("head_dim - qk_rope_head_dim", c.nope_dim, 64),
        )
        if value % unit
    ]
    if c.index_dim < 32 or c.index_dim & (c.index_dim - 1):
        faults.append(f"index_head_dim is {c.index_dim}, wanted a power of two of at least 32")
    if faults:
        raise BadConfig(
            f"these sizes cannot run in official numerics: {'; '.join(faults)}; "
            "use --numerics reference or a model with whole blocks",
            param=faults[0].split(" is ")[0],
        )
