"""The V4 network in the form that trains: batches of whole sequences, masked attention in blocks,
all experts as one product, roundings on request. Equal to `relight/model/reference.py`, which a
test holds. Knows no optimiser and no data.

Symbols: B rows of T tokens (T a multiple of 128), N = B T, D hidden, S streams, H heads, K
head_dim, E entries of a row, X experts, I their width.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.config import LayerSpec, ModelConfig
from relight.base.tensors import ENGRAM_BLOCK
from relight.model.reference_network import ROUTE_EPS
from relight.model.reference_parts import rope_frequencies
from training.functions import (
    gated,
    hidden_entries,
    hyper_read,
    hyper_write,
    index_loss,
    norm_rotate,
    pool,
    quantised_nope,
    quantised_rows,
    rms_norm,
    rotate,
    rotate_heads,
    stream_mean,
    stream_mixes,
    unit_rotate,
    window_bias,
)
from training.hints import not_looking
from training.model import STACKED, Parameters, layers_with
from training.quant import (
    bf16_grid,
    coarse,
    fp4_rows,
    fp8_rows,
    fp8_tiles,
    hadamard,
    through,
)

FP8_WEIGHTS = ("wq_a", "wq_b", "wkv", "wo_a", "wo_b", "shared_experts.w", "main_proj")
FLOAT32 = ("_base", "_scale", "attn_sink", "gate.bias", "tid2eid", "bias_vl")
"""Never rounded."""

BF16 = ("norm.weight", ".gate.weight", "q_weight", "k_weight")
"""Read as float32, stored as bf16."""

HYPER = ("_fn", "ape")
"""Read and stored as float32, on a coarse grid."""


@dataclass(frozen=True, slots=True)
class Mode:
    """What a forward pass does. `weights`, `activations`: whether they are rounded as stored and
    served. `sparse`: attention reads the picks of the indexer only, which `random_picks` replaces
    by chance; without it, all entries, but `borrowed` has the layers without an indexer of their
    own read picks all the same. `engram`: whether n-grams are looked up, where there are any.
    `hinted`: whether V4.1's layers are taught `Extras.hints` and `sought`."""

    weights: bool = False
    activations: bool = False
    sparse: bool = True
    borrowed: bool = False
    random_picks: bool = False
    engram: bool = True
    hinted: bool = False


@dataclass(slots=True)
class Extras:
    """What else a forward gives. `index_loss`: how far the indexers' scores are from where
    attention looked; `loads`: tokens an expert of each layer [X]."""

    valid: Tensor  # [N] bool: tokens that are not padding
    index_losses: list[Tensor] = field(default_factory=list)
    loads: list[Tensor] = field(default_factory=list)
    hints: Tensor | None = None  # [N]: token ids, or hints.NONE
    sought: Tensor | None = None  # [B, T, T]: what is to be looked at
    told_losses: list[Tensor] = field(default_factory=list)
    sought_losses: list[Tensor] = field(default_factory=list)


class Network:
    """`compile` wraps the functions without products, whose shapes depend on N alone."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype = torch.float32,
        compile: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None:
        self.config = config
        self.dtype = dtype
        wrap = compile or (lambda function: function)
        self._read = wrap(hyper_read)
        self._write = wrap(hyper_write)
        self._rounded = wrap(quantised_rows)
        self._queries = wrap(unit_rotate if config.generation == "v4" else rotate_heads)
        self._rows = wrap(norm_rotate)
        self._gated = wrap(gated)
        self._tables: dict[tuple[int, int, int, str], tuple[Tensor, Tensor]] = {}

    def _act(self, x: Tensor, quantised: bool) -> Tensor:
        """The input of a quantised product."""
        return self._rounded(x, self.config.fp8_block) if quantised else x

    def prepare(self, parameters: Parameters, mode: Mode) -> Parameters:
        """Parameters rounded and cast, matrices to the dtype of products; once a pass."""
        return {name: self._prepare(name, p, mode) for name, p in parameters.items()}

    def _prepare(self, name: str, p: Tensor, mode: Mode) -> Tensor:
        if name.endswith(FLOAT32):
            return p
        if mode.weights:
            p = through(p, grid_of(name, self.config.fp8_block))
        return p if name.endswith(BF16) or name.endswith(HYPER) else p.to(self.dtype)

    def forward(
        self,
        weights: Parameters,
        ids: Tensor,
        mode: Mode,
        extras: Extras | None = None,
        taps: list[Tensor] | None = None,
    ) -> Tensor:
        """Hidden rows [N, D] before the head, of ids [B, T] and prepared weights. `taps` gets
        what a draft reads: means over the streams behind each tapped layer [N, D]."""
        cfg = self.config
        flat = ids.reshape(-1)
        streams = F.embedding(flat, weights["embed.weight"])
        streams = streams.unsqueeze(1).expand(-1, cfg.hc_mult, -1).contiguous()
        views = self._views(weights)
        for layer in cfg.layers:
            streams, _ = self._block(layer, views[layer.index], streams, None, ids, mode, extras)
            if taps is not None and layer.index in cfg.draft.target_layers:
                taps.append(stream_mean(streams))
        x = self._hyper_head(weights, streams)
        return rms_norm(x, weights["norm.weight"], cfg.rms_norm_eps).to(self.dtype)

    def _hyper_head(self, weights: Parameters, streams: Tensor) -> Tensor:
        """V4 reads the last streams by weights of their own: [N, D], float32."""
        cfg = self.config
        z = stream_mixes(streams, weights["hc_head_fn"], cfg.rms_norm_eps)
        pre = torch.sigmoid(z * weights["hc_head_scale"] + weights["hc_head_base"]) + cfg.hc_eps
        return (pre.unsqueeze(-1) * streams).sum(1)

    def logits(self, weights: Parameters, hidden: Tensor) -> Tensor:
        return F.linear(hidden, weights["head.weight"])

    def _views(self, weights: Parameters) -> list[Parameters]:
        """The weights of each layer, by name without the kind."""
        views: list[Parameters] = [{} for _ in self.config.layers]
        for name, stacked in weights.items():
            if not name.startswith(STACKED):
                continue
            for layer, part in zip(layers_with(self.config, name), stacked.unbind(0), strict=True):
                views[layer.index][name.rpartition(":")[2]] = part
        return views

    def _block(
        self,
        layer: LayerSpec,
        w: Parameters,
        streams: Tensor,
        pre: Tensor | None,
        ids: Tensor,
        mode: Mode,
        extras: Extras | None,
    ) -> tuple[Tensor, Tensor]:
        """Streams [N, S, D] behind the layer, and its last `pre` [N, S]. V4.1 gives the one that
        the sublayer before made."""
        for part, run in (("attn", self._attention), ("ffn", self._experts)):
            sublayer = partial(run, layer, w, ids=ids, mode=mode, extras=extras)
            streams, own = self._sublayer(part, w, streams, pre, sublayer)
            pre = None if pre is None else own
        return streams, own

    def _sublayer(
        self,
        part: str,
        w: Parameters,
        streams: Tensor,
        pre: Tensor | None,
        run: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """`run` maps what is read [N, D] to what is written; without `pre` by the streams' own."""
        cfg = self.config
        x, post, comb, own = self._read(
            streams,
            pre,
            w[f"hc_{part}_fn"],
            w[f"hc_{part}_base"],
            w[f"hc_{part}_scale"],
            w[f"{part}_norm.weight"],
            cfg.hc_iters,
            cfg.hc_eps,
            cfg.rms_norm_eps,
        )
        return self._write(run(x), streams, post, comb), own

    # Attention

    def _attention(
        self,
        layer: LayerSpec,
        w: Parameters,
        x: Tensor,
        ids: Tensor,
        mode: Mode,
        extras: Extras | None,
    ) -> Tensor:
        b, t = ids.shape
        cos, sin = self._table(layer, b, t, 1, x.device)
        rounded = self._act(x, mode.activations)
        q, latent = self._queries_of(w, rounded, cos, sin, mode)
        window = self._rows_of(w, rounded, cos, sin, mode)
        entries = bias = None
        scores: tuple[Tensor, ...] = ()
        if layer.ratio:
            entries = self._entries(layer, w, "attn.compressor", x, b, t, mode.activations)
            if layer.attention == "csa":
                found, bias = self._select(layer, w, x, latent, b, t, mode)
                scores = (found,)
            else:
                bias = hidden_entries(t, layer.ratio, x.device)[None]
        out = self._attend(q, window, entries, bias, w["attn.attn_sink"], b, t, scores, extras)
        return self._out(w, out, cos, sin, mode)

    def _queries_of(
        self, w: Parameters, rounded: Tensor, cos: Tensor, sin: Tensor, mode: Mode
    ) -> tuple[Tensor, Tensor]:
        """Rotated queries [N, H, K], and the rounded latent rows that the indexer reads, too."""
        cfg, eps = self.config, self.config.rms_norm_eps
        latent = rms_norm(F.linear(rounded, w["attn.wq_a.weight"]), w["attn.q_norm.weight"], eps)
        latent = self._act(latent.to(self.dtype), mode.activations)
        q = F.linear(latent, w["attn.wq_b.weight"]).view(-1, cfg.num_heads, cfg.head_dim)
        return self._queries(q, cos, sin, eps), latent

    def _rows_of(
        self, w: Parameters, rounded: Tensor, cos: Tensor, sin: Tensor, mode: Mode
    ) -> Tensor:
        """Window rows [N, K], rounded as they are stored."""
        row = F.linear(rounded, w["attn.wkv.weight"])
        grid = self.config.generation if mode.activations else ""
        return self._rows(row, w["attn.kv_norm.weight"], cos, sin, self.config.rms_norm_eps, grid)

    def _out(self, w: Parameters, out: Tensor, cos: Tensor, sin: Tensor, mode: Mode) -> Tensor:
        """What heads [N, H, K] found -> [N, D]."""
        cfg = self.config
        out = rotate(out, cos.unsqueeze(1), -sin.unsqueeze(1))
        groups = out.reshape(-1, cfg.o_groups, cfg.num_heads * cfg.head_dim // cfg.o_groups)
        wo_a = w["attn.wo_a.weight"].unflatten(0, (cfg.o_groups, -1))
        low = torch.einsum("ngi,gri->ngr", groups, wo_a).flatten(1)
        return F.linear(self._act(low, mode.activations), w["attn.wo_b.weight"])

    def _entries(
        self, layer: LayerSpec, w: Parameters, name: str, x: Tensor, b: int, t: int, quantised: bool
    ) -> Tensor:
        """Compressed rows [B, E, d] of the layer, or of its index, rounded as they are stored."""
        index = "indexer" in name
        cos, sin = self._table(layer, b, t, layer.ratio, x.device)
        entries = pool(
            F.linear(x, w[f"{name}.wkv.weight"]),
            F.linear(x, w[f"{name}.wgate.weight"]),
            w[f"{name}.ape"],
            w[f"{name}.norm.weight"],
            cos,
            sin,
            t,
            self.config.rms_norm_eps,
        )
        if quantised and index:
            entries = through(hadamard(entries), fp4_rows)
        elif quantised:
            entries = quantised_nope(entries, self.config.rope_dim)
        return entries.view(b, t // layer.ratio, -1).to(self.dtype)

    def _select(
        self,
        layer: LayerSpec,
        w: Parameters,
        x: Tensor,
        rounded_latent: Tensor,
        b: int,
        t: int,
        mode: Mode,
    ) -> tuple[Tensor, Tensor]:
        """Scores [B, T, E] (-inf where invisible), which learn from where attention looks and
        pass nothing back to the network; and what of it attention may read, as 0 or -inf."""
        cfg = self.config
        x, latent = x.detach(), rounded_latent.detach()
        keys = self._entries(layer, w, "attn.indexer.compressor", x, b, t, mode.activations)
        cos, sin = self._table(layer, b, t, 1, x.device)
        q = F.linear(latent, w["attn.indexer.wq_b.weight"]).view(-1, cfg.index_heads, cfg.index_dim)
        q = rotate(q, cos.unsqueeze(1), sin.unsqueeze(1))
        if mode.activations:
            q = through(hadamard(q), fp4_rows)
        share = F.linear(x, w["attn.indexer.weights_proj.weight"]).float()
        share = share * (cfg.index_dim * cfg.index_heads) ** -0.5
        dots = torch.bmm(q.reshape(b, t * cfg.index_heads, -1), keys.transpose(1, 2)).relu()
        dots = dots.view(b, t, cfg.index_heads, -1)
        scores = (dots * share.view(b, t, -1, 1).to(self.dtype)).sum(2, dtype=torch.float32)
        hidden = hidden_entries(t, layer.ratio, x.device)
        scores = scores + hidden
        if not mode.sparse:
            return scores, hidden[None]
        ranked = torch.rand_like(scores) + hidden if mode.random_picks else scores.detach()
        count = min(cfg.index_topk, ranked.shape[-1])
        best = ranked.topk(count, dim=-1).indices
        bias = torch.full_like(ranked, -math.inf).scatter_(-1, best, 0.0) + hidden
        return scores, bias

    def _attend(
        self,
        q: Tensor,
        window: Tensor,
        entries: Tensor | None,
        bias: Tensor | None,
        sink: Tensor,
        b: int,
        t: int,
        learners: Sequence[Tensor],
        extras: Extras | None,
    ) -> Tensor:
        """q [N, H, K] -> [N, H, K]. Each block of 128 queries reads two blocks of rows, and all
        entries of its row under `bias`; one softmax over both and the sink. `learners`: scores
        [B, T, E] of the indexers that learn from where it looked."""
        size, heads, dim = self.config.window, self.config.num_heads, self.config.head_dim
        blocks = t // size
        rows = window.reshape(b, blocks, size, dim)
        earlier = F.pad(rows, (0, 0, 0, 0, 1, 0))[:, :-1]
        rows = torch.cat([earlier, rows], dim=2).flatten(0, 1)  # [B blocks, 256, K]
        q = q * dim**-0.5
        by_block = q.reshape(b * blocks, size * heads, dim)
        near = torch.bmm(by_block, rows.transpose(1, 2)).view(b, blocks, size, heads, 2 * size)
        near.add_(window_bias(blocks, size, q.device).to(near.dtype))
        parts = [near.view(b, t, heads, 2 * size)]
        count = 0
        if entries is not None:
            assert bias is not None
            spare = -entries.shape[1] % 8  # rows of products stay 16-byte aligned
            entries = F.pad(entries, (0, 0, 0, spare))
            count = entries.shape[1]
            far = torch.bmm(q.reshape(b, t * heads, dim), entries.transpose(1, 2))
            bias = F.pad(bias, (0, spare), value=-math.inf).unsqueeze(2)
            parts.append(far.view(b, t, heads, count).add_(bias.to(far.dtype)))
        sinks = F.pad(sink.to(q.dtype)[:, None], (0, 7), value=-math.inf)
        parts.append(sinks.expand(b, t, heads, 8))
        shares = torch.cat(parts, dim=-1).softmax(dim=-1)
        near, far, _ = shares.split([2 * size, count, 8], dim=-1)
        out = torch.bmm(near.reshape(b * blocks, size * heads, 2 * size), rows)
        out = out.view(b, t * heads, dim)
        if entries is not None:
            out = out + torch.bmm(far.reshape(b, t * heads, count), entries)
        if extras is not None and extras.sought is not None and learners and count >= t:
            first = far.view(b, t, heads, count)[:, :, 0]
            extras.sought_losses.append(not_looking(first, extras.sought))
        if learners and extras is not None:
            mass = self._mass(far.detach())[..., : learners[0].shape[-1]]
            extras.index_losses += [index_loss(x, mass, bias, extras.valid) for x in learners]
        return out.view(-1, heads, dim)

    @staticmethod
    def _mass(far: Tensor) -> Tensor:
        """What the indexer learns of shares [B, T, H, E] of attention: [B, T, E]."""
        return far.sum(2, dtype=torch.float32)

    def _table(
        self, layer: LayerSpec, b: int, t: int, step: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """cos and sin [B T / step, pairs] of every step-th position of each row."""
        place = (b, t, step, f"{device} {layer.ratio > 0}")
        if place not in self._tables:
            positions = torch.arange(0, t, step, dtype=torch.float32)
            angles = positions[:, None] * rope_frequencies(self.config, compressed=layer.ratio > 0)
            angles = angles.repeat(b, 1).to(device)
            self._tables[place] = (angles.cos(), angles.sin())
        return self._tables[place]

    # Experts

    def _experts(
        self,
        layer: LayerSpec,
        w: Parameters,
        x: Tensor,
        ids: Tensor,
        mode: Mode,
        extras: Extras | None,
    ) -> Tensor:
        """All experts for all tokens, those not chosen with weight 0: at this size one large
        product is faster than sorting."""
        cfg = self.config
        share = self._route(layer, w, x, ids)
        if extras is not None:
            extras.loads.append(((share.detach() > 0) & extras.valid[:, None]).sum(0))
        x = self._act(x, mode.activations)
        parts = []
        for name, weight in (("experts", share), ("shared_experts", None)):
            w1, w3 = (w[f"ffn.{name}.{m}.weight"].flatten(0, -2) for m in ("w1", "w3"))
            hidden = self._gated(
                F.linear(x, w1),
                F.linear(x, w3),
                weight,
                cfg.swiglu_limit,
                cfg.fp8_block if mode.activations else 0,
            )
            w2 = w[f"ffn.{name}.w2.weight"]
            if name == "experts":
                w2 = w2.permute(1, 0, 2).flatten(1)  # [X, D, I] -> [D, X I]
            parts.append(F.linear(hidden, w2))
        return parts[0] + parts[1]

    def _route(self, layer: LayerSpec, w: Parameters, x: Tensor, ids: Tensor) -> Tensor:
        """The weight of every expert [N, X], 0 where it was not chosen."""
        cfg = self.config
        scores = F.softplus(F.linear(x.float(), w["ffn.gate.weight"])).sqrt()
        if layer.routing == "hash":
            chosen = w["ffn.gate.tid2eid"][ids.reshape(-1)]
        else:
            ranked = scores.detach() + w["ffn.gate.bias"]
            chosen = ranked.topk(cfg.experts_per_token, dim=-1).indices
        share = scores * torch.zeros_like(scores).scatter(1, chosen, 1.0)
        total = share.sum(-1, keepdim=True) + ROUTE_EPS[cfg.generation]
        return share / total * cfg.routed_scaling_factor


def grid_of(name: str, block: int) -> Callable[[Tensor], Tensor]:
    """The rounding of a stacked parameter when it is stored; `block` of FP8 matrices."""
    if name.endswith("engram.embed.weight"):
        return partial(fp8_rows, block=ENGRAM_BLOCK)
    if ".experts." in name:
        return fp4_rows
    if name.endswith(BF16):
        return bf16_grid
    quantised = any(part in name for part in FP8_WEIGHTS) and "compressor" not in name
    return partial(fp8_tiles, block=block) if quantised else coarse
