"""The weights of a V4 backbone, made of stored tensors. Knows no cache and no request.

Matrices keep their stored form (`Weight`), so a packed checkpoint stays packed in memory. Norms,
hyper-connections, sinks, positional biases and router biases are float32. Shapes are written with
the official names: D hidden, H heads, d head_dim, G output groups, R o_lora_rank, E experts,
I expert width, V vocabulary, hc residual streams.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass

import torch
from torch import Tensor

from relight.base.checkpoint import OpenModel
from relight.base.config import LayerSpec, ModelConfig
from relight.base.errors import BadCheckpoint
from relight.base.headers import StoredTensor
from relight.kernels.codec import (
    DenseWeight,
    Fp8Weight,
    StackedFp4,
    StackedFp8,
    StackedWeight,
    Weight,
)
from relight.kernels.experts import Experts
from relight.kernels.row_ops import NO_KERNELS, Ops
from relight.model.source import STORED_AS, Progress, WeightSource


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
    ops: Ops = field(default=NO_KERNELS, kw_only=True, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, mapped or copied."""
        return nbytes(self)


def nbytes(node: object) -> int:
    """Bytes of all tensors in a tree of tuples and dataclasses."""
    if isinstance(node, Tensor):
        return node.nbytes
    if isinstance(node, tuple):
        return sum(nbytes(item) for item in node)
    if is_dataclass(node):
        return sum(nbytes(getattr(node, one.name)) for one in fields(node))
    return 0


def load_weights(
    model: OpenModel,
    device: torch.device,
    *,
    threads: int = 4,
    progress: Progress | None = None,
) -> ModelWeights:
    """Brings the backbone of a checked checkpoint to `device`; everything keeps its stored form,
    except that norms become float32. `mtp.*` is not read.

    On CPU tensors share the pages of the files; experts are stacked and therefore copied. Raises
    BadCheckpoint when a file cannot be read to its end or holds a table of experts that no row can
    be routed by, CannotFit when memory is refused.
    """
    assert model.config.generation == "v4"
    with WeightSource(device) as source:
        loaded = Loaded(model.config, model.tensors.used, source)
        source.run(threads, progress)
    loaded.check_tables()
    return loaded.model()


class Loaded:
    """All tensors of a backbone by name, filled by the time that `model` is called."""

    def __init__(
        self, config: ModelConfig, stored: Mapping[str, StoredTensor], source: WeightSource
    ) -> None:
        self._config = config
        self._stored = stored
        self._tensors: dict[str, Tensor] = {}
        for name, tensor in stored.items():
            if ".ffn.experts." in name:
                stack, expert = _stack_name(name)
                self._stack(stack, tensor, source)
                source.fill(self._tensors[stack][expert], tensor)
            else:
                self._tensors[name] = source.tensor(tensor)

    def _stack(self, stack: str, first: StoredTensor, source: WeightSource) -> None:
        if stack not in self._tensors:
            shape = (self._config.num_experts, *first.shape)
            self._tensors[stack] = source.allocate(shape, STORED_AS[first.dtype])

    def check_tables(self) -> None:
        """At a request a bad row would fail the step, and with it all that runs beside it."""
        for name, table in self._tensors.items():
            if name.endswith(".tid2eid") and not table.is_meta:
                _check_table(self._stored[name], table, self._config.num_experts)

    def model(self) -> ModelWeights:
        return ModelWeights(
            embed=self._tensors["embed.weight"],
            layers=tuple(self._layer(layer) for layer in self._config.layers),
            hc_head_fn=self._tensors["hc_head_fn"],
            hc_head_base=self._tensors["hc_head_base"],
            hc_head_scale=self._tensors["hc_head_scale"],
            norm=self._norm("norm"),
            head=self._dense("head"),
        )

    def _layer(self, layer: LayerSpec) -> LayerWeights:
        prefix = f"layers.{layer.index}."
        return LayerWeights(
            hyper_attention=self._hyper(f"{prefix}hc_attn_"),
            attention_norm=self._norm(f"{prefix}attn_norm"),
            attention=self._attention(layer, f"{prefix}attn."),
            hyper_ffn=self._hyper(f"{prefix}hc_ffn_"),
            ffn_norm=self._norm(f"{prefix}ffn_norm"),
            ffn=self._ffn(layer, f"{prefix}ffn."),
        )

    def _attention(self, layer: LayerSpec, prefix: str) -> AttentionWeights:
        compressed, indexed = layer.attention in ("csa", "hca"), layer.attention == "csa"
        return AttentionWeights(
            wq_a=self._fp8(f"{prefix}wq_a"),
            q_norm=self._norm(f"{prefix}q_norm"),
            wq_b=self._fp8(f"{prefix}wq_b"),
            wkv=self._fp8(f"{prefix}wkv"),
            kv_norm=self._norm(f"{prefix}kv_norm"),
            wo_a=self._fp8(f"{prefix}wo_a"),
            wo_b=self._fp8(f"{prefix}wo_b"),
            sink=self._tensors[f"{prefix}attn_sink"],
            compressor=self._compressor(f"{prefix}compressor.") if compressed else None,
            indexer=self._indexer(f"{prefix}indexer.") if indexed else None,
        )

    def _compressor(self, prefix: str) -> CompressorWeights:
        return CompressorWeights(
            wkv=self._dense(f"{prefix}wkv"),
            wgate=self._dense(f"{prefix}wgate"),
            ape=self._tensors[f"{prefix}ape"],
            norm=self._norm(f"{prefix}norm"),
        )

    def _indexer(self, prefix: str) -> IndexerWeights:
        return IndexerWeights(
            wq_b=self._fp8(f"{prefix}wq_b"),
            weights_proj=self._dense(f"{prefix}weights_proj"),
            compressor=self._compressor(f"{prefix}compressor."),
        )

    def _ffn(self, layer: LayerSpec, prefix: str) -> FfnWeights:
        hashed = layer.routing == "hash"
        w1, w2, w3 = (self._stacked(f"{prefix}experts.{name}") for name in ("w1", "w2", "w3"))
        shared = f"{prefix}shared_experts."
        return FfnWeights(
            router=RouterWeights(
                gate=self._dense(f"{prefix}gate"),
                bias=None if hashed else self._tensors[f"{prefix}gate.bias"],
                table=self._tensors[f"{prefix}gate.tid2eid"] if hashed else None,
            ),
            experts=Experts(w1=w1, w3=w3, w2=w2),
            shared=SharedExpertWeights(
                w1=self._fp8(f"{shared}w1"),
                w3=self._fp8(f"{shared}w3"),
                w2=self._fp8(f"{shared}w2"),
            ),
        )

    def _hyper(self, prefix: str) -> HyperWeights:
        fn, base, scale = (self._tensors[f"{prefix}{name}"] for name in ("fn", "base", "scale"))
        return HyperWeights(fn, base, scale)

    def _norm(self, name: str) -> Tensor:
        return self._tensors[f"{name}.weight"].float()

    def _dense(self, name: str) -> DenseWeight:
        return DenseWeight(self._tensors[f"{name}.weight"])

    def _fp8(self, name: str) -> Fp8Weight:
        data, scale = self._tensors[f"{name}.weight"], self._tensors[f"{name}.scale"]
        return Fp8Weight(data, scale, self._config.fp8_block)

    def _stacked(self, name: str) -> StackedWeight:
        data, scale = self._tensors[f"{name}.weight"], self._tensors[f"{name}.scale"]
        if self._config.expert_format == "fp4":
            return StackedFp4(data, scale, self._config.fp8_block)
        return StackedFp8(data, scale, self._config.fp8_block)


def _check_table(stored: StoredTensor, table: Tensor, num_experts: int) -> None:
    """Every token needs different experts, and such as there are."""
    row = table.sort(dim=1).values
    bad = (row[:, 0] < 0) | (row[:, -1] >= num_experts) | (row[:, 1:] == row[:, :-1]).any(1)
    if bool(bad.any()):
        token = int(bad.nonzero()[0])
        raise BadCheckpoint(
            f"{stored.file}: {stored.name} gives token {token} the experts "
            f"{table[token].tolist()}; wanted {table.shape[1]} different ones of 0 to "
            f"{num_experts - 1}; fetch the file again",
            param="model",
        )


def _stack_name(name: str) -> tuple[str, int]:
    """`layers.3.ffn.experts.17.w1.scale` -> (`layers.3.ffn.experts.w1.scale`, 17)."""
    head, tail = name.split(".experts.")
    expert, matrix = tail.split(".", 1)
    return f"{head}.experts.{matrix}", int(expert)
