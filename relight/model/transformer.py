"""The V4 network over cached state: embedding, blocks, head. Knows no request, allocator or prefix.

The residual is four streams. A sublayer reads a mix of them (`pre`), and its output is spread over
them again (`post`) while they are mixed among themselves (`comb`, doubly stochastic): mHC.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from relight.base.config import LayerSpec, ModelConfig
from relight.base.numerics import Numerics
from relight.kernels.linear import linear
from relight.kernels.row_ops import Ops
from relight.model.attention import Addresses, Attention, addresses
from relight.model.inputs import Segment
from relight.model.moe import Moe
from relight.model.state import LayerState
from relight.model.streams import Mhc, Streams
from relight.model.weights import HyperWeights, LayerWeights, ModelWeights


class Block:
    """One layer: attention and experts, each between a mix and a spread of the streams."""

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerSpec,
        weights: LayerWeights,
        numerics: Numerics,
        boundary: torch.dtype,
        ops: Ops,
    ) -> None:
        self.weights = weights
        self.attention = Attention(config, layer, weights.attention, numerics, boundary, ops)
        self.moe = Moe(config, weights.ffn, numerics, boundary, ops)
        self.mhc = Mhc(config, boundary, ops)

    def forward(
        self, streams: Streams, segment: Segment, where: Addresses, state: LayerState
    ) -> Streams:
        """From streams to streams."""
        w = self.weights
        whole, mix, x = self.mhc.mix_and_read(
            streams, w.hyper_attention, w.attention_norm, segment, into=w.attention.wq_a
        )
        out = self.attention.forward(x, segment, where, state, mix.finish)
        streams = self.mhc.spread(out, whole, mix, segment)

        whole, mix, x = self.mhc.mix_and_read(
            streams, w.hyper_ffn, w.ffn_norm, segment, into=w.ffn.shared.w1
        )
        routed, out = self.moe.forward(x, segment, mix.finish)
        return self.mhc.spread(out, whole, mix, segment, routed)


class Transformer:
    """The whole network. One `forward` is one segment; its rows leave their mark in the states."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, numerics: Numerics) -> None:
        self.config = config
        self.weights = weights
        self.numerics = numerics
        self.boundary = getattr(torch, numerics.boundary)
        self.blocks = tuple(
            Block(config, layer, layer_weights, numerics, self.boundary, weights.ops)
            for layer, layer_weights in zip(config.layers, weights.layers, strict=True)
        )
        self.mhc = Mhc(config, self.boundary, weights.ops)

    @torch.inference_mode()
    def forward(
        self, segment: Segment, states: Sequence[LayerState], taps: list[Tensor] | None = None
    ) -> Tensor:
        """Logits [draws, V] float32 of `segment.sample_rows`; updates the state of every layer.

        `taps` gets what a draft reads of all rows: means over the streams behind each tapped layer
        [rows, D].
        """
        where = addresses(self.config, segment)
        streams: Streams = self.embed(segment.token_ids)
        for number, (block, state) in enumerate(zip(self.blocks, states, strict=True)):
            streams = block.forward(streams, segment, where, state)
            if taps is not None and number in self.config.draft.target_layers:
                streams = self.mhc.whole(streams)
                taps.append(self.mhc.mean(streams, segment))
        return self.head(self.mhc.whole(streams)[segment.sample_rows], segment)

    def embed(self, token_ids: Tensor) -> Tensor:
        """The embedding in every stream [rows, hc, D]."""
        rows = self.weights.embed[token_ids].to(self.boundary)
        return rows.unsqueeze(1).repeat(1, self.config.hc_mult, 1)

    def head(self, streams: Tensor, segment: Segment) -> Tensor:
        """streams [rows, hc, D] -> logits [rows, V] float32."""
        w = self.weights
        weights = HyperWeights(w.hc_head_fn, w.hc_head_base, w.hc_head_scale)
        _, x = self.mhc.read_by_head(streams, weights, w.norm, segment)
        return linear(x, w.head, segment.family, quantised=False, boundary=torch.float32)
