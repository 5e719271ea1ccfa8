"""What the plain float32 networks of V4 and V4.1 have in common: every step but the order of a
block and how entries come to be. Knows no cache, kernel, quantised number or checkpoint.

Symbols in shapes as in `reference_parts`. Selections (router, indexer) pass no gradient; their ties
go to the lowest index.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.specs import ModelConfig
from relight.model.reference_parts import (
    Routing,
    Selection,
    attend,
    choose,
    collapse,
    expand,
    rope_frequencies,
    sigmoid_mix,
    sinkhorn,
    take_best,
    unit_rms,
)

ROUTE_EPS = {"v4": 0.0, "v4.1": 1e-20}
"""Added to the sum that weights of experts are divided by."""


@dataclass(frozen=True, slots=True)
class Entered:
    """Streams on their way through a sublayer, which reads `x` and writes by `leave`."""

    x: Tensor  # [B, T, D], normed
    pre: Tensor  # [B, T, S], made of these streams
    streams: Tensor  # [B, T, S, D]
    post: Tensor  # [B, T, S]
    mix: Tensor  # [B, T, from, to], doubly stochastic up to eps

    def leave(self, out: Tensor) -> Tensor:
        return expand(out, self.streams, self.post, self.mix)


class Network:
    """`tensors` maps official names (`layers.0.attn.wq_a.weight`) to dequantised tensors, `tid2eid`
    to int64. It is read at every call, so that a trainer may hold and replace the parameters."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
        self.config = config
        self.tensors = tensors

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        return unit_rms(x, self.config.rms_norm_eps) * self.tensors[f"{name}.weight"]

    def embed(self, ids: Tensor) -> Tensor:
        """The first streams [B, T, S, D]: the embedding, S times."""
        rows = F.embedding(ids, self.tensors["embed.weight"])
        return rows.unsqueeze(-2).expand(*ids.shape, self.config.hc_mult, -1)

    # Hyper-connections

    def enter(
        self, name: str, sublayer: str, streams: Tensor, pre: Tensor | None = None
    ) -> Entered:
        """Into `attn` or `ffn` of a block. V4.1 gives the `pre` that the sublayer before made."""
        n, eps, hyper = self.config.hc_mult, self.config.hc_eps, f"{name}.hc_{sublayer}"
        parts = self.stream_mixes(hyper, streams).split([n, n, n * n], dim=-1)
        bases = self.tensors[f"{hyper}_base"].split([n, n, n * n])
        scales = self.tensors[f"{hyper}_scale"]
        own = sigmoid_mix(parts[0], scales[0], bases[0]) + eps
        post = 2 * sigmoid_mix(parts[1], scales[1], bases[1])
        mix = (parts[2] * scales[2] + bases[2]).unflatten(-1, (n, n))
        x = self.norm(f"{name}.{sublayer}_norm", collapse(streams, own if pre is None else pre))
        return Entered(x, own, streams, post, sinkhorn(mix, self.config.hc_iters, eps))

    def stream_mixes(self, name: str, streams: Tensor) -> Tensor:
        return F.linear(
            unit_rms(streams.flatten(-2), self.config.rms_norm_eps), self.tensors[f"{name}_fn"]
        )

    def hyper_head(self, prefix: str, streams: Tensor) -> Tensor:
        """V4 reads the last streams by weights of their own."""
        mixes = self.stream_mixes(f"{prefix}hc_head", streams)
        scale, base = (self.tensors[f"{prefix}hc_head_{name}"] for name in ("scale", "base"))
        return collapse(streams, sigmoid_mix(mixes, scale, base) + self.config.hc_eps)

    # Attention

    def queries(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, T, D] → queries before RoPE [B, T, H, K], and the latent rows [B, T, q_lora_rank]
        that the indexer reads, too. V4 scales every head to unit size."""
        cfg = self.config
        latent = self.norm(f"{name}.q_norm", self.linear(f"{name}.wq_a", x))
        q = self.linear(f"{name}.wq_b", latent).unflatten(-1, (cfg.num_heads, cfg.head_dim))
        return (unit_rms(q, cfg.rms_norm_eps) if cfg.generation == "v4" else q), latent

    def window_rows(self, name: str, x: Tensor) -> Tensor:
        """Rows before RoPE, [B, T, K]."""
        return self.norm(f"{name}.kv_norm", self.linear(f"{name}.wkv", x))

    def window_visible(self, x: Tensor) -> Tensor:
        """[B, T, T] bool: a token sees itself and the window - 1 tokens before."""
        positions = torch.arange(x.shape[-2], device=x.device)
        age = positions[:, None] - positions
        return ((age >= 0) & (age < self.config.window)).expand(x.shape[0], -1, -1)

    def attend(
        self,
        name: str,
        q: Tensor,
        positions: Tensor,
        rows: Tensor,
        visible: Tensor,
        compressed: bool,
    ) -> Tensor:
        """Rotated queries [B, T, H, K] at positions [T] to rows [B, R, K] → [B, T, D]."""
        out = attend(q, rows, visible, self.tensors[f"{name}.attn_sink"])
        out = self.rope(out, -positions, compressed)
        groups = self.config.o_groups
        out = out.reshape(*q.shape[:2], groups, -1)  # whole heads, group by group
        wo_a = self.tensors[f"{name}.wo_a.weight"].unflatten(0, (groups, -1))
        out = torch.einsum("btgi,gri->btgr", out, wo_a).flatten(-2)
        return self.linear(f"{name}.wo_b", out)

    def rope(self, x: Tensor, positions: Tensor, compressed: bool) -> Tensor:
        """Rotates the last rope_dim values of x, [B, n, K] or [B, n, H, K], at positions [n]."""
        frequencies = rope_frequencies(self.config, compressed).to(x.device)
        angles = positions.float()[:, None] * frequencies
        if x.dim() == 4:
            angles = angles[:, None]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        plain, pairs = x.split([x.shape[-1] - self.config.rope_dim, self.config.rope_dim], dim=-1)
        even, odd = pairs.unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
        return torch.cat([plain, turned.flatten(-2)], dim=-1)

    def select(
        self, name: str, x: Tensor, latent: Tensor, keys: Tensor, allowed: Tensor
    ) -> Selection:
        """Scores entries by a light attention of x [B, T, D] and latent [B, T, q_lora_rank] to keys
        [B, E, index_dim]; takes the best index_topk of those allowed ([T, E] or [B, T, E])."""
        cfg = self.config
        q = self.linear(f"{name}.wq_b", latent).unflatten(-1, (cfg.index_heads, cfg.index_dim))
        q = self.rope(q, torch.arange(x.shape[-2], device=x.device), compressed=True)
        weights = self.linear(f"{name}.weights_proj", x) * (cfg.index_dim * cfg.index_heads) ** -0.5
        dots = torch.einsum("bthk,bek->bteh", q, keys).relu()
        return choose(torch.einsum("bteh,bth->bte", dots, weights), allowed, cfg.index_topk)

    # Experts

    def experts(
        self, name: str, x: Tensor, count: int, ids: Tensor | None = None
    ) -> tuple[Tensor, Routing]:
        """x [B, T, D] → [B, T, D]: the weighted sum of `count` experts and the shared expert. With
        `ids` [B, T] the experts are those of a table (V4's first layers)."""
        routing = self.route(f"{name}.gate", x, count, ids)
        flat, chosen, weights = (
            x.flatten(0, 1),
            routing.experts.flatten(0, 1),
            routing.weights.flatten(0, 1),
        )
        out = self.expert(f"{name}.shared_experts", flat)
        for expert in chosen.unique().tolist():
            tokens, slots = torch.where(chosen == expert)
            part = self.expert(f"{name}.experts.{expert}", flat[tokens])
            out = out.index_add(0, tokens, part * weights[tokens, slots, None])
        return out.view_as(x), routing

    def route(self, name: str, x: Tensor, count: int, ids: Tensor | None) -> Routing:
        scores = F.softplus(self.linear(name, x)).sqrt()
        if ids is not None:
            experts = self.tensors[f"{name}.tid2eid"][ids]
            margin = torch.full_like(scores[..., 0], torch.inf)
        else:
            experts, margin = take_best(scores + self.tensors[f"{name}.bias"], count)
        experts = experts.sort(dim=-1).values
        weights = scores.gather(-1, experts)  # the bias chooses, it does not weigh
        total = weights.sum(dim=-1, keepdim=True) + ROUTE_EPS[self.config.generation]
        return Routing(experts, weights / total * self.config.routed_scaling_factor, margin)

    def expert(self, name: str, x: Tensor) -> Tensor:
        limit = self.config.swiglu_limit
        gate = self.linear(f"{name}.w1", x).clamp(max=limit)
        up = self.linear(f"{name}.w3", x).clamp(-limit, limit)
        return self.linear(f"{name}.w2", F.silu(gate) * up)
