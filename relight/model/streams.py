"""The four streams around a sublayer (mHC): mixes them, reads them for it, spreads its output.
Knows no sublayer, and not whether they are read by its own mix or by the one before (deferred).
"""

import torch
from torch import Tensor

from relight.base.config import ModelConfig
from relight.kernels import hyper
from relight.kernels.codec import Weight
from relight.kernels.experts import in_order
from relight.kernels.hyper.rows import RowHyper
from relight.kernels.norm import rms_norm
from relight.kernels.row_ops import NO_KERNELS, Ops
from relight.model.inputs import Segment
from relight.model.weights import HyperWeights

Streams = Tensor | hyper.Unspread
"""[rows, hc, D], or what they are made of: made rows leave that to who reads them next, by `whole`
or with the mix of the next sublayer, which is a launch less."""


class Mhc:
    def __init__(self, config: ModelConfig, boundary: torch.dtype, ops: Ops = NO_KERNELS) -> None:
        self.config = config
        self.boundary = boundary
        self.ops = ops

    def mix_and_read(
        self,
        streams: Streams,
        weights: HyperWeights,
        norm: Tensor,
        segment: Segment,
        pre: Tensor | None = None,
        into: Weight | None = None,
    ) -> tuple[Tensor, hyper.Mix, Tensor]:
        """The streams [rows, hc, D], their mix, and what the sublayer behind them reads [rows, D],
        by `pre` [rows, hc] of the sublayer before, or by the mix's own. `into`: a weight that it is
        multiplied by, as are all others of the same block. The sublayer, or who calls it, has the
        mix finished."""
        c = self.config
        given = streams if isinstance(streams, Tensor) else streams.streams
        if fast := self._fast(given, segment):
            return fast.mix_and_read(
                streams,
                weights.fn,
                weights.base,
                weights.scale,
                pre,
                norm,
                iterations=c.hc_iters,
                eps=c.hc_eps,
                norm_eps=c.rms_norm_eps,
                act_block=into.act_block if into else 0,
                late=True,
            )
        streams = self.whole(streams)
        mix = self.mix(streams, weights, segment)
        return streams, mix, self.read(streams, mix.pre if pre is None else pre, norm, segment)[1]

    def mix(self, streams: Tensor, weights: HyperWeights, segment: Segment) -> hyper.Mix:
        """Of streams [rows, hc, D], for the sublayer in front of which they stand."""
        c = self.config
        return hyper.mix(
            streams,
            weights.fn,
            weights.base,
            weights.scale,
            iterations=c.hc_iters,
            eps=c.hc_eps,
            norm_eps=c.rms_norm_eps,
            family=segment.family,
        )

    def read(
        self, streams: Tensor, pre: Tensor, norm: Tensor, segment: Segment
    ) -> tuple[Tensor, Tensor]:
        """What a sublayer gets of streams [rows, hc, D] by pre [rows, hc]: [rows, D], before and
        behind the norm."""
        eps = self.config.rms_norm_eps
        if fast := self._fast(streams, segment):
            return fast.read(streams, pre, norm, eps)
        x = hyper.collapse(streams, pre, self.boundary)
        return x, rms_norm(x, norm, eps, self.boundary)

    def read_by_head(
        self, streams: Tensor, weights: HyperWeights, norm: Tensor, segment: Segment
    ) -> tuple[Tensor, Tensor]:
        """The same by the weights of V4's head: fn [hc, hc * D], base [hc], scale [1]."""
        parts = (weights.fn, weights.base, weights.scale)
        eps, norm_eps = self.config.hc_eps, self.config.rms_norm_eps
        if fast := self._fast(streams, segment):
            return fast.read_by_head(streams, *parts, norm, eps=eps, norm_eps=norm_eps)
        pre = hyper.head(streams, *parts, eps=eps, norm_eps=norm_eps, family=segment.family)
        x = hyper.collapse(streams, pre, self.boundary)
        return x, rms_norm(x, norm, norm_eps, self.boundary)

    def mean(self, streams: Tensor, segment: Segment) -> Tensor:
        """Over the streams: [rows, D]."""
        if fast := self._fast(streams, segment):
            return fast.mean(streams)
        return hyper.mean(streams, self.boundary)

    def _fast(self, streams: Tensor, segment: Segment) -> RowHyper | None:
        fast = self.ops.of(segment.family).hyper
        return fast if fast and fast.takes(streams, self.boundary) else None

    def spread(
        self,
        out: Tensor,
        streams: Tensor,
        mix: hyper.Mix,
        segment: Segment,
        routed: Tensor | None = None,
    ) -> Streams:
        """The streams behind a sublayer that gave out [rows, D], or routed [rows, k, D] float32 and
        out, which is added last."""
        if mix.fast:
            late = hyper.Unspread(out, routed, streams, mix)
            return late if segment.family == "step" else self.whole(late)
        if routed is not None:
            out = (in_order(routed) + out.float()).to(self.boundary)
        return hyper.expand(out, streams, mix.post, mix.comb, self.boundary)

    def whole(self, streams: Streams) -> Tensor:
        """[rows, hc, D]."""
        if isinstance(streams, Tensor):
            return streams
        assert streams.mix.fast is not None
        return streams.mix.fast.expand(streams.out, streams.streams, streams.mix, streams.routed)
