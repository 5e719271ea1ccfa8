"""Lists every tensor of a checkpoint: name, dtype, shape, bytes, part. Knows no file, no torch.

The loader, `inspect`, `synth`, `convert` and every memory estimate read this one table. Names,
dtypes and shapes are those of the official safetensors files. Quantised matrices are two tensors:
`<name>.weight` and `<name>.scale` (UE8M0, one byte a block).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from relight.base.specs import LayerSpec, ModelConfig

DTYPE_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
"""Bytes per element by safetensors' dtype names. FP4 is stored as I8, two values a byte."""

FP4_BLOCK = 32
"""Columns per UE8M0 scale of an FP4 matrix."""

ENGRAM_BLOCK = 32
"""Values of a row per UE8M0 scale of an n-gram table."""

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
    "engram",
    "head",
    "draft",
    "vision",
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

    @property
    def is_table(self) -> bool:
        """Whether it is looked up by row, so that it need not lie with the rest."""
        return ".engram.embed." in self.name


def backbone_tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """What a forward pass without a draft reads."""
    d, hc = config.hidden_size, config.hc_mult
    yield TensorSpec("embed.weight", "BF16", (config.vocab_size, d), "embed")
    for layer in config.layers:
        yield from layer_tensors(config, layer)
    if config.generation == "v4":
        yield from hyper_head("", hc, d, "hyper-connections")
    yield TensorSpec("norm.weight", "BF16", (d,), "norms")
    yield TensorSpec("head.weight", "BF16", (config.vocab_size, d), "head")


def layer_tensors(config: ModelConfig, layer: LayerSpec) -> Iterator[TensorSpec]:
    prefix = f"layers.{layer.index}."
    yield from _block(config, prefix, config.num_experts)
    yield from _routing(config, layer, prefix)
    if layer.attention in ("csa", "hca"):
        yield from _compressor(
            config, layer, f"{prefix}attn.compressor.", config.head_dim, "compressor"
        )
    if layer.attention == "csa":
        yield from _indexer(config, layer, f"{prefix}attn.indexer.")
    if layer.kv_source == layer.index:
        yield from _kv_source(config, layer, f"{prefix}attn.")
    if layer.index_source == layer.index:
        yield from _index_queries(config, f"{prefix}attn.indexer.")
    if layer.engram_rows:
        yield from _engram(config, layer, f"{prefix}engram.")


def draft_tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """Everything under `mtp.`; all of it is in the part "draft"."""
    for stage in range(config.draft.num_stages):
        for spec in stage_tensors(config, stage):
            yield TensorSpec(spec.name, spec.dtype, spec.shape, "draft")


def stage_tensors(config: ModelConfig, stage: int) -> Iterator[TensorSpec]:
    """One draft stage: a sliding block with bias routing, and what its kind adds around it."""
    d, hc, draft = config.hidden_size, config.hc_mult, config.draft
    prefix = f"mtp.{stage}."
    yield from _block(config, prefix, config.draft_experts)
    yield from _biases(config, prefix, config.draft_experts)
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
        if config.generation == "v4":
            yield from hyper_head(prefix, hc, d, "draft")
        for name in markov_names(config):
            yield TensorSpec(f"{prefix}markov_head.{name}.weight", "BF16", (vocab, rank), "draft")
        yield TensorSpec(f"{prefix}confidence_head.proj.weight", "BF16", (1, d + rank), "draft")


def markov_names(config: ModelConfig) -> tuple[str, str]:
    """Of the embedding of the token before, and of the matrix that turns it into logits."""
    return ("markov_w1", "markov_w2") if config.generation == "v4" else ("embed", "head")


VISION_PREFIXES = ("vision.", "aligner.", "image_")
"""Of the tensors that only images need. They are listed, and never loaded."""


def vision_tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """The image tower (a ViT with gated MLPs, w1 being gate and up), the aligner that maps squares
    of downsample² patches to a row of the model, and the rows around and in an image."""
    vision, d = config.vision, config.hidden_size
    if vision is None:
        return
    v, inter, patch = vision.hidden_size, vision.intermediate_size, 3 * vision.patch_size**2
    shapes: dict[str, tuple[int, ...]] = {
        "vision.patch_embed.proj.weight": (v, patch),
        "vision.patch_embed.proj.bias": (v,),
        "vision.norm.weight": (v,),
        "aligner.w1.weight": (d, v * vision.downsample_ratio**2),
        "aligner.w1.bias": (d,),
        "aligner.w2.weight": (d, d),
        "aligner.w2.bias": (d,),
        **{f"image_{name}": (d,) for name in ("start", "end", "newline")},
    }
    for index in range(vision.num_layers):
        shapes |= {
            f"vision.blocks.{index}.{name}": shape
            for name, shape in (
                ("norm1.weight", (v,)),
                ("norm2.weight", (v,)),
                ("attn.wqkv.weight", (3 * v, v)),
                ("attn.wqkv.bias", (3 * v,)),
                ("attn.wo.weight", (v, v)),
                ("attn.wo.bias", (v,)),
                ("mlp.w1.weight", (2 * inter, v)),
                ("mlp.w2.weight", (v, inter)),
            )
        }
    for name, shape in shapes.items():
        yield TensorSpec(name, "BF16", shape, "vision")


def model_tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """The whole checkpoint: V4-Flash has 69,187 tensors, with DSpark 72,317, V4.1-Flash 96,085."""
    yield from backbone_tensors(config)
    yield from draft_tensors(config)
    yield from vision_tensors(config)


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


def _block(config: ModelConfig, prefix: str, num_experts: int) -> Iterator[TensorSpec]:
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
    yield from _experts(config, f"{prefix}ffn.", num_experts)


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


def _experts(config: ModelConfig, prefix: str, num_experts: int) -> Iterator[TensorSpec]:
    d, inter, block = config.hidden_size, config.moe_intermediate_size, config.fp8_block
    shapes = {"w1": (inter, d), "w2": (d, inter), "w3": (inter, d)}
    yield TensorSpec(f"{prefix}gate.weight", "BF16", (num_experts, d), "router")
    for expert in range(num_experts):
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
        yield from _biases(config, prefix, config.num_experts)


def _biases(config: ModelConfig, prefix: str, num_experts: int) -> Iterator[TensorSpec]:
    """V4.1 has another bias for the tokens of images."""
    names = ("bias",) if config.generation == "v4" else ("bias", "bias_vl")
    for name in names:
        yield TensorSpec(f"{prefix}ffn.gate.{name}", "F32", (num_experts,), "router")


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
    yield from _index_queries(config, prefix)
    yield from _compressor(config, layer, f"{prefix}compressor.", config.index_dim, "indexer")


def _index_queries(config: ModelConfig, prefix: str) -> Iterator[TensorSpec]:
    heads, dim, block = config.index_heads, config.index_dim, config.fp8_block
    yield from fp8_matrix(f"{prefix}wq_b", heads * dim, config.q_lora_rank, block, "indexer")
    shape = (heads, config.hidden_size)
    yield TensorSpec(f"{prefix}weights_proj.weight", "BF16", shape, "indexer")


def _kv_source(config: ModelConfig, layer: LayerSpec, prefix: str) -> Iterator[TensorSpec]:
    """V4.1: compressed rows without position biases, and index keys made of them. An entry of one
    token has no gate."""
    dim, index_dim = config.head_dim, config.index_dim
    for name in ("wkv", "wgate") if layer.ratio > 1 else ("wkv",):
        shape = (dim, config.hidden_size)
        yield TensorSpec(f"{prefix}compressor.{name}.weight", "BF16", shape, "compressor")
    yield TensorSpec(f"{prefix}compressor.norm.weight", "BF16", (dim,), "norms")
    yield TensorSpec(f"{prefix}indexer.wk.weight", "BF16", (index_dim, dim), "indexer")
    yield TensorSpec(f"{prefix}indexer.k_norm.weight", "BF16", (index_dim,), "norms")


def _engram(config: ModelConfig, layer: LayerSpec, prefix: str) -> Iterator[TensorSpec]:
    """A scale is for 32 values of one row of the table, which is no matrix of square blocks."""
    engram, d, hc = config.engram, config.hidden_size, config.hc_mult
    assert engram is not None
    rows, dim = layer.engram_rows, engram.head_dim
    yield TensorSpec(f"{prefix}embed.weight", "F8_E4M3", (rows, dim), "engram")
    yield TensorSpec(f"{prefix}embed.scale", "F8_E8M0", (rows, dim // ENGRAM_BLOCK), "engram")
    columns = engram.columns * dim
    yield from fp8_matrix(f"{prefix}wkv", (hc + 1) * d, columns, config.fp8_block, "engram")
    for name in ("q_weight", "k_weight"):
        yield TensorSpec(f"{prefix}{name}", "BF16", (hc, d), "engram")
