"""Lists every tensor of a V4 checkpoint: name, dtype, shape, bytes, part. Knows no file, no torch.

The loader, `inspect`, `synth`, `convert` and every memory estimate read this one table. Names,
dtypes and shapes are those of the official safetensors files. Quantised matrices are two tensors:
`<name>.weight` and `<name>.scale` (UE8M0, one byte a block).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from relight.base.config import LayerSpec, ModelConfig

DTYPE_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
"""Bytes per element by safetensors' dtype names. FP4 is stored as I8, two values a byte."""

FP4_BLOCK = 32
"""Columns per UE8M0 scale of an FP4 matrix."""

Part = Literal[
    "embed",
    "attention",
    "compressor",
    "indexer",
    "router",
    "routed experts",
    "shared experts",
    "hyper-connections",
    "norms",
    "head",
    "draft",
]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    name: str
    dtype: str
    shape: tuple[int, ...]
    part: Part

    @property
    def nbytes(self) -> int:
        return DTYPE_BYTES[self.dtype] * prod(self.shape)


def backbone_tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """What a forward pass without a draft reads."""
    d, hc = config.hidden_size, config.hc_mult
    yield TensorSpec("embed.weight", "BF16", (config.vocab_size, d), "embed")
    for layer in config.layers:
        yield from layer_tensors(config, layer)
    yield from hyper_head("", hc, d, "hyper-connections")
    yield TensorSpec("norm.weight", "BF16", (d,), "norms")
    yield TensorSpec("head.weight", "BF16", (config.vocab_size, d), "head")


def layer_tensors(config: ModelConfig, layer: LayerSpec) -> Iterator[TensorSpec]:
    prefix = f"layers.{layer.index}."
    yield from _block(config, prefix)
    yield from _routing(config, layer, prefix)
    if layer.attention != "sliding":
        yield from _compressor(
            config, layer, f"{prefix}attn.compressor.", config.head_dim, "compressor"
        )
    if layer.attention == "csa":
        yield from _indexer(config, layer, f"{prefix}attn.indexer.")


def draft_tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """Everything under `mtp.`; all of it is in the part "draft"."""
    for stage in range(config.draft.num_stages):
        for spec in stage_tensors(config, stage):
            yield TensorSpec(spec.name, spec.dtype, spec.shape, "draft")


def stage_tensors(config: ModelConfig, stage: int) -> Iterator[TensorSpec]:
    """One draft stage: a sliding block with bias routing, and what its kind adds around it."""
    d, hc, draft = config.hidden_size, config.hc_mult, config.draft
    prefix = f"mtp.{stage}."
    yield from _block(config, prefix)
    yield TensorSpec(f"{prefix}ffn.gate.bias", "F32", (config.num_experts,), "draft")
    if draft.kind == "mtp1":
        yield from fp8_matrix(f"{prefix}e_proj", d, d, config.fp8_block, "draft")
        yield from fp8_matrix(f"{prefix}h_proj", d, d, config.fp8_block, "draft")
        for name in ("enorm", "hnorm", "norm"):
            yield TensorSpec(f"{prefix}{name}.weight", "BF16", (d,), "draft")
        yield from hyper_head(prefix, hc, d, "draft")
        return
    if stage == 0:
        taps = len(draft.target_layers) * d
        yield from fp8_matrix(f"{prefix}main_proj", d, taps, config.fp8_block, "draft")
        yield TensorSpec(f"{prefix}main_norm.weight", "BF16", (d,), "draft")
    if stage == draft.num_stages - 1:
        vocab, rank = config.vocab_size, draft.markov_rank
        yield TensorSpec(f"{prefix}norm.weight", "BF16", (d,), "draft")
        yield from hyper_head(prefix, hc, d, "draft")
        for name in ("markov_w1", "markov_w2"):
            yield TensorSpec(f"{prefix}markov_head.{name}.weight", "BF16", (vocab, rank), "draft")
        yield TensorSpec(f"{prefix}confidence_head.proj.weight", "BF16", (1, d + rank), "draft")


def model_tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """The whole checkpoint: V4-Flash has 69,187 tensors, with DSpark 72,317."""
    yield from backbone_tensors(config)
    yield from draft_tensors(config)


def fp8_matrix(name: str, rows: int, columns: int, block: int, part: Part) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", "F8_E4M3", (rows, columns), part)
    scales = (-(-rows // block), -(-columns // block))
    yield TensorSpec(f"{name}.scale", "F8_E8M0", scales, part)


def fp4_matrix(name: str, rows: int, columns: int, part: Part) -> Iterator[TensorSpec]:
    assert columns % FP4_BLOCK == 0
    yield TensorSpec(f"{name}.weight", "I8", (rows, columns // 2), part)
    yield TensorSpec(f"{name}.scale", "F8_E8M0", (rows, columns // FP4_BLOCK), part)


def hyper_head(prefix: str, hc: int, d: int, part: Part) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{prefix}hc_head_fn", "F32", (hc, hc * d), part)
    yield TensorSpec(f"{prefix}hc_head_base", "F32", (hc,), part)
    yield TensorSpec(f"{prefix}hc_head_scale", "F32", (1,), part)


def _block(config: ModelConfig, prefix: str) -> Iterator[TensorSpec]:
    """What every block has, whatever its attention and routing."""
    d, hc = config.hidden_size, config.hc_mult
    mixes = hc * (2 + hc)  # pre, post and the hc × hc combination
    for sublayer in ("attn", "ffn"):
        hyper = f"{prefix}hc_{sublayer}_"
        yield TensorSpec(f"{hyper}fn", "F32", (mixes, hc * d), "hyper-connections")
        yield TensorSpec(f"{hyper}base", "F32", (mixes,), "hyper-connections")
        yield TensorSpec(f"{hyper}scale", "F32", (3,), "hyper-connections")
        yield TensorSpec(f"{prefix}{sublayer}_norm.weight", "BF16", (d,), "norms")
    yield from _attention(config, f"{prefix}attn.")
    yield from _experts(config, f"{prefix}ffn.")


def _attention(config: ModelConfig, prefix: str) -> Iterator[TensorSpec]:
    d, heads, dim = config.hidden_size, config.num_heads, config.head_dim
    groups, q_rank, o_rank = config.o_groups, config.q_lora_rank, config.o_lora_rank
    block = config.fp8_block
    yield TensorSpec(f"{prefix}attn_sink", "F32", (heads,), "attention")
    yield from fp8_matrix(f"{prefix}wq_a", q_rank, d, block, "attention")
    yield TensorSpec(f"{prefix}q_norm.weight", "BF16", (q_rank,), "norms")
    yield from fp8_matrix(f"{prefix}wq_b", heads * dim, q_rank, block, "attention")
    yield from fp8_matrix(f"{prefix}wkv", dim, d, block, "attention")
    yield TensorSpec(f"{prefix}kv_norm.weight", "BF16", (dim,), "norms")
    group_columns = heads * dim // groups
    yield from fp8_matrix(f"{prefix}wo_a", groups * o_rank, group_columns, block, "attention")
    yield from fp8_matrix(f"{prefix}wo_b", d, groups * o_rank, block, "attention")


def _experts(config: ModelConfig, prefix: str) -> Iterator[TensorSpec]:
    d, inter, block = config.hidden_size, config.moe_intermediate_size, config.fp8_block
    shapes = {"w1": (inter, d), "w2": (d, inter), "w3": (inter, d)}
    yield TensorSpec(f"{prefix}gate.weight", "BF16", (config.num_experts, d), "router")
    for expert in range(config.num_experts):
        for matrix, (rows, columns) in shapes.items():
            name = f"{prefix}experts.{expert}.{matrix}"
            if config.expert_format == "fp4":
                yield from fp4_matrix(name, rows, columns, "routed experts")
            else:
                yield from fp8_matrix(name, rows, columns, block, "routed experts")
    for matrix, (rows, columns) in shapes.items():
        name = f"{prefix}shared_experts.{matrix}"
        yield from fp8_matrix(name, rows, columns, block, "shared experts")


def _routing(config: ModelConfig, layer: LayerSpec, prefix: str) -> Iterator[TensorSpec]:
    if layer.routing == "hash":
        shape = (config.vocab_size, config.experts_per_token)
        yield TensorSpec(f"{prefix}ffn.gate.tid2eid", "I64", shape, "router")
    else:
        yield TensorSpec(f"{prefix}ffn.gate.bias", "F32", (config.num_experts,), "router")


def _compressor(
    config: ModelConfig, layer: LayerSpec, prefix: str, dim: int, part: Part
) -> Iterator[TensorSpec]:
    """At ratio 4 windows overlap: a projection has a half for the next window, one for its own."""
    width = 2 * dim if layer.attention == "csa" else dim
    for name in ("wkv", "wgate"):
        yield TensorSpec(f"{prefix}{name}.weight", "BF16", (width, config.hidden_size), part)
    yield TensorSpec(f"{prefix}ape", "F32", (layer.ratio, width), part)
    yield TensorSpec(f"{prefix}norm.weight", "BF16", (dim,), "norms")


def _indexer(config: ModelConfig, layer: LayerSpec, prefix: str) -> Iterator[TensorSpec]:
    heads, dim = config.index_heads, config.index_dim
    yield from fp8_matrix(
        f"{prefix}wq_b", heads * dim, config.q_lora_rank, config.fp8_block, "indexer"
    )
    shape = (heads, config.hidden_size)
    yield TensorSpec(f"{prefix}weights_proj.weight", "BF16", shape, "indexer")
    yield from _compressor(config, layer, f"{prefix}compressor.", dim, "indexer")
