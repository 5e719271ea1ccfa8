"""The formulae of the plain float32 networks, and what they report. Knows no layer and no tensor's
name.

Symbols in shapes: B sequences of equal length, T tokens, D hidden size, S = hc_mult residual
streams, H heads, K head_dim, E compressed entries.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from relight.base.specs import ModelConfig


@dataclass(frozen=True, slots=True)
class Selection:
    """What an indexer chose. `margin` is the last score taken minus the first one left, inf where
    nothing that it could take was left. `candidates` are the blocks that a candidate source of V4.1
    publishes, with a margin of their own."""

    scores: Tensor  # [B, T, E], -inf where invisible or outside the candidates
    mask: Tensor  # [B, T, E] bool
    entries: Tensor  # [B, T, min(index_topk, E)] int64, ascending, then -1
    margin: Tensor  # [B, T]
    candidates: Tensor | None = None  # [B, T, blocks] bool
    candidate_margin: Tensor | None = None  # [B, T]


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
    Hadamard rotation of V4, which cancels in the scores. In V4.1 only full layers have entries."""

    window: Tensor  # [B, T, K], all positions, not only the last ones
    compressed: Tensor | None  # [B, E, K]
    index_keys: Tensor | None  # [B, E, index_dim]


@dataclass(frozen=True, slots=True)
class LayerTrace:
    """What one block did. `streams` are the residual streams after it, `entered` those before its
    attention (behind Engram), `pre` is how the next block's attention reads them (V4.1)."""

    streams: Tensor  # [B, T, S, D]
    memory: Memory
    selection: Selection | None
    routing: Routing
    entered: Tensor  # [B, T, S, D]
    pre: Tensor | None = None  # [B, T, S]


@dataclass(slots=True)
class Trace:
    """Filled by `forward`, one entry a layer. Tensors stay in the autograd graph."""

    layers: list[LayerTrace] = field(default_factory=list)


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


def choose(scores: Tensor, allowed: Tensor, count: int) -> Selection:
    """The best `count` of the allowed entries; scores [B, T, E], allowed broadcasts to it."""
    scores = scores.masked_fill(~allowed, -math.inf)
    best, margin = take_best(scores, count)
    mask = torch.zeros_like(allowed.expand_as(scores)).scatter(-1, best, True) & allowed
    num = scores.shape[-1]
    entries = torch.where(mask, torch.arange(num, device=scores.device), num).sort(dim=-1).values
    entries = entries[..., : best.shape[-1]]
    return Selection(scores, mask, entries.masked_fill(entries == num, -1), margin)


def rope_frequencies(config: ModelConfig, compressed: bool) -> Tensor:
    """Radians per token of each pair, float32 [rope_dim / 2]. Layers with compressed entries (ratio
    1, too) have another base, and YaRN: pairs that turn less than beta_slow times in the original
    context are slowed by `factor`, those above beta_fast are not, with a linear ramp between."""
    dim = config.rope_dim
    theta = config.compress_rope_theta if compressed else config.rope_theta
    plain = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if not compressed:
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
