"""The shape of ember, and its parameters before training. Knows no data.

Layers of one kind are stacked: a parameter is one tensor for all layers that have it, so that
rounding, casting and the optimiser are a few large operations. `official` gives the views by
official name.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from relight.base.config import LayerSpec, ModelConfig, RopeScaling
from relight.base.official import check_official_numerics, schedule
from relight.base.tensors import backbone_tensors
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

Parameters = dict[str, Tensor]
"""By the official name without its layer; compressors also by the kind of their layer."""


def layers_with(config: ModelConfig, name: str) -> list[LayerSpec]:
    """The layers that a stacked parameter belongs to, in order."""
    kind, _, rest = name.rpartition(":")
    if kind:
        return [layer for layer in config.layers if layer.attention == kind]
    if rest == "ffn.gate.bias":
        return [layer for layer in config.layers if layer.routing == "bias"]
    if rest == "ffn.gate.tid2eid":
        return [layer for layer in config.layers if layer.routing == "hash"]
    return list(config.layers)


def split_name(config: ModelConfig, official: str) -> tuple[str, int, int | None]:
    """`layers.4.ffn.experts.7.w1.weight` -> ("ffn.experts.w1.weight", its layer's place among
    those that have it, 7)."""
    _, number, rest = official.split(".", 2)
    layer = config.layers[int(number)]
    expert = None
    if rest.startswith("ffn.experts."):
        _, _, index, tail = rest.split(".", 3)
        rest, expert = f"ffn.experts.{tail}", int(index)
    if "compressor" in rest or "indexer" in rest:
        rest = f"{layer.attention}:{rest}"
    return rest, layers_with(config, rest).index(layer), expert


def official(config: ModelConfig, parameters: Parameters) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the checkpoint by its official name; scales are left out."""
    for spec in backbone_tensors(config):
        if spec.name.endswith(".scale"):
            continue
        if not spec.name.startswith("layers."):
            yield spec.name, parameters[spec.name]
            continue
        name, place, expert = split_name(config, spec.name)
        tensor = parameters[name][place]
        yield spec.name, tensor if expert is None else tensor[expert]


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The stacked shapes."""
    found: dict[str, tuple[int, ...]] = {}
    for spec in backbone_tensors(config):
        if spec.name.endswith(".scale"):
            continue
        shape = (spec.shape[0], 2 * spec.shape[1]) if spec.dtype == "I8" else spec.shape
        if not spec.name.startswith("layers."):
            found[spec.name] = shape
            continue
        name, _, expert = split_name(config, spec.name)
        stack = (len(layers_with(config, name)),)
        found[name] = (*stack, *shape) if expert is None else (*stack, config.num_experts, *shape)
    return found


def initial(config: ModelConfig, seed: int, device: torch.device) -> Parameters:
    """Drawn on the CPU, so that a seed gives the same numbers on every device."""
    draw = torch.Generator().manual_seed(seed)
    made = {
        name: _initial(config, name, shape, draw).to(device)
        for name, shape in shapes(config).items()
    }
    for name, tensor in made.items():
        tensor.requires_grad_(trained(name))
    return made


def trained(name: str) -> bool:
    """Whether the gradient moves it: the routing table is fixed, the bias follows the load."""
    return not name.endswith(("ffn.gate.bias", "tid2eid"))


def _initial(
    config: ModelConfig, name: str, shape: tuple[int, ...], draw: torch.Generator
) -> Tensor:
    if name.endswith("tid2eid"):
        scores = torch.rand((*shape[:2], config.num_experts), generator=draw)
        return scores.topk(shape[-1], dim=-1).indices.sort(dim=-1).values
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith(("ape", "gate.bias")):
        return torch.zeros(shape)
    if name.endswith("attn_sink"):
        return torch.zeros(shape)
    if "hc_" in name:
        return _initial_hyper(config, name, shape, draw)
    if name == "embed.weight":
        return torch.randn(shape, generator=draw) * 0.5
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
