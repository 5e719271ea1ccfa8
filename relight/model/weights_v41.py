"""The weights of a V4.1 backbone, made of stored tensors. Knows no cache and no request.

Shapes as in `weights`, with N the longest n-gram, C columns of an n-gram table and d_e the width of
its rows. What only images need, `bias_vl` too, is not kept.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from relight.base.checkpoint import OpenModel
from relight.base.engram import multipliers, table_primes
from relight.base.specs import LayerSpec
from relight.kernels.codec import DenseWeight, Weight
from relight.model.source import Progress, WeightSource
from relight.model.weights import (
    AttentionWeights,
    CompressorWeights,
    FfnWeights,
    HyperWeights,
    Loaded,
    nbytes,
)
from relight.text.token_classes import token_classes


@dataclass(frozen=True, slots=True)
class SourceWeights:
    """What a full layer makes entries and index keys with. At ratio 1 a row has no gate and
    `pooled` is None; above it `single` is."""

    pooled: CompressorWeights | None
    single: DenseWeight | None  # [d, D]
    norm: Tensor  # [d] float32
    wk: DenseWeight  # [index_dim, d]
    key_norm: Tensor  # [index_dim] float32


@dataclass(frozen=True, slots=True)
class QueryWeights:
    """What a full or reindex layer scores entries with."""

    wq_b: Weight  # [index_heads * index_dim, q_lora]
    weights_proj: DenseWeight  # [index_heads, D]


@dataclass(frozen=True, slots=True)
class EngramWeights:
    """An n-gram table, and how its rows join the streams."""

    table: Tensor  # [rows, d_e] E4M3 bytes
    scale: Tensor  # [rows, d_e / 32] UE8M0 bytes
    factors: Tensor  # [N] int64
    primes: Tensor  # [N - 1, heads] int64
    wkv: Weight  # [(hc + 1) * D, C * d_e]
    gain: Tensor  # [hc, D] float32, of query and key together


@dataclass(frozen=True, slots=True)
class LayerWeightsV41:
    hyper_attention: HyperWeights
    attention_norm: Tensor  # [D] float32
    attention: AttentionWeights  # without compressor and indexer
    source: SourceWeights | None
    queries: QueryWeights | None
    hyper_ffn: HyperWeights
    ffn_norm: Tensor  # [D] float32
    ffn: FfnWeights
    engram: EngramWeights | None


@dataclass(frozen=True, slots=True)
class ModelWeightsV41:
    embed: Tensor  # [V, D] as stored, bf16
    layers: tuple[LayerWeightsV41, ...]
    norm: Tensor  # [D] float32
    head: DenseWeight  # [V, D]
    token_classes: Tensor  # [V] int64

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, mapped or copied."""
        return nbytes(self)


def load_v41(
    model: OpenModel, device: torch.device, threads: int, progress: Progress | None
) -> ModelWeightsV41:
    """As `load_weights` of `weights`. Raises BadCheckpoint also for a folder without tokenizer,
    which n-grams are made with."""
    classes = token_classes(model.checkpoint.folder, model.config.vocab_size)
    with WeightSource(device) as source:
        loaded = _LoadedV41(model.config, model.tensors.used, source)
        source.run(threads, progress)
    return loaded.network(torch.tensor(classes, device=device))


class _LoadedV41(Loaded):
    def network(self, classes: Tensor) -> ModelWeightsV41:
        return ModelWeightsV41(
            embed=self._tensors["embed.weight"],
            layers=tuple(self._layer_v41(layer) for layer in self._config.layers),
            norm=self._norm("norm"),
            head=self._dense("head"),
            token_classes=classes,
        )

    def _layer_v41(self, layer: LayerSpec) -> LayerWeightsV41:
        prefix = f"layers.{layer.index}."
        indexer = f"{prefix}attn.indexer."
        queries = None
        if layer.index_source == layer.index:
            queries = QueryWeights(
                self._fp8(f"{indexer}wq_b"), self._dense(f"{indexer}weights_proj")
            )
        return LayerWeightsV41(
            hyper_attention=self._hyper(f"{prefix}hc_attn_"),
            attention_norm=self._norm(f"{prefix}attn_norm"),
            attention=self._attention(layer, f"{prefix}attn."),
            source=self._source(layer, f"{prefix}attn.") if layer.attention == "full" else None,
            queries=queries,
            hyper_ffn=self._hyper(f"{prefix}hc_ffn_"),
            ffn_norm=self._norm(f"{prefix}ffn_norm"),
            ffn=self._ffn(layer, f"{prefix}ffn."),
            engram=self._engram(layer, f"{prefix}engram.") if layer.engram_rows else None,
        )

    def _source(self, layer: LayerSpec, prefix: str) -> SourceWeights:
        norm, wkv = self._norm(f"{prefix}compressor.norm"), self._dense(f"{prefix}compressor.wkv")
        pooled = None
        if layer.ratio > 1:
            positions = norm.new_zeros(layer.ratio, norm.shape[0])  # V4.1 gates know none
            wgate = self._dense(f"{prefix}compressor.wgate")
            pooled = CompressorWeights(wkv, wgate, positions, norm)
        return SourceWeights(
            pooled=pooled,
            single=None if pooled else wkv,
            norm=norm,
            wk=self._dense(f"{prefix}indexer.wk"),
            key_norm=self._norm(f"{prefix}indexer.k_norm"),
        )

    def _engram(self, layer: LayerSpec, prefix: str) -> EngramWeights:
        spec, table = self._config.engram, self._tensors[f"{prefix}embed.weight"]
        assert spec is not None
        tables = [each.index for each in self._config.layers if each.engram_rows]
        primes = table_primes(spec, len(tables))[tables.index(layer.index)]
        query, key = (self._tensors[f"{prefix}{name}"].float() for name in ("q_weight", "k_weight"))
        return EngramWeights(
            table=table,
            scale=self._tensors[f"{prefix}embed.scale"],
            factors=torch.tensor(multipliers(spec, layer.index), device=table.device),
            primes=torch.tensor(primes, device=table.device),
            wkv=self._fp8(f"{prefix}wkv"),
            gain=query * key,
        )
