"""The shape of ember, and its parameters before training. Knows no data.

Layers of one kind are stacked: a parameter is one tensor for all layers that have it, so that
rounding, casting and the optimiser are a few large operations. `official` gives the views by
official name.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from relight.base.config import CandidateSpec, EngramSpec, LayerSpec, ModelConfig, RopeScaling
from relight.base.engram import table_rows
from relight.base.official import check_official_numerics
from relight.base.schedule import csa2_schedule, schedule
from relight.base.tensors import TensorSpec, backbone_tensors
from training.tokenizer import VOCAB_SIZE

EMBER = ModelConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=256,
    num_heads=4,
    head_dim=160,
    rope_dim=32,
    q_lora_rank=128,
    o_groups=1,
    o_lora_rank=128,
    window=128,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    compress_rope_theta=40000.0,
    rope_scaling=RopeScaling(2.0, 32.0, 1.0, 4096),
    max_position=8192,
    num_experts=16,
    num_shared_experts=1,
    experts_per_token=4,
    moe_intermediate_size=128,
    routed_scaling_factor=1.5,
    swiglu_limit=10.0,
    index_heads=8,
    index_dim=64,
    index_topk=64,
    hc_mult=4,
    hc_iters=20,
    hc_eps=1e-6,
    expert_format="fp4",
    fp8_block=128,
    bos_token_id=0,
    eos_token_id=1,
    layers=schedule((0, 128, 4, 0, 4, 0, 4, 0), num_hash=1),
)
"""8 layers of every kind. Only layer 1 is HCA: keys are to be found by the indexer, and a layer
that pools 128 tokens before names and keys are read cannot carry them."""

check_official_numerics(EMBER)

CLASSES = 3793
"""Of the tokenizer's 4,096 tokens, for n-grams: those that differ in case only are one."""

ENGRAM = EngramSpec(
    max_ngram=3, heads=4, head_dim=32, vocab_size=3000, pad_token_id=2, compressed_vocab=CLASSES
)

EMBER_V41 = replace(
    EMBER,
    rms_norm_eps=1e-20,
    fp8_block=32,
    index_topk=256,
    layers=csa2_schedule(
        (0, 2, 2, 2, 1, 1, 1, 1),
        kv_sources=(1, 4),
        index_sources=(1, 3, 4, 6),
        engram_rows={1: table_rows(ENGRAM, 1)[0]},
    ),
    generation="v4.1",
    candidates=CandidateSpec(source=4, topk_blocks=64, block_size=8),
    engram=ENGRAM,
)
"""Every role: full (1 and 4), reuse (2, 5, 7), reindex before the candidates' source (3) and among
its 512 candidates (6), which bind from 513 tokens on. Picks bind from 257 tokens on where an entry
is one token: the same share of a text as V4's 64 of an entry for four."""

check_official_numerics(EMBER_V41)

NETWORKS = {"v4": EMBER, "v4.1": EMBER_V41}


Parameters = dict[str, Tensor]
"""By the official name without its layer or stage; V4's compressors also by the kind of their
layer."""


STACKED = ("attn", "ffn", "hc_attn", "hc_ffn", "engram", "csa:", "hca:")
"""What names of stacked parameters begin with."""

INDEX_QUERIES = ("attn.indexer.wq_b.weight", "attn.indexer.weights_proj.weight")


def layers_with(config: ModelConfig, name: str) -> list[LayerSpec]:
    """The layers that a stacked parameter belongs to, in order."""
    kind, _, rest = name.rpartition(":")
    if kind:
        return [layer for layer in config.layers if layer.attention == kind]
    return [layer for layer in config.layers if _has(layer, rest)]


def _has(layer: LayerSpec, name: str) -> bool:
    """Whether the layer has the parameter, for all but V4's compressors and indexers."""
    if name.startswith("engram."):
        return layer.engram_rows > 0
    if name in ("ffn.gate.bias", "ffn.gate.tid2eid"):
        return layer.routing == ("bias" if name.endswith("bias") else "hash")
    if name in INDEX_QUERIES:
        return layer.index_source == layer.index
    if "compressor" in name or "indexer" in name:
        return layer.attention == "full" and (layer.ratio > 1 or "wgate" not in name)
    return True


def split_name(config: ModelConfig, official: str) -> tuple[str, int | None, int | None]:
    """`layers.4.ffn.experts.7.w1.weight` -> ("ffn.experts.w1.weight", its layer's place among
    those that have it, 7); `mtp.2.norm.weight` -> ("norm.weight", None, None)."""
    if not official.startswith(("layers.", "mtp.")):
        return official, None, None
    part, number, rest = official.split(".", 2)
    expert = None
    if rest.startswith("ffn.experts."):
        _, _, index, tail = rest.split(".", 3)
        rest, expert = f"ffn.experts.{tail}", int(index)
    if part == "mtp":
        return rest, int(number) if rest.startswith(STACKED) else None, expert
    layer = config.layers[int(number)]
    if layer.attention in ("csa", "hca") and ("compressor" in rest or "indexer" in rest):
        rest = f"{layer.attention}:{rest}"
    return rest, layers_with(config, rest).index(layer), expert


def official(
    config: ModelConfig, parameters: Parameters, specs: Iterable[TensorSpec] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the backbone, or of other `specs`, by its official name without scales."""
    for spec in backbone_tensors(config) if specs is None else specs:
        if spec.name.endswith(".scale"):
            continue
        name, place, expert = split_name(config, spec.name)
        tensor = parameters[name]
        tensor = tensor if place is None else tensor[place]
        yield spec.name, tensor if expert is None else tensor[expert]


def shapes(
    config: ModelConfig, specs: Iterable[TensorSpec] | None = None
) -> dict[str, tuple[int, ...]]:
    """The stacked shapes."""
    found: dict[str, tuple[int, ...]] = {}
    for spec in backbone_tensors(config) if specs is None else specs:
        if spec.name.endswith(".scale"):
            continue
        shape = (spec.shape[0], 2 * spec.shape[1]) if spec.dtype == "I8" else spec.shape
        name, place, expert = split_name(config, spec.name)
        stack = [index + 1 for index in (place, expert) if index is not None]
        assert found.get(name, (*stack, *shape))[len(stack) :] == shape, name
        found[name] = (*stack, *shape)  # the last one has the highest numbers
    return found


def initial(
    config: ModelConfig,
    seed: int,
    device: torch.device,
    specs: Iterable[TensorSpec] | None = None,
) -> Parameters:
    """Drawn on the CPU, so that a seed gives the same numbers on every device."""
    draw = torch.Generator().manual_seed(seed)
    made = {
        name: _initial(config, name, shape, draw).to(device)
        for name, shape in shapes(config, specs).items()
    }
    for name, tensor in made.items():
        tensor.requires_grad_(trained(name))
    return made


def trained(name: str) -> bool:
    """Whether the gradient moves it: the routing table is fixed, the bias follows the load, and
    that of images is not used."""
    return not name.endswith(("ffn.gate.bias", "tid2eid", "bias_vl"))


ZERO = ("ape", "gate.bias", "attn_sink", "bias_vl", "confidence_head.proj.weight")
ZERO += ("markov_head.markov_w2.weight", "markov_head.head.weight")
"""Begin as zeros: a draft's bias by the token before, too."""

MARKOV_EMBED = ("markov_head.markov_w1.weight", "markov_head.embed.weight")


def _initial(
    config: ModelConfig, name: str, shape: tuple[int, ...], draw: torch.Generator
) -> Tensor:
    if name.endswith("tid2eid"):
        scores = torch.rand((*shape[:2], config.num_experts), generator=draw)
        return scores.topk(shape[-1], dim=-1).indices.sort(dim=-1).values
    if name.endswith(("norm.weight", "q_weight", "k_weight")):
        return torch.ones(shape)
    if name.endswith(ZERO):
        return torch.zeros(shape)
    if "hc_" in name:
        return _initial_hyper(config, name, shape, draw)
    if name in ("embed.weight", *MARKOV_EMBED):
        return torch.randn(shape, generator=draw) * 0.5
    if name == "engram.embed.weight":
        return torch.randn(shape, generator=draw) * 0.2
    if name == "head.weight":
        return torch.randn(shape, generator=draw) * 0.02
    if name.endswith(("wo_b.weight", "w2.weight")):  # sublayers begin small
        return torch.randn(shape, generator=draw) * 0.3 / math.sqrt(shape[-1])
    return torch.randn(shape, generator=draw) / math.sqrt(shape[-1])


def _initial_hyper(
    config: ModelConfig, name: str, shape: tuple[int, ...], draw: torch.Generator
) -> Tensor:
    """Each sublayer begins by reading mostly one stream, in turn, writing to all and mixing
    little."""
    hc = config.hc_mult
    if name.endswith("_scale"):
        return torch.full(shape, 0.1)
    if name.endswith("_fn"):
        return torch.randn(shape, generator=draw) * shape[-1] ** -0.5
    if name == "hc_head_base":
        return torch.full(shape, -1.1)  # sigmoid 0.25: the mean of the streams
    base = torch.zeros(shape)
    for layer in range(shape[0]):
        stream = (2 * layer + ("ffn" in name)) % hc
        base[layer, :hc] = -2.0
        base[layer, stream] = 1.5
        base[layer, 2 * hc :] = (3.0 * torch.eye(hc)).flatten()
    return base
