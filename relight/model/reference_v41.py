"""Computes DeepSeek-V4.1 in plain float32 torch, whole sequences at once: the oracle of the
engine's model, and what training differentiates. Knows no cache, kernel, quantised number or image.

Symbols in shapes as in `reference_parts`. Where the published code disagrees with itself between a
prompt and single tokens, this is what it computes for a prompt.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from relight.base.specs import CandidateSpec, LayerSpec, ModelConfig
from relight.model.reference_engram import NgramHashes, gated
from relight.model.reference_network import Network
from relight.model.reference_parts import (
    LayerTrace,
    Memory,
    Selection,
    Trace,
    collapse,
    take_best,
)


class ReferenceV41(Network):
    """The V4.1 network as a function of its tensors. `token_classes` [vocab] int64 maps a token to
    the class that n-grams are made of."""

    def __init__(
        self, config: ModelConfig, tensors: Mapping[str, Tensor], token_classes: Tensor
    ) -> None:
        assert config.generation == "v4.1"
        super().__init__(config, tensors)
        self.hashes = NgramHashes(config, token_classes)

    def forward(self, ids: Tensor, trace: Trace | None = None) -> Tensor:
        """Logits [B, T, vocab] of ids [B, T]; ids [T] give [T, vocab] and a trace with B = 1."""
        if ids.dim() == 1:
            return self.forward(ids[None], trace)[0]
        done: list[LayerTrace] = []
        streams, pre = self.embed(ids), self.first_pre(ids)
        for layer in self.config.layers:
            latest = self.block(layer, streams, pre, ids, done)
            assert latest.pre is not None
            streams, pre = latest.streams, latest.pre
            done.append(latest)
        if trace is not None:
            trace.layers += done
        return self.head(streams, pre)

    def first_pre(self, ids: Tensor) -> Tensor:
        """The first attention reads the embedding: stream 0 alone, [B, T, S]."""
        pre = self.tensors["embed.weight"].new_zeros(*ids.shape, self.config.hc_mult)
        pre[..., 0] = 1
        return pre

    def block(
        self,
        layer: LayerSpec,
        streams: Tensor,
        pre: Tensor,
        ids: Tensor,
        earlier: Sequence[LayerTrace],
    ) -> LayerTrace:
        """One block on streams [B, T, S, D]; `pre` [B, T, S] is of the sublayer before. `earlier`
        are the blocks before it, whose entries and selections it may share."""
        name = f"layers.{layer.index}"
        if layer.engram_rows:
            streams = self.engram(layer, streams, ids)
        attn = self.enter(name, "attn", streams, pre)
        out, memory, selection = self._attention(layer, attn.x, earlier)
        ffn = self.enter(name, "ffn", attn.leave(out), attn.pre)
        out, routing = self.experts(f"{name}.ffn", ffn.x, self.config.experts_per_token)
        return LayerTrace(ffn.leave(out), memory, selection, routing, streams, ffn.pre)

    def head(self, streams: Tensor, pre: Tensor) -> Tensor:
        """Logits [B, T, vocab] of the last block's streams [B, T, S, D] and `pre` [B, T, S]."""
        return self.linear("head", self.norm("norm", collapse(streams, pre)))

    def engram(self, layer: LayerSpec, streams: Tensor, ids: Tensor) -> Tensor:
        """Adds what the n-grams that end at each token remember to all streams [B, T, S, D]."""
        name = f"layers.{layer.index}.engram"
        rows = self.tensors[f"{name}.embed.weight"][self.hashes.rows(layer, ids)]
        mapped = self.linear(f"{name}.wkv", rows.flatten(-2))
        hidden = self.config.hidden_size
        keys, value = mapped.split([self.config.hc_mult * hidden, hidden], dim=-1)
        gain = self.tensors[f"{name}.q_weight"] * self.tensors[f"{name}.k_weight"]
        keys = keys.unflatten(-1, (self.config.hc_mult, hidden))
        return streams + gated(streams, keys, value, gain, self.config.rms_norm_eps)

    def _attention(
        self, layer: LayerSpec, x: Tensor, earlier: Sequence[LayerTrace]
    ) -> tuple[Tensor, Memory, Selection | None]:
        """x [B, T, D] → [B, T, D]. A full layer makes entries, a reindex layer chooses anew among
        those of its source, a reuse layer reads what its sources hold and chose."""
        name, compressing = f"layers.{layer.index}.attn", layer.ratio > 0
        positions = torch.arange(x.shape[-2], device=x.device)
        q, latent = self.queries(name, x)
        q = self.rope(q, positions, compressing)
        window = self.rope(self.window_rows(name, x), positions, compressing)
        rows, visible, selection = window, self.window_visible(x), None
        memory = Memory(window, None, None)
        if layer.attention == "full":
            memory = Memory(window, *self._compress(layer, name, x))
        if layer.kv_source is not None and layer.index_source is not None:
            shared = memory if layer.attention == "full" else earlier[layer.kv_source].memory
            assert shared.compressed is not None
            if layer.attention == "reuse":
                chosen = earlier[layer.index_source].selection
            else:
                chosen = selection = self._select(layer, x, latent, shared, earlier)
            assert chosen is not None
            rows = torch.cat([rows, shared.compressed], dim=-2)
            visible = torch.cat([visible, chosen.mask], dim=-1)
        out = self.attend(name, q, positions, rows, visible, compressing)
        return out, memory, selection

    def _compress(self, layer: LayerSpec, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, T, D] → rows [B, T // ratio, K] and index keys [B, T // ratio, index_dim]. Both are
        made of the same latent, before it is rotated; an entry of one token has no gate."""
        num, ratio = x.shape[-2] // layer.ratio, layer.ratio
        x = x[:, : num * ratio]
        latent = self.linear(f"{name}.compressor.wkv", x)
        if ratio > 1:
            gates = self.linear(f"{name}.compressor.wgate", x).unflatten(-2, (num, ratio))
            latent = (gates.softmax(dim=-2) * latent.unflatten(-2, (num, ratio))).sum(dim=-2)
        latent = self.norm(f"{name}.compressor.norm", latent)
        first = torch.arange(num, device=x.device) * ratio
        keys = self.norm(f"{name}.indexer.k_norm", self.linear(f"{name}.indexer.wk", latent))
        return self.rope(latent, first, compressed=True), self.rope(keys, first, compressed=True)

    def _select(
        self,
        layer: LayerSpec,
        x: Tensor,
        latent: Tensor,
        shared: Memory,
        earlier: Sequence[LayerTrace],
    ) -> Selection:
        keys, candidates = shared.index_keys, self.config.candidates
        assert keys is not None
        assert candidates is not None
        entries = torch.arange(keys.shape[-2], device=x.device)
        visible = (torch.arange(x.shape[-2], device=x.device) + 1) // layer.ratio
        allowed = entries < visible[:, None]  # [T, E]
        if layer.index > candidates.source:
            published = earlier[candidates.source].selection
            assert published is not None
            assert published.candidates is not None
            blocks = published.candidates.repeat_interleave(candidates.block_size, dim=-1)
            allowed = allowed & blocks[..., : len(entries)]
        name = f"layers.{layer.index}.attn.indexer"
        selection = self.select(name, x, latent, keys, allowed)
        if layer.index != candidates.source:
            return selection
        best, margin = best_blocks(selection.scores, visible, candidates)
        return Selection(
            selection.scores, selection.mask, selection.entries, selection.margin, best, margin
        )


def best_blocks(
    scores: Tensor, visible: Tensor, candidates: CandidateSpec
) -> tuple[Tensor, Tensor]:
    """The blocks of entries that later layers choose from, [B, T, blocks] bool, and the margin.

    A block is worth its best entry of scores [B, T, E] (-inf where invisible); the one that holds
    the newest of `visible` [T] entries is always taken.
    """
    size = candidates.block_size
    padding = -scores.shape[-1] % size
    padded = torch.nn.functional.pad(scores, (0, padding), value=-torch.inf)
    worth = padded.unflatten(-1, (-1, size)).amax(dim=-1)
    if worth.shape[-1] == 0:
        return worth.bool(), torch.full_like(worth.sum(-1), torch.inf)
    numbers = torch.arange(worth.shape[-1], device=scores.device)
    newest = numbers == ((visible - 1).div(size, rounding_mode="floor"))[:, None]
    worth = worth.masked_fill(newest, torch.inf)
    best, margin = take_best(worth, candidates.topk_blocks)
    taken = torch.zeros_like(worth, dtype=torch.bool).scatter(-1, best, True)
    return taken & ~worth.isneginf(), margin
