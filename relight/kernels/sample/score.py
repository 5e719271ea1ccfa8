"""The definition of score: log probabilities of drawn tokens and of the best ones."""

import torch
from torch import Tensor

from relight.kernels.invariant import keep_largest, tree_sum


def score(logits: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    best = logits.amax(1, keepdim=True)
    total = torch.log(tree_sum(torch.exp(logits - best), 1)).unsqueeze(1)
    own = logits.gather(1, tokens.clamp(min=0).unsqueeze(1)) - best - total
    ids = largest(logits, count)
    return own.squeeze(1), ids, logits.gather(1, ids) - best - total


def largest(x: Tensor, count: int) -> Tensor:
    """Columns of the `count` largest values of each row [n, count], descending, and of equals the
    lowest first. Without NaN: a row that has one gets some columns."""
    columns = x.shape[1]
    if count == 0:
        return torch.zeros((len(x), 0), dtype=torch.int64, device=x.device)
    least = x.topk(count, dim=1).values[:, -1]
    kept = keep_largest(x, least, torch.full_like(least, count, dtype=torch.int64))
    number = columns - torch.arange(columns, device=x.device)  # the first column has the largest
    ascending = columns - (kept * number).topk(count, dim=1).values
    ascending = ascending.clamp(max=columns - 1)
    order = x.gather(1, ascending).sort(dim=1, descending=True, stable=True).indices
    return ascending.gather(1, order)
