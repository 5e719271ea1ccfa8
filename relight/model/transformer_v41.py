"""The V4.1 network over cached state: embedding, n-grams, blocks, head. Knows no request, allocator
or prefix.

As in V4 the residual is four streams; a sublayer's output is spread by weights of the streams in
front of it. How it *reads* them was decided one sublayer earlier: `pre` is deferred.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from relight.base.numerics import Numerics
from relight.base.specs import LayerSpec, ModelConfig
from relight.kernels.linear import linear
from relight.kernels.row_ops import Ops
from relight.model.addresses import window_keys
from relight.model.attention import Addresses, addresses
from relight.model.csa2 import Csa2, Shared
from relight.model.inputs import Segment
from relight.model.moe import Moe
from relight.model.ngram_table import Values
from relight.model.ngrams import Ngrams, store_tokens
from relight.model.state import LayerState
from relight.model.streams import Mhc, Streams
from relight.model.weights_v41 import LayerWeightsV41, ModelWeightsV41


class BlockV41:
    """One layer: n-grams if it has a table (`recall`), then attention and experts (`forward`)."""

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerSpec,
        weights: LayerWeightsV41,
        numerics: Numerics,
        boundary: torch.dtype,
        ops: Ops,
    ) -> None:
        self.weights = weights
        self.attention = Csa2(config, layer, weights, numerics, boundary, ops)
        self.moe = Moe(config, weights.ffn, numerics, boundary, ops)
        self.mhc = Mhc(config, boundary, ops)
        self.ngrams = None
        if weights.engram:
            self.ngrams = Ngrams(config, weights.engram, numerics, boundary, ops)

    def recall(self, streams: Streams, recalled: Values | None, segment: Segment) -> Streams:
        """The streams with what the layer's table holds, if it has one."""
        if self.ngrams is None:
            return streams
        assert recalled is not None
        return self.ngrams.forward(self.mhc.whole(streams), recalled, segment)

    def forward(
        self,
        streams: Streams,
        pre: Tensor,
        segment: Segment,
        where: Addresses,
        state: LayerState,
        shared: Shared,
    ) -> tuple[Streams, Tensor]:
        """Streams and how to read them, pre [rows, hc] -> both for the next block."""
        w = self.weights
        whole, mix, x = self.mhc.mix_and_read(
            streams, w.hyper_attention, w.attention_norm, segment, pre, w.attention.wq_a
        )
        out = self.attention.share(x, segment, where, state, shared, mix.finish)
        streams = self.mhc.spread(out, whole, mix, segment)

        pre = mix.pre
        whole, mix, x = self.mhc.mix_and_read(
            streams, w.hyper_ffn, w.ffn_norm, segment, pre, w.ffn.shared.w1
        )
        routed, out = self.moe.forward(x, segment, mix.finish)
        return self.mhc.spread(out, whole, mix, segment, routed), mix.pre

    def remember(
        self, streams: Tensor, pre: Tensor, segment: Segment, where: Addresses, state: LayerState
    ) -> None:
        """Stores what `forward` would, for rows that go no further."""
        _, x = self.mhc.read(streams, pre, self.weights.attention_norm, segment)
        self.attention.remember(x, segment, where, state)


class TransformerV41:
    """The whole network. One `forward` is one segment; its rows leave their mark in the states.

    Layers up to the last that makes entries are the encoder. Those behind, the decoder, remember
    window rows alone.
    """

    def __init__(self, config: ModelConfig, weights: ModelWeightsV41, numerics: Numerics) -> None:
        self.config = config
        self.weights = weights
        self.numerics = numerics
        self.boundary = getattr(torch, numerics.boundary)
        self.blocks = tuple(
            BlockV41(config, layer, layer_weights, numerics, self.boundary, weights.ops)
            for layer, layer_weights in zip(config.layers, weights.layers, strict=True)
        )
        self.mhc = Mhc(config, self.boundary, weights.ops)
        assert config.candidates is not None
        self.encoder = self.blocks[: config.candidates.source + 1]

    @torch.inference_mode()
    def forward(
        self, segment: Segment, states: Sequence[LayerState], taps: list[Tensor] | None = None
    ) -> Tensor:
        """Logits [draws, V] float32 of `segment.sample_rows`; updates the state of every layer.

        `taps` gets what a draft reads of all rows: means over the streams on entry of each tapped
        layer, behind its n-grams [rows, D].
        """
        where, shared = addresses(self.config, segment), Shared()
        recalled = self.recall(segment, states)
        streams: Streams
        streams, pre = self.embed(segment.token_ids)
        for number, block in enumerate(self.blocks):
            if number == len(self.encoder) and segment.since is not None:
                seen = window_keys(segment, where.rings, self.config.window, segment.since)
                where = replace(where, window_index=seen)
            streams = block.recall(streams, recalled[number], segment)
            if taps is not None and number in self.config.draft.target_layers:
                streams = self.mhc.whole(streams)
                taps.append(self.mhc.mean(streams, segment))
            streams, pre = block.forward(streams, pre, segment, where, states[number], shared)
        rows = segment.sample_rows
        return self.head(self.mhc.whole(streams)[rows], pre[rows], segment)

    @torch.inference_mode()
    def encode(self, segment: Segment, states: Sequence[LayerState]) -> None:
        """Bounded replay, an approximation: of given rows that nothing behind sees in a window of
        the decoder, what the encoder keeps. They go no further and have no logits."""
        where, shared = addresses(self.config, segment), Shared()
        recalled = self.recall(segment, states, self.encoder)
        streams: Streams
        streams, pre = self.embed(segment.token_ids)
        *blocks, last = self.encoder
        for number, block in enumerate(blocks):
            streams = block.recall(streams, recalled[number], segment)
            streams, pre = block.forward(streams, pre, segment, where, states[number], shared)
        streams = last.recall(streams, recalled[-1], segment)
        last.remember(self.mhc.whole(streams), pre, segment, where, states[len(blocks)])

    def recall(
        self,
        segment: Segment,
        states: Sequence[LayerState],
        blocks: Sequence[BlockV41] = (),
    ) -> list[Values | None]:
        """Stores the token ids, and begins to bring what the tables of `blocks`, or of all, hold of
        their n-grams; None for those without one."""
        blocks = blocks or self.blocks
        rings = [state.tokens for state in states if state.tokens is not None]
        if not rings:
            return [None] * len(blocks)
        classes = store_tokens(self.config, segment, rings[0], self.weights.token_classes)
        return [block.ngrams.recall(classes, segment) if block.ngrams else None for block in blocks]

    def embed(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The embedding in every stream [rows, hc, D], of which the first attention reads one."""
        rows = self.weights.embed[token_ids].to(self.boundary)
        streams = rows.unsqueeze(1).repeat(1, self.config.hc_mult, 1)
        pre = torch.zeros(streams.shape[:2], device=streams.device)
        pre[:, 0] = 1.0
        return streams, pre

    def head(self, streams: Tensor, pre: Tensor, segment: Segment) -> Tensor:
        """streams [rows, hc, D], pre [rows, hc] -> logits [rows, V] float32."""
        w = self.weights
        _, x = self.mhc.read(streams, pre, w.norm, segment)
        return linear(x, w.head, segment.family, quantised=False, boundary=torch.float32)
