"""The feed-forward sublayer of V4: routed experts and one shared expert. Knows no residual stream.

Router scores are sqrt(softplus(logits)); the bias steers the choice of experts and not their
weights, and in the first layers a table by token id makes the choice (hash routing).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from relight.base.config import ModelConfig
from relight.base.numerics import Numerics
from relight.kernels.experts import experts_apart, swiglu
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

    def forward(
        self, x: Tensor, segment: Segment, late: Callable[[], None]
    ) -> tuple[Tensor, Tensor]:
        """x [rows, D], normed -> what is to be summed: routed slots [rows, k, D] in float32 in
        ascending order of the expert, and the shared expert [rows, D] last. One rounding. `late`:
        what is to be done meanwhile."""

        def beside() -> Tensor:
            found = self._shared(x, segment)
            late()
            return found

        with self.ops.of(segment.family).branches() as branches:
            shared = branches.begin("shared", beside)
            routed = self._routed(x, segment)
            return routed, shared()

    def _routed(self, x: Tensor, segment: Segment) -> Tensor:
        """[rows, k, D] float32."""
        ids, weights = self.route(x, segment)
        limit, quantised = self.config.swiglu_limit, self.numerics.quantised
        stacks, family = self.weights.experts, segment.family
        return experts_apart(x, ids, weights, stacks, limit, family, quantised, self.boundary)

    def _shared(self, x: Tensor, segment: Segment) -> Tensor:
        """[rows, D] in the boundary's dtype."""
        shared, fast = self.weights.shared, self.ops.of(segment.family).shared
        family, quantised = segment.family, self.numerics.quantised
        gate = linear(x, shared.w1, family, quantised, self.boundary)
        up = linear(x, shared.w3, family, quantised, self.boundary)
        limit = self.config.swiglu_limit
        if fast and fast.takes(gate, self.boundary):
            hidden = fast.swiglu(gate, up, limit, shared.w2.act_block)
        else:
            hidden = swiglu(gate, up, limit, self.boundary)
        return linear(hidden, shared.w2, family, quantised, self.boundary)
