"""The V4.1 network in the form that trains: deferred reading of the streams, entries that layers
share, candidates, n-grams. Equal to `relight/model/reference_v41.py`, which a test holds.

Symbols as in `network`. Index keys are made of the entries' latents, but pass them no gradient:
indexers learn from where attention looks, that of the layers that reuse their picks included.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.config import LayerSpec, ModelConfig
from relight.model.reference_engram import NgramHashes, gated
from training.functions import hidden_entries, rms_norm, rotate, stream_mean
from training.hints import NONE, not_known
from training.model import Parameters
from training.network import Extras, Mode, Network
from training.quant import fine_fp4_rows, fp4_rows, through


@dataclass(slots=True)
class Shared:
    """What layers have published so far in a pass: entries and index keys by their maker, scores
    and picks (0 or -inf) by their indexer, and what later indexers may pick."""

    entries: dict[int, Tensor] = field(default_factory=dict)  # [B, E, K]
    keys: dict[int, Tensor] = field(default_factory=dict)  # [B, E, index_dim]
    scores: dict[int, Tensor] = field(default_factory=dict)  # [B, T, E]
    picks: dict[int, Tensor] = field(default_factory=dict)  # [B or 1, T, E]
    own: dict[int, Tensor] = field(default_factory=dict)  # what the indexer's layer itself reads
    candidates: Tensor | None = None  # [B, T, E], 0 or -inf
    middle: Tensor | None = None  # [N, D], what the candidates' source makes its entries of


class NetworkV41(Network):
    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype = torch.float32,
        compile: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
        *,
        classes: Tensor,
    ) -> None:
        super().__init__(config, dtype, compile)
        wrap = compile or (lambda function: function)
        self.hashes = NgramHashes(config, classes)
        self._gate = wrap(remember)
        self._pool = wrap(pool_latent)

    def forward(
        self,
        weights: Parameters,
        ids: Tensor,
        mode: Mode,
        extras: Extras | None = None,
        taps: list[Tensor] | None = None,
    ) -> Tensor:
        """As V4's; `taps` are taken on entry of each tapped layer, behind its n-grams."""
        cfg, (b, t) = self.config, ids.shape
        streams = F.embedding(ids.reshape(-1), weights["embed.weight"])
        streams = streams.unsqueeze(1).expand(-1, cfg.hc_mult, -1).contiguous()
        pre = torch.zeros(streams.shape[:2], device=ids.device)
        pre[:, 0] = 1  # the first attention reads one of them
        shared = Shared()
        for layer, w in zip(cfg.layers, self._views(weights), strict=True):
            if layer.engram_rows and mode.engram:
                streams = self._recall(layer, w, streams, ids, mode)
            if taps is not None and layer.index in cfg.draft.target_layers:
                taps.append(stream_mean(streams))
            attention = partial(self._csa2, layer, w, shared, b, t, mode, extras)
            streams, pre = self._sublayer("attn", w, streams, pre, attention)
            experts = partial(self._experts, layer, w, ids=ids, mode=mode, extras=extras)
            streams, pre = self._sublayer("ffn", w, streams, pre, experts)
        if mode.hinted and extras is not None and extras.hints is not None:
            assert shared.middle is not None
            assert extras.sought is not None
            said = self.logits(weights, shared.middle).float().log_softmax(-1)
            losses = F.nll_loss(said, extras.hints, ignore_index=NONE, reduction="sum")
            named = losses / (extras.hints != NONE).sum().clamp(min=1)
            extras.told_losses += [named, not_known(said, ids, extras.sought)]
        x = (pre.unsqueeze(-1) * streams).sum(1)
        return rms_norm(x, weights["norm.weight"], cfg.rms_norm_eps).to(self.dtype)

    def _recall(
        self, layer: LayerSpec, w: Parameters, streams: Tensor, ids: Tensor, mode: Mode
    ) -> Tensor:
        """Streams with what the n-grams that end at each token remember."""
        rows = self.hashes.rows(layer, ids).flatten(0, 1)
        values = F.embedding(rows, w["engram.embed.weight"]).flatten(1)
        mapped = F.linear(self._act(values, mode.activations), w["engram.wkv.weight"])
        eps = self.config.rms_norm_eps
        return self._gate(streams, mapped, w["engram.q_weight"], w["engram.k_weight"], eps)

    def _csa2(
        self,
        layer: LayerSpec,
        w: Parameters,
        shared: Shared,
        b: int,
        t: int,
        mode: Mode,
        extras: Extras | None,
        x: Tensor,
    ) -> Tensor:
        assert self.config.candidates is not None
        source = self.config.candidates.source
        if layer.index == source:
            shared.middle = x
        cos, sin = self._table(layer, b, t, 1, x.device)
        rounded = self._act(x, mode.activations)
        q, latent = self._queries_of(w, rounded, cos, sin, mode)
        window = self._rows_of(w, rounded, cos, sin, mode)
        entries = picks = None
        learners: list[Tensor] = []
        if layer.attention == "full":
            self._make_entries(layer, w, shared, x, b, t, mode)
        if layer.index_source == layer.index:
            self._choose(layer, w, shared, x.detach(), latent.detach(), b, t, mode)
        if layer.kv_source is not None and layer.index_source is not None:
            entries = shared.entries[layer.kv_source]
            chosen = shared.own if layer.index_source == layer.index else shared.picks
            picks = chosen[layer.index_source]
            learners.append(shared.scores[layer.index_source])
            if layer.index_source > source:  # what it will look for, its candidates must hold
                learners.append(shared.scores[source])
        out = self._attend(q, window, entries, picks, w["attn.attn_sink"], b, t, learners, extras)
        return self._out(w, out, cos, sin, mode)

    def _make_entries(
        self,
        layer: LayerSpec,
        w: Parameters,
        shared: Shared,
        x: Tensor,
        b: int,
        t: int,
        mode: Mode,
    ) -> None:
        """Rows and index keys of the same latent, which is rotated for the rows alone."""
        cos, sin = self._table(layer, b, t, layer.ratio, x.device)
        eps = self.config.rms_norm_eps
        gates = None
        if layer.ratio > 1:
            gates = F.linear(x, w["attn.compressor.wgate.weight"])
        latent = self._pool(
            F.linear(x, w["attn.compressor.wkv.weight"]),
            gates,
            w["attn.compressor.norm.weight"],
            layer.ratio,
            eps,
        )
        keys = F.linear(latent.detach(), w["attn.indexer.wk.weight"])
        keys = rms_norm(keys, w["attn.indexer.k_norm.weight"], eps).to(self.dtype)
        keys, rows = rotate(keys, cos, sin), rotate(latent, cos, sin)
        if mode.activations:
            keys, rows = through(keys, fp4_rows), through(rows, fine_fp4_rows)
        shared.keys[layer.index] = keys.view(b, t // layer.ratio, -1)
        shared.entries[layer.index] = rows.view(b, t // layer.ratio, -1)

    def _choose(
        self,
        layer: LayerSpec,
        w: Parameters,
        shared: Shared,
        x: Tensor,
        latent: Tensor,
        b: int,
        t: int,
        mode: Mode,
    ) -> None:
        cfg, blocks = self.config, self.config.candidates
        assert layer.kv_source is not None
        assert blocks is not None
        keys = shared.keys[layer.kv_source]
        cos, sin = self._table(layer, b, t, 1, x.device)
        q = F.linear(latent, w["attn.indexer.wq_b.weight"]).view(-1, cfg.index_heads, cfg.index_dim)
        q = rotate(q, cos.unsqueeze(1), sin.unsqueeze(1))
        if mode.activations:
            q = through(q, fp4_rows)
        share = F.linear(x, w["attn.indexer.weights_proj.weight"]).float()
        share = share * (cfg.index_dim * cfg.index_heads) ** -0.5
        dots = torch.bmm(q.reshape(b, t * cfg.index_heads, -1), keys.transpose(1, 2)).relu()
        dots = dots.view(b, t, cfg.index_heads, -1)
        hidden = hidden_entries(t, layer.ratio, x.device)
        scores = (dots * share.view(b, t, -1, 1).to(self.dtype)).sum(2, dtype=torch.float32)
        shared.scores[layer.index] = scores = scores + hidden
        if not (mode.sparse or mode.borrowed):
            shared.picks[layer.index] = shared.own[layer.index] = hidden[None]
            return
        ranked = torch.rand_like(scores) + hidden if mode.random_picks else scores.detach()
        if mode.sparse and layer.index > blocks.source:
            assert shared.candidates is not None
            ranked = ranked + shared.candidates
        if layer.index == blocks.source:
            newest = (torch.arange(t, device=x.device) + 1) // layer.ratio - 1
            shared.candidates = best_blocks(ranked, newest, blocks.block_size, blocks.topk_blocks)
        best = ranked.topk(min(cfg.index_topk, ranked.shape[-1]), dim=-1).indices
        picked = torch.full_like(ranked, -math.inf).scatter_(-1, best, 0.0)
        # What is invisible or no candidate stays so, although it may be among so few.
        shared.picks[layer.index] = picked = picked.masked_fill(ranked.isneginf(), -math.inf)
        shared.own[layer.index] = picked if mode.sparse else hidden[None]

    @staticmethod
    def _mass(far: Tensor) -> Tensor:
        """Squares: a head that looks at a thousand entries a little is no reason to pick any."""
        return far.square().sum(2, dtype=torch.float32)


def best_blocks(scores: Tensor, newest: Tensor, size: int, count: int) -> Tensor:
    """[B, T, E], 0 in the `count` blocks that are worth most of scores [B, T, E] by their best
    entry and -inf elsewhere; the block of the `newest` [T] entry counts as best."""
    entries = scores.shape[-1]
    padded = F.pad(scores, (0, -entries % size), value=-math.inf)
    worth = padded.unflatten(-1, (-1, size)).amax(-1)
    number = torch.arange(worth.shape[-1], device=scores.device)
    worth = worth.masked_fill(number == (newest // size)[:, None], math.inf)
    best = worth.topk(min(count, worth.shape[-1]), dim=-1).indices
    taken = torch.full_like(worth, -math.inf).scatter_(-1, best, 0.0)
    return taken.unsqueeze(-1).expand(*taken.shape, size).flatten(-2)[..., :entries]


def pool_latent(
    values: Tensor, gates: Tensor | None, norm: Tensor, ratio: int, eps: float
) -> Tensor:
    """values [N, K] -> [N / ratio, K], normed; at ratio 1 without gates."""
    latent = values.float()
    if gates is not None:
        shares = gates.float().unflatten(0, (-1, ratio)).softmax(dim=1)
        latent = (shares * latent.unflatten(0, (-1, ratio))).sum(dim=1)
    return rms_norm(latent, norm, eps).to(values.dtype)


def remember(
    streams: Tensor, mapped: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float
) -> Tensor:
    """streams [N, S, D] with what mapped [N, (S + 1) D], a key for each and a value, adds."""
    hc, hidden = streams.shape[1:]
    keys, value = mapped.float().split([hc * hidden, hidden], dim=-1)
    keys = keys.unflatten(-1, (hc, hidden))
    added = gated(streams.float(), keys, value, q_weight * k_weight, eps)
    return (streams.float() + added).to(streams.dtype)
