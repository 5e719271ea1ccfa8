"""The weights of a V4 backbone as the model reads them. Knows no file, no cache and no request.

Matrices keep their stored form (`Weight`), so a packed checkpoint stays packed in memory. Norms,
hyper-connections, sinks, positional biases and router biases are float32. Shapes are written with
the official names: D hidden, H heads, d head_dim, G output groups, R o_lora_rank, E experts,
I expert width, V vocabulary, hc residual streams.
"""

from dataclasses import dataclass

from torch import Tensor

from relight.kernels.codec import DenseWeight, Weight
from relight.kernels.experts import Experts


@dataclass(frozen=True, slots=True)
class HyperWeights:
    """Hyper-connection of one sublayer, float32 (mHC; rows of `fn` are pre, post, comb)."""

    fn: Tensor  # [hc * (2 + hc), hc * D]
    base: Tensor  # [hc * (2 + hc)]
    scale: Tensor  # [3]


@dataclass(frozen=True, slots=True)
class CompressorWeights:
    """Pools `ratio` tokens into one entry of d values; c is 2 at ratio 4 (overlap), else 1."""

    wkv: DenseWeight  # [c * d, D]
    wgate: DenseWeight  # [c * d, D]
    ape: Tensor  # [ratio, c * d] float32
    norm: Tensor  # [d] float32


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    """Scores compressed entries of a CSA layer; its compressor has index_dim for d."""

    wq_b: Weight  # [index_heads * index_dim, q_lora]
    weights_proj: DenseWeight  # [index_heads, D]
    compressor: CompressorWeights


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """`compressor` is None on sliding layers, `indexer` on all but CSA layers."""

    wq_a: Weight  # [q_lora, D]
    q_norm: Tensor  # [q_lora] float32
    wq_b: Weight  # [H * d, q_lora]
    wkv: Weight  # [d, D]
    kv_norm: Tensor  # [d] float32
    wo_a: Weight  # [G * R, H * d / G]
    wo_b: Weight  # [D, G * R]
    sink: Tensor  # [H] float32
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None


@dataclass(frozen=True, slots=True)
class RouterWeights:
    """Exactly one of `bias` (float32) and `table` (int64, expert ids of a token id) is set."""

    gate: DenseWeight  # [E, D]
    bias: Tensor | None  # [E]
    table: Tensor | None  # [V, experts_per_token]


@dataclass(frozen=True, slots=True)
class SharedExpertWeights:
    w1: Weight  # [I, D] gate
    w3: Weight  # [I, D] up
    w2: Weight  # [D, I] down


@dataclass(frozen=True, slots=True)
class FfnWeights:
    router: RouterWeights
    experts: Experts  # w1, w3 [E, I, D], w2 [E, D, I], stacked
    shared: SharedExpertWeights


@dataclass(frozen=True, slots=True)
class LayerWeights:
    hyper_attention: HyperWeights
    attention_norm: Tensor  # [D] float32
    attention: AttentionWeights
    hyper_ffn: HyperWeights
    ffn_norm: Tensor  # [D] float32
    ffn: FfnWeights


@dataclass(frozen=True, slots=True)
class ModelWeights:
    embed: Tensor  # [V, D] as stored, bf16
    layers: tuple[LayerWeights, ...]
    hc_head_fn: Tensor  # [hc, hc * D] float32
    hc_head_base: Tensor  # [hc] float32
    hc_head_scale: Tensor  # [1] float32
    norm: Tensor  # [D] float32
    head: DenseWeight  # [V, D]
