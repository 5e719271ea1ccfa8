"""Reads a model's config.json strictly and derives what each layer is. Knows no tensor and no torch."""

from dataclasses import dataclass
from typing import Literal

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
