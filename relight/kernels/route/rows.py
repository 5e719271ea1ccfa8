"""Routing, launched on a CUDA device. Knows no expert."""

import torch
from torch import Tensor

from relight.kernels.block import in_place
from relight.kernels.route import cuda
from relight.kernels.toolbox import Toolbox


class RowRoute:
    """`route` of either family: one launch."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def takes(self, logits: Tensor, k: int) -> bool:
        experts = logits.shape[1]
        fits = experts % cuda.WARP == 0 and experts <= cuda.MOST_EXPERTS and k <= cuda.WARP
        return fits and in_place(logits)

    def route(
        self,
        logits: Tensor,
        k: int,
        scale: float,
        *,
        bias: Tensor | None,
        table: Tensor | None,
        token_ids: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """As `route.route`: logits [n, E] -> ids [n, k] and weights [n, k]."""
        n, experts = logits.shape
        ids = torch.empty((n, k), dtype=torch.int64, device=logits.device)
        weights = logits.new_empty((n, k))
        if n:
            hashed = table is not None
            kernel = cuda.kernel(self._tools.form, experts, k, hashed=hashed)
            launch = self._tools.load(kernel, cuda.threads(experts, hashed=hashed))
            launch((n, 1), logits, bias, table, token_ids, float(scale), ids, weights)
        return ids, weights
