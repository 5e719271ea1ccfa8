"""The definition of route."""

import torch
from torch import Tensor

from relight.kernels.invariant import softplus


def route(
    logits: Tensor,
    k: int,
    scale: float,
    bias: Tensor | None,
    table: Tensor | None,
    token_ids: Tensor | None,
) -> tuple[Tensor, Tensor]:
    scores = torch.sqrt(softplus(logits))
    if table is None:
        assert bias is not None
        ids = (scores + bias).sort(dim=1, descending=True, stable=True).indices[:, :k]
    else:
        assert token_ids is not None
        ids = table[token_ids]
    ids = ids.sort(dim=1).values
    chosen = scores.gather(1, ids)
    total = chosen[:, 0].clone()
    for slot in range(1, k):  # in ascending order of the expert
        total += chosen[:, slot]
    return ids, chosen / total.unsqueeze(1) * scale
