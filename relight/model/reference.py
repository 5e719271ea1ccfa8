"""Computes DeepSeek-V4 in plain float32 torch, whole sequences at once: the oracle of the engine's
model, and what training differentiates. Knows no cache, kernel, quantised number or checkpoint.

Symbols in shapes as in `reference_parts`. Positions are 0 … T-1.
"""

import math

import torch
from torch import Tensor

from relight.base.specs import LayerSpec
from relight.model.reference_network import Network
from relight.model.reference_parts import LayerTrace as LayerTrace
from relight.model.reference_parts import Memory, overlap
from relight.model.reference_parts import Selection as Selection
from relight.model.reference_parts import Trace as Trace


class ReferenceModel(Network):
    """The V4 network as a function of its tensors."""

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

    def block(self, layer: LayerSpec, streams: Tensor, ids: Tensor) -> LayerTrace:
        """One block on the streams [B, T, S, D] before it."""
        name = f"layers.{layer.index}"
        attn = self.enter(name, "attn", streams)
        out, memory, selection = self._attention(layer, attn.x)
        ffn = self.enter(name, "ffn", attn.leave(out))
        table_ids = ids if layer.routing == "hash" else None
        out, routing = self.experts(
            f"{name}.ffn", ffn.x, self.config.experts_per_token, ids=table_ids
        )
        return LayerTrace(ffn.leave(out), memory, selection, routing, entered=streams)

    def head(self, streams: Tensor) -> Tensor:
        """Logits [B, T, vocab] of the last block's streams [B, T, S, D]."""
        return self.linear("head", self.norm("norm", self.hyper_head("", streams)))

    def _attention(self, layer: LayerSpec, x: Tensor) -> tuple[Tensor, Memory, Selection | None]:
        """x [B, T, D] → [B, T, D]. Keys are the values: one row of K per window token and entry."""
        name, compressing = f"layers.{layer.index}.attn", layer.ratio > 0
        positions = torch.arange(x.shape[-2], device=x.device)
        q, latent = self.queries(name, x)
        q = self.rope(q, positions, compressing)
        window = self.rope(self.window_rows(name, x), positions, compressing)
        rows, visible = window, self.window_visible(x)
        compressed = index_keys = selection = None
        if compressing:
            compressed = self._compress(layer, f"{name}.compressor", x)
            entries = torch.arange(compressed.shape[-2], device=x.device)
            complete = entries < ((positions + 1) // layer.ratio)[:, None]  # [T, E]
            chosen = complete.expand(x.shape[0], -1, -1)
            if layer.attention == "csa":
                index_keys = self._compress(layer, f"{name}.indexer.compressor", x)
                selection = self.select(f"{name}.indexer", x, latent, index_keys, complete)
                chosen = selection.mask
            rows = torch.cat([rows, compressed], dim=-2)
            visible = torch.cat([visible, chosen], dim=-1)
        out = self.attend(name, q, positions, rows, visible, compressing)
        return out, Memory(window, compressed, index_keys), selection

    def _compress(self, layer: LayerSpec, name: str, x: Tensor) -> Tensor:
        """x [B, T, D] → entries [B, T // ratio, dim]: gated means of whole windows, per channel.

        With ratio 4 (CSA) each projection has two halves: the first joins the *next* window, so an
        entry pools 8 slots, the last 4 tokens' first halves and its own 4 tokens' second halves.
        """
        num, ratio = x.shape[-2] // layer.ratio, layer.ratio
        x = x[:, : num * ratio]
        # Values and gates are [B, E, ratio, dim or 2 dim].
        values = self.linear(f"{name}.wkv", x).unflatten(-2, (num, ratio))
        gates = self.linear(f"{name}.wgate", x).unflatten(-2, (num, ratio))
        gates = gates + self.tensors[f"{name}.ape"]
        if layer.attention == "csa":
            values, gates = overlap(values, 0.0), overlap(gates, -math.inf)
        entries = (gates.softmax(dim=-2) * values).sum(dim=-2)
        first = torch.arange(num, device=x.device) * ratio
        return self.rope(self.norm(f"{name}.norm", entries), first, compressed=True)
