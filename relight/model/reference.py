"""Computes DeepSeek-V4 in plain float32 torch, whole sequences at once: the oracle of the engine's
model, and what training differentiates. Knows no cache, kernel, quantised number or checkpoint.

Symbols in shapes: B sequences of equal length, T tokens, D hidden size, S = hc_mult residual
streams, H heads, K head_dim, E compressed entries. Positions are 0 … T-1. Selections (router,
indexer) pass no gradient; their ties go to the lowest index.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.config import LayerSpec, ModelConfig


@dataclass(frozen=True, slots=True)
class Selection:
    """What an indexer chose. `margin` is the last score taken minus the first one left, inf where
    nothing visible was left."""

    scores: Tensor  # [B, T, E], -inf where invisible
    mask: Tensor  # [B, T, E] bool
    entries: Tensor  # [B, T, min(index_topk, E)] int64, ascending, then -1
    margin: Tensor  # [B, T]


@dataclass(frozen=True, slots=True)
class Routing:
    """The experts of each token, ascending. `margin` is the last biased score taken minus the first
    one left, inf where a table or the number of experts left no choice."""

    experts: Tensor  # [B, T, k] int64
    weights: Tensor  # [B, T, k]
    margin: Tensor  # [B, T]


@dataclass(frozen=True, slots=True)
class Memory:
    """The rows of one layer that later tokens can read, after norm and RoPE; index keys without the
    Hadamard rotation, which cancels in the scores."""

    window: Tensor  # [B, T, K], all positions, not only the last ones
    compressed: Tensor | None  # [B, E, K]
    index_keys: Tensor | None  # [B, E, index_dim]


@dataclass(frozen=True, slots=True)
class LayerTrace:
    """What one block did. `streams` are the residual streams after it."""

    streams: Tensor  # [B, T, S, D]
    memory: Memory
    selection: Selection | None
    routing: Routing


@dataclass(slots=True)
class Trace:
    """Filled by `ReferenceModel.forward`, one entry a layer. Tensors stay in the autograd graph."""

    layers: list[LayerTrace] = field(default_factory=list)


class ReferenceModel:
    """The V4 network as a function of its tensors.

    `tensors` maps official names (`layers.0.attn.wq_a.weight`) to dequantised tensors, `tid2eid` to
    int64. It is read at every call, so that a trainer may hold and replace the parameters.
    """

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
        self.config = config
        self.tensors = tensors

    def forward(self, ids: Tensor, trace: Trace | None = None) -> Tensor:
        """Logits [B, T, vocab] of ids [B, T]; ids [T] give [T, vocab] and a trace with B = 1."""
        if ids.dim() == 1:
            return self.forward(ids[None], trace)[0]
        streams = self.embed(ids)
        for layer in self.config.layers:
            done = self.block(layer, streams, ids)
            streams = done.streams
            if trace is not None:
                trace.layers.append(done)
        return self.head(streams)

    def embed(self, ids: Tensor) -> Tensor:
        """The first streams [B, T, S, D]: the embedding, S times."""
        rows = F.embedding(ids, self.tensors["embed.weight"])
        return rows.unsqueeze(-2).expand(*ids.shape, self.config.hc_mult, -1)

    def block(self, layer: LayerSpec, streams: Tensor, ids: Tensor) -> LayerTrace:
        """One block on the streams [B, T, S, D] before it."""
        name = f"layers.{layer.index}"
        pre, post, mix = self._hyper(f"{name}.hc_attn", streams)
        x = self._norm(f"{name}.attn_norm", collapse(streams, pre))
        out, memory, selection = self._attention(layer, x)
        streams = expand(out, streams, post, mix)

        pre, post, mix = self._hyper(f"{name}.hc_ffn", streams)
        x = self._norm(f"{name}.ffn_norm", collapse(streams, pre))
        out, routing = self._experts(layer, x, ids)
        return LayerTrace(expand(out, streams, post, mix), memory, selection, routing)

    def head(self, streams: Tensor) -> Tensor:
        """Logits [B, T, vocab] of the last block's streams [B, T, S, D]."""
        mixes = self._stream_mixes("hc_head", streams)
        pre = sigmoid_mix(mixes, self.tensors["hc_head_scale"], self.tensors["hc_head_base"])
        x = collapse(streams, pre + self.config.hc_eps)
        return self._linear("head", self._norm("norm", x))

    # Hyper-connections

    def _stream_mixes(self, name: str, streams: Tensor) -> Tensor:
        return F.linear(
            unit_rms(streams.flatten(-2), self.config.rms_norm_eps), self.tensors[f"{name}_fn"]
        )

    def _hyper(self, name: str, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How a sublayer reads the streams (pre [B, T, S]), writes to them (post [B, T, S]) and
        mixes them (mix [B, T, from, to], doubly stochastic up to eps)."""
        n, eps = self.config.hc_mult, self.config.hc_eps
        parts = self._stream_mixes(name, streams).split([n, n, n * n], dim=-1)
        bases = self.tensors[f"{name}_base"].split([n, n, n * n])
        scales = self.tensors[f"{name}_scale"]
        pre = sigmoid_mix(parts[0], scales[0], bases[0]) + eps
        post = 2 * sigmoid_mix(parts[1], scales[1], bases[1])
        mix = (parts[2] * scales[2] + bases[2]).unflatten(-1, (n, n))
        return pre, post, sinkhorn(mix, self.config.hc_iters, eps)

    # Attention

    def _attention(self, layer: LayerSpec, x: Tensor) -> tuple[Tensor, Memory, Selection | None]:
        """x [B, T, D] → [B, T, D]. Keys are the values: one row of K per window token and entry."""
        cfg, name = self.config, f"layers.{layer.index}.attn"
        length = x.shape[-2]
        positions = torch.arange(length, device=x.device)
        latent = self._norm(f"{name}.q_norm", self._linear(f"{name}.wq_a", x))
        q = self._linear(f"{name}.wq_b", latent).unflatten(-1, (cfg.num_heads, cfg.head_dim))
        q = self._rope(layer, unit_rms(q, cfg.rms_norm_eps), positions)
        window = self._rope(
            layer, self._norm(f"{name}.kv_norm", self._linear(f"{name}.wkv", x)), positions
        )

        age = positions[:, None] - positions
        rows, visible = window, ((age >= 0) & (age < cfg.window)).expand(x.shape[0], -1, -1)
        compressed = index_keys = selection = None
        if layer.ratio:
            compressed = self._compress(layer, f"{name}.compressor", x)
            entries = torch.arange(compressed.shape[-2], device=x.device)
            complete = entries < ((positions + 1) // layer.ratio)[:, None]  # [T, E]
            chosen = complete.expand(x.shape[0], -1, -1)
            if layer.attention == "csa":
                index_keys = self._compress(layer, f"{name}.indexer.compressor", x)
                selection = self._select(layer, x, latent, index_keys, complete)
                chosen = selection.mask
            rows = torch.cat([rows, compressed], dim=-2)
            visible = torch.cat([visible, chosen], dim=-1)

        out = attend(q, rows, visible, self.tensors[f"{name}.attn_sink"])
        out = self._rope(layer, out, -positions)
        out = out.reshape(*x.shape[:-1], cfg.o_groups, -1)  # whole heads, group by group
        wo_a = self.tensors[f"{name}.wo_a.weight"].unflatten(0, (cfg.o_groups, -1))
        out = torch.einsum("btgi,gri->btgr", out, wo_a).flatten(-2)
        memory = Memory(window, compressed, index_keys)
        return self._linear(f"{name}.wo_b", out), memory, selection

    def _rope(self, layer: LayerSpec, x: Tensor, positions: Tensor) -> Tensor:
        """Rotates the last rope_dim values of x, [B, n, K] or [B, n, H, K], at positions [n]."""
        angles = positions.float()[:, None] * rope_frequencies(self.config, layer).to(x.device)
        if x.dim() == 4:
            angles = angles[:, None]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        plain, pairs = x.split([x.shape[-1] - self.config.rope_dim, self.config.rope_dim], dim=-1)
        even, odd = pairs.unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
        return torch.cat([plain, turned.flatten(-2)], dim=-1)

    def _compress(self, layer: LayerSpec, name: str, x: Tensor) -> Tensor:
        """x [B, T, D] → entries [B, T // ratio, dim]: gated means of whole windows, per channel.

        With ratio 4 (CSA) each projection has two halves: the first joins the *next* window, so an
        entry pools 8 slots, the last 4 tokens' first halves and its own 4 tokens' second halves.
        """
        num, ratio = x.shape[-2] // layer.ratio, layer.ratio
        x = x[:, : num * ratio]
        values = self._linear(f"{name}.wkv", x).unflatten(
            -2, (num, ratio)
        )  # [B, E, ratio, dim or 2 dim]
        gates = (
            self._linear(f"{name}.wgate", x).unflatten(-2, (num, ratio))
            + self.tensors[f"{name}.ape"]
        )
        if layer.attention == "csa":
            values, gates = overlap(values, 0.0), overlap(gates, -math.inf)
        entries = (gates.softmax(dim=-2) * values).sum(dim=-2)
        first = torch.arange(num, device=x.device) * ratio
        return self._rope(layer, self._norm(f"{name}.norm", entries), first)

    def _select(
        self, layer: LayerSpec, x: Tensor, latent: Tensor, keys: Tensor, complete: Tensor
    ) -> Selection:
        """Scores the complete entries (complete [T, E]) by a light attention of x [B, T, D] and
        latent [B, T, q_lora_rank] to keys [B, E, index_dim]; takes the best index_topk."""
        cfg, name = self.config, f"layers.{layer.index}.attn.indexer"
        q = self._linear(f"{name}.wq_b", latent).unflatten(-1, (cfg.index_heads, cfg.index_dim))
        q = self._rope(layer, q, torch.arange(x.shape[-2], device=x.device))
        weights = (
            self._linear(f"{name}.weights_proj", x) * (cfg.index_dim * cfg.index_heads) ** -0.5
        )
        dots = torch.einsum("bthk,bek->bteh", q, keys).relu()
        scores = torch.einsum("bteh,bth->bte", dots, weights).masked_fill(~complete, -math.inf)

        best, margin = take_best(scores, cfg.index_topk)
        mask = torch.zeros_like(complete.expand_as(scores)).scatter(-1, best, True) & complete
        num = scores.shape[-1]
        entries = torch.where(mask, torch.arange(num, device=x.device), num).sort(dim=-1).values
        entries = entries[..., : best.shape[-1]]
        return Selection(scores, mask, entries.masked_fill(entries == num, -1), margin)

    # Experts

    def _experts(self, layer: LayerSpec, x: Tensor, ids: Tensor) -> tuple[Tensor, Routing]:
        """x [B, T, D] → [B, T, D]: the routed experts' weighted sum and the shared expert."""
        name = f"layers.{layer.index}.ffn"
        routing = self._route(layer, x, ids)
        flat, chosen, weights = (
            x.flatten(0, 1),
            routing.experts.flatten(0, 1),
            routing.weights.flatten(0, 1),
        )
        out = self._expert(f"{name}.shared_experts", flat)
        for expert in chosen.unique().tolist():
            tokens, slots = torch.where(chosen == expert)
            part = self._expert(f"{name}.experts.{expert}", flat[tokens])
            out = out.index_add(0, tokens, part * weights[tokens, slots, None])
        return out.view_as(x), routing

    def _route(self, layer: LayerSpec, x: Tensor, ids: Tensor) -> Routing:
        name, count = f"layers.{layer.index}.ffn.gate", self.config.experts_per_token
        scores = F.softplus(self._linear(name, x)).sqrt()
        if layer.routing == "hash":
            experts = self.tensors[f"{name}.tid2eid"][ids]
            margin = torch.full_like(scores[..., 0], math.inf)
        else:
            experts, margin = take_best(scores + self.tensors[f"{name}.bias"], count)
        experts = experts.sort(dim=-1).values
        weights = scores.gather(-1, experts)  # the bias chooses, it does not weigh
        weights = weights / weights.sum(dim=-1, keepdim=True) * self.config.routed_scaling_factor
        return Routing(experts, weights, margin)

    def _expert(self, name: str, x: Tensor) -> Tensor:
        limit = self.config.swiglu_limit
        gate = self._linear(f"{name}.w1", x).clamp(max=limit)
        up = self._linear(f"{name}.w3", x).clamp(-limit, limit)
        return self._linear(f"{name}.w2", F.silu(gate) * up)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return unit_rms(x, self.config.rms_norm_eps) * self.tensors[f"{name}.weight"]


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """x scaled to a root mean square of 1 over its last dim."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)


def sigmoid_mix(mixes: Tensor, scale: Tensor, base: Tensor) -> Tensor:
    return torch.sigmoid(mixes * scale + base)


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Rows and columns of exp(logits) [..., S, S] normalised in turn, columns last; the first row
    normalisation is the softmax."""
    mix = logits.softmax(dim=-1) + eps
    mix = mix / (mix.sum(dim=-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        mix = mix / (mix.sum(dim=-1, keepdim=True) + eps)
        mix = mix / (mix.sum(dim=-2, keepdim=True) + eps)
    return mix


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """[B, T, S, D], [B, T, S] → [B, T, D]."""
    return (pre.unsqueeze(-1) * streams).sum(dim=-2)


def expand(out: Tensor, streams: Tensor, post: Tensor, mix: Tensor) -> Tensor:
    """The next streams: k gets post[k] of the sublayer's output and mix[j, k] of each stream j."""
    return post.unsqueeze(-1) * out.unsqueeze(-2) + mix.transpose(-1, -2) @ streams


def overlap(windows: Tensor, fill: float) -> Tensor:
    """[B, E, 4, 2 dim] → [B, E, 8, dim]: the previous window's first halves (`fill` before the
    first window), then this window's second halves."""
    earlier, own = windows.chunk(2, dim=-1)
    earlier = torch.cat([torch.full_like(earlier[:, :1], fill), earlier[:, :-1]], dim=1)
    return torch.cat([earlier, own], dim=-2)


def attend(q: Tensor, rows: Tensor, visible: Tensor, sink: Tensor) -> Tensor:
    """Softmax attention with K = V and one more, valueless, logit per head.

    q [B, T, H, K], rows [B, R, K], visible [B, T, R] bool, sink [H] (not scaled) → [B, T, H, K].
    """
    logits = torch.einsum("bthk,brk->bthr", q, rows) * q.shape[-1] ** -0.5
    logits = logits.masked_fill(~visible.unsqueeze(2), -math.inf)
    shares = torch.cat([logits, sink[:, None].expand(*q.shape[:-1], 1)], dim=-1).softmax(dim=-1)
    return torch.einsum("bthr,brk->bthk", shares[..., :-1], rows)


def take_best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Indices of the `count` highest of [..., n] (all if fewer), best first, the lowest first among
    equals; and the margin to the next one, inf where that is missing or -inf. No gradient."""
    ranked = scores.detach().sort(dim=-1, descending=True, stable=True)
    if count < scores.shape[-1]:
        left = ranked.values[..., count]
        margin = torch.where(left.isneginf(), math.inf, ranked.values[..., count - 1] - left)
    else:
        margin = torch.full(scores.shape[:-1], math.inf, dtype=scores.dtype, device=scores.device)
    return ranked.indices[..., :count], margin


def rope_frequencies(config: ModelConfig, layer: LayerSpec) -> Tensor:
    """Radians per token of each pair, float32 [rope_dim / 2]. Layers with compressed entries have
    another base, and YaRN: pairs that turn less than beta_slow times in the original context are
    slowed by `factor`, those above beta_fast are not, with a linear ramp over the pairs between."""
    dim = config.rope_dim
    theta = config.compress_rope_theta if layer.ratio else config.rope_theta
    plain = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if not layer.ratio:
        return plain
    yarn = config.rope_scaling

    def pair_turning(times: float) -> float:
        return (
            dim
            * math.log(yarn.original_max_position / (2 * math.pi * times))
            / (2 * math.log(theta))
        )

    low = max(math.floor(pair_turning(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_turning(yarn.beta_slow)), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / yarn.factor * ramp + plain * (1 - ramp)
