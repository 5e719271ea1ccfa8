"""The DSpark draft in the form that trains: many blocks of a batch at once, behind given positions.
Equal to `relight/model/reference_draft.py`, which a test holds. Knows no loss.

Symbols beside those of `network`: k the block size, P = T / 128 pieces of a row, A anchors a piece,
M = B P A blocks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.config import DraftSpec, ModelConfig
from relight.base.schedule import schedule
from relight.base.tensors import draft_tensors, markov_names
from relight.model.reference_parts import rope_frequencies
from training.functions import rms_norm
from training.model import Parameters, initial
from training.network import Extras, Mode, Network

STAGES = 3
BLOCK = 5
MARKOV_RANK = 32
NOISE_TOKEN = 10
"""A marker that no text has (a hole to fill in)."""

LIVE_EXPERTS = 8
"""Experts of a stage that are trained and chosen. A stage of V4 has as many as a layer; the others
stay zero, which costs no bytes in a package."""

CLOSED = -100.0
"""The bias of experts that are never chosen."""


def with_draft(config: ModelConfig) -> ModelConfig:
    """The same backbone with a draft on its last three layers."""
    layers = config.num_layers
    taps = tuple(range(layers - STAGES, layers))
    draft = DraftSpec("dspark", STAGES, BLOCK, NOISE_TOKEN, taps, MARKOV_RANK)
    if config.generation == "v4.1":
        draft = replace(draft, num_experts=LIVE_EXPERTS, experts_per_token=2)
    return replace(config, draft=draft)


def live_experts(config: ModelConfig) -> int:
    return min(LIVE_EXPERTS, config.draft_experts)


def initial_draft(config: ModelConfig, seed: int, device: torch.device) -> Parameters:
    made = initial(config, seed, device, draft_tensors(config))
    live = live_experts(config)
    with torch.no_grad():
        made["ffn.gate.bias"][:, live:] = CLOSED
        for name in ("w1", "w2", "w3"):
            made[f"ffn.experts.{name}.weight"][:, live:] = 0
    return made


@dataclass(frozen=True, slots=True)
class Blocks:
    """What follows from the anchors: for place i of a block the row that proposes."""

    hidden: Tensor  # [M k, D], as confidence reads it
    logits: Tensor  # [M k, V], before the Markov head


class DraftNetwork(Network):
    """`config` is the model's; a stage is a sliding layer of sizes of its own."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype = torch.float32,
        compile: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None:
        self.draft = config.draft
        stages = replace(
            config,
            layers=schedule((0,) * config.draft.num_stages, 0),
            num_experts=config.draft_experts,
            experts_per_token=config.draft_experts_per_token,
        )
        super().__init__(stages, dtype, compile)
        self._markov = [f"markov_head.{name}.weight" for name in markov_names(config)]
        self._frequencies: dict[torch.device, Tensor] = {}

    def blocks(
        self,
        weights: Parameters,
        backbone: Parameters,
        ids: Tensor,
        taps: Tensor,
        anchors: Tensor,
        mode: Mode,
        extras: Extras | None = None,
    ) -> Blocks:
        """Of ids [B, T + 1], taps [N, taps D] and anchors [B, P, A]: positions, each of its own
        piece, whose next token begins a block. `backbone` gives embedding and head."""
        cfg, size = self.config, self.draft.block_size
        b, pieces, _ = anchors.shape
        main = rms_norm(
            F.linear(self._act(taps, mode.activations), weights["main_proj.weight"]),
            weights["main_norm.weight"],
            cfg.rms_norm_eps,
        ).to(self.dtype)
        main = self._act(main, mode.activations)
        tokens = ids.new_full((anchors.numel(), size), self.draft.noise_token_id)
        tokens[:, 0] = ids.gather(1, anchors.flatten(1) + 1).flatten()
        streams = F.embedding(tokens.flatten(), backbone["embed.weight"])
        streams = streams.unsqueeze(1).expand(-1, cfg.hc_mult, -1).contiguous()
        pre = None
        if cfg.generation == "v4.1":  # each block starts afresh
            pre = torch.zeros(streams.shape[:2], device=ids.device)
            pre[:, 0] = 1
        places = torch.arange(size, device=ids.device) + 1
        table = self._table_at((anchors.unsqueeze(-1) + places).flatten())
        seen = _seen(anchors, cfg.window)
        length = pieces * cfg.window
        for layer, w in zip(cfg.layers, self._views(weights), strict=True):
            kept = self._rows_of(w, main, *self._table(layer, b, length, 1, ids.device), mode)
            attention = partial(self._block_attention, w, kept, seen, table, b, pieces, mode)
            streams, own = self._sublayer("attn", w, streams, pre, attention)
            pre = None if pre is None else own
            experts = partial(self._experts, layer, w, ids=tokens, mode=mode, extras=extras)
            streams, own = self._sublayer("ffn", w, streams, pre, experts)
            pre = None if pre is None else own
        if pre is None:
            hidden = self._hyper_head(weights, streams)
        else:
            hidden = (pre.unsqueeze(-1) * streams).sum(1)
        normed = rms_norm(hidden, weights["norm.weight"], cfg.rms_norm_eps).to(self.dtype)
        return Blocks(hidden.to(self.dtype), F.linear(normed, backbone["head.weight"]))

    def follow(
        self, weights: Parameters, hidden: Tensor, logits: Tensor, before: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits [n, V] with the bias of the token `before` [n], and the confidence [n] as a logit,
        which passes no gradient to the rest."""
        embed, head = (weights[name] for name in self._markov)
        rows = F.embedding(before, embed)
        hint = torch.cat([hidden, rows], dim=-1).detach()
        confidence = F.linear(hint, weights["confidence_head.proj.weight"]).float().squeeze(-1)
        return logits.float() + F.linear(rows, head).float(), confidence

    def _block_attention(
        self,
        w: Parameters,
        kept: Tensor,
        seen: Tensor,
        table: tuple[Tensor, Tensor],
        b: int,
        pieces: int,
        mode: Mode,
        x: Tensor,
    ) -> Tensor:
        """x [M k, D] to kept rows [N, K] of the window that ends at the anchor, and to all rows of
        the own block."""
        size, window, heads, dim = (
            self.draft.block_size,
            self.config.window,
            self.config.num_heads,
            self.config.head_dim,
        )
        cos, sin = table
        rounded = self._act(x, mode.activations)
        q, _ = self._queries_of(w, rounded, cos, sin, mode)
        own = self._rows_of(w, rounded, cos, sin, mode).view(-1, size, dim)
        own = F.pad(own, (0, 0, 0, -size % 8))  # rows of products stay 16-byte aligned
        q = q * dim**-0.5
        rows = kept.view(b, pieces, window, dim)
        earlier = F.pad(rows, (0, 0, 0, 0, 1, 0))[:, :-1]
        rows = torch.cat([earlier, rows], dim=2).flatten(0, 1)  # [B P, 256, K]
        far = torch.bmm(q.reshape(b * pieces, -1, dim), rows.transpose(1, 2))
        far = far.view(len(own), size * heads, 2 * window) + seen.to(q.dtype)
        near = torch.bmm(q.reshape(len(own), size * heads, dim), own.transpose(1, 2))
        spare = torch.arange(own.shape[1], device=x.device) >= size
        near = near.masked_fill(spare, -math.inf)
        sinks = F.pad(w["attn.attn_sink"].to(q.dtype)[:, None], (0, 7), value=-math.inf)
        sinks = sinks.repeat(size, 1).expand(len(own), -1, 8)
        shares = torch.cat([far, near, sinks], dim=-1).softmax(dim=-1)
        far, near, _ = shares.split([2 * window, own.shape[1], 8], dim=-1)
        out = torch.bmm(far.reshape(b * pieces, -1, 2 * window), rows).view(len(own), -1, dim)
        out = (out + torch.bmm(near, own)).view(-1, heads, dim)
        return self._out(w, out, cos, sin, mode)

    def _table_at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        device = positions.device
        if device not in self._frequencies:
            self._frequencies[device] = rope_frequencies(self.config, compressed=False).to(device)
        angles = positions.float().unsqueeze(1) * self._frequencies[device]
        return angles.cos(), angles.sin()


def _seen(anchors: Tensor, window: int) -> Tensor:
    """[M, 1, 256]: 0 for the rows of the piece before and of the own one that a block reads."""
    pieces = torch.arange(anchors.shape[1], device=anchors.device)
    rows = torch.arange(-window, window, device=anchors.device)
    position = pieces[:, None, None] * window + rows
    age = anchors.unsqueeze(-1) - position
    seen = (age >= 0) & (age < window) & (position >= 0)
    return torch.where(seen, 0.0, -math.inf).flatten(0, 2).unsqueeze(1)
