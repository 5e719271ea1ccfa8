"""The weights of a V4.1 backbone, made of stored tensors. Knows no cache and no request.

Shapes as in `weights`, with N the longest n-gram, C columns of an n-gram table and d_e the width of
its rows. What only images need, `bias_vl` too, is not kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from relight.base.checkpoint import OpenModel
from relight.base.engram import multipliers, table_primes
from relight.base.headers import StoredTensor
from relight.base.specs import LayerSpec, ModelConfig
from relight.kernels.codec import DenseWeight, Weight
from relight.kernels.row_ops import NO_KERNELS, Ops
from relight.model.ngram_table import (
    DeviceTable,
    FileTable,
    HostTable,
    NgramTable,
    ReadCount,
    Where,
)
from relight.model.source import STORED_AS, Progress, WeightSource
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

    table: NgramTable  # rows of d_e values
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
    reads: ReadCount  # of all tables
    ops: Ops = field(default=NO_KERNELS, kw_only=True, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, mapped or copied."""
        return nbytes(self)


def load_v41(
    model: OpenModel,
    device: torch.device,
    engram: Where,
    threads: int,
    progress: Progress | None,
) -> ModelWeightsV41:
    """As `load_weights` of `weights`, with n-gram tables where `engram` says. Raises BadCheckpoint
    also for a folder without tokenizer, which n-grams are made with."""
    classes = token_classes(model.checkpoint.folder, model.config.vocab_size)
    with WeightSource(device) as source:
        loaded = LoadedV41(model.config, model.tensors.used, source, engram)
        source.run(threads, progress)
    return loaded.network(torch.tensor(classes, device=device))


class LoadedV41(Loaded):
    def __init__(
        self,
        config: ModelConfig,
        stored: Mapping[str, StoredTensor],
        source: WeightSource,
        engram: Where,
    ) -> None:
        tables = {name: tensor for name, tensor in stored.items() if ".engram.embed." in name}
        super().__init__(config, {n: t for n, t in stored.items() if n not in tables}, source)
        self._reads = ReadCount()
        self._tables = {
            layer.index: _table(
                f"layers.{layer.index}.engram.embed", tables, source, engram, self._reads
            )
            for layer in config.layers
            if layer.engram_rows
        }

    def network(self, classes: Tensor) -> ModelWeightsV41:
        return ModelWeightsV41(
            embed=self._tensors["embed.weight"],
            layers=tuple(self._layer_v41(layer) for layer in self._config.layers),
            norm=self._norm("norm"),
            head=self._dense("head"),
            token_classes=classes,
            reads=self._reads,
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
        spec = self._config.engram
        assert spec is not None
        tables = [each.index for each in self._config.layers if each.engram_rows]
        primes = table_primes(spec, len(tables))[tables.index(layer.index)]
        query, key = (self._tensors[f"{prefix}{name}"].float() for name in ("q_weight", "k_weight"))
        return EngramWeights(
            table=self._tables[layer.index],
            factors=torch.tensor(multipliers(spec, layer.index), device=query.device),
            primes=torch.tensor(primes, device=query.device),
            wkv=self._fp8(f"{prefix}wkv"),
            gain=query * key,
        )


def _table(
    name: str,
    stored: Mapping[str, StoredTensor],
    source: WeightSource,
    where: Where,
    reads: ReadCount,
) -> NgramTable:
    data, scale = stored[f"{name}.weight"], stored[f"{name}.scale"]
    if where == "mmap":
        return FileTable(data, scale, reads)
    if where == "device":
        return DeviceTable(source.tensor(data), source.tensor(scale))
    return HostTable(_in_ram(data, source), _in_ram(scale, source), reads)


def _in_ram(stored: StoredTensor, source: WeightSource) -> Tensor:
    tensor = source.allocate(stored.shape, STORED_AS[stored.dtype], torch.device("cpu"))
    source.fill(tensor, stored)
    return tensor
