"""What a model is: sizes, the role of each layer, draft, Engram, vision. Knows no file, no torch.

The same classes describe V4 and V4.1. What only one of them has is None, empty or 0 in the other.
"""

from dataclasses import dataclass
from typing import Literal

AttentionKind = Literal["sliding", "csa", "hca", "full", "reindex", "reuse"]
"""`csa` and `hca` are V4's. `full`, `reindex` and `reuse` are V4.1's (CSA2): a full layer makes
compressed rows and index keys and selects among them, a reindex layer selects anew among those of
its source, a reuse layer reads what its sources hold and chose."""

RoutingKind = Literal["hash", "bias"]
DraftKind = Literal["none", "mtp1", "dspark"]
Generation = Literal["v4", "v4.1"]

PAGE_TOKENS = 128
"""Tokens of a page. Windows and ratios divide it, so that nothing reaches across a page's edge
except what a boundary record holds."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """The role of one layer. `ratio` is tokens per compressed entry, 0 for a sliding layer.

    `kv_source` and `index_source` (V4.1): the layers whose compressed rows and whose selection this
    one reads, itself where it is one; None on sliding layers. `engram_rows`: rows of its n-gram
    table, 0 without one.
    """

    index: int
    attention: AttentionKind
    ratio: int
    routing: RoutingKind
    kv_source: int | None = None
    index_source: int | None = None
    engram_rows: int = 0


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """YaRN, used on layers with a ratio above 0 only."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class CandidateSpec:
    """Two-level selection of V4.1: layer `source` publishes its best `topk_blocks` blocks of
    `block_size` entries for each token, and later layers select inside them."""

    source: int
    topk_blocks: int
    block_size: int


@dataclass(frozen=True, slots=True)
class EngramSpec:
    """Sizes that the n-gram tables share. A row of `head_dim` values for each of `heads` hashes of
    each order 2 … `max_ngram`; `compressed_vocab` is the number of classes of tokens."""

    max_ngram: int
    heads: int
    head_dim: int
    vocab_size: int
    pad_token_id: int
    compressed_vocab: int

    @property
    def columns(self) -> int:
        """Rows that a token reads from a table."""
        return (self.max_ngram - 1) * self.heads


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """The image tower of a V4.1 checkpoint, which is listed and not loaded."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    patch_size: int
    downsample_ratio: int
    image_token_id: int


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """What follows the backbone in the checkpoint (`mtp.*`). `mtp1`: the preview's single block.

    `num_experts` and `experts_per_token` are None where a stage has as many as a backbone layer.
    """

    kind: DraftKind
    num_stages: int = 0
    block_size: int = 0
    noise_token_id: int = 0
    target_layers: tuple[int, ...] = ()
    markov_rank: int = 0
    num_experts: int | None = None
    experts_per_token: int | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model as its config.json describes it; names follow the official fields where short."""

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
    generation: Generation = "v4"
    candidates: CandidateSpec | None = None
    engram: EngramSpec | None = None
    vision: VisionSpec | None = None

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def nope_dim(self) -> int:
        return self.head_dim - self.rope_dim

    @property
    def draft_experts(self) -> int:
        return self.draft.num_experts or self.num_experts

    @property
    def draft_experts_per_token(self) -> int:
        return self.draft.experts_per_token or self.experts_per_token
