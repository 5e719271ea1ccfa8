"""The feed-forward sublayer of V4: routed experts and one shared expert. Knows no residual stream.

Router scores are sqrt(softplus(logits)); the bias steers the choice of experts and not their
weights, and in the first layers a table by token id makes the choice (hash routing).
"""

import torch
from torch import Tensor

from relight.base.config import ModelConfig
from relight.base.numerics import Numerics
from relight.kernels.experts import experts, swiglu
from relight.kernels.linear import linear
from relight.kernels.route import route
from relight.kernels.row_ops import NO_KERNELS, Ops
from relight.model.inputs import Segment
from relight.model.weights import FfnWeights


class Moe:
    """One layer's experts."""

    def __init__(
        self,
        config: ModelConfig,
        weights: FfnWeights,
        numerics: Numerics,
        boundary: torch.dtype,
        ops: Ops = NO_KERNELS,
    ) -> None:
        self.config = config
        self.weights = weights
        self.numerics = numerics
        self.boundary = boundary
        self.ops = ops

    def route(self, x: Tensor, segment: Segment) -> tuple[Tensor, Tensor]:
        """x [rows, D] -> expert ids [rows, k], ascending, and their weights. Float32 throughout."""
        router, k = self.weights.router, self.config.experts_per_token
        logits = linear(x, router.gate, segment.family, quantised=False, boundary=torch.float32)
        fast = self.ops.of(segment.family).route
        run = fast.route if fast and fast.takes(logits, k) else route
        return run(
            logits,
            k,
            self.config.routed_scaling_factor,
            bias=router.bias,
            table=router.table,
            token_ids=segment.token_ids,
        )

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        """x [rows, D], normed -> [rows, D]: routed slots summed in float32 in ascending order of
        the expert, the shared expert last, one rounding."""
        ids, weights = self.route(x, segment)
        limit, quantised = self.config.swiglu_limit, self.numerics.quantised
        routed = experts(
            x, ids, weights, self.weights.experts, limit, segment.family, quantised, self.boundary
        )
        shared = self.weights.shared
        gate = linear(x, shared.w1, segment.family, quantised, self.boundary)
        up = linear(x, shared.w3, segment.family, quantised, self.boundary)
        fast = self.ops.of(segment.family).shared
        if fast and fast.takes(gate, self.boundary) and fast.takes(x, self.boundary):
            hidden = fast.swiglu(gate, up, limit)
            out = linear(hidden, shared.w2, segment.family, quantised, self.boundary)
            return fast.add(routed, out)
        hidden = swiglu(gate, up, limit, self.boundary)
        out = linear(hidden, shared.w2, segment.family, quantised, self.boundary)
        return (routed + out.float()).to(self.boundary)
