"""Chooses experts and weighs them. Knows no expert."""

from torch import Tensor

from relight.kernels.check import F32, I64, expect
from relight.kernels.route import reference


def route(
    logits: Tensor,
    k: int,
    scale: float,
    *,
    bias: Tensor | None,
    table: Tensor | None,
    token_ids: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """logits [n, E] float32 -> expert ids [n, k] int64, ascending, and weights [n, k] float32.

    Scores are sqrt(softplus(logits)). With bias [E] float32 the k largest of score + bias are
    chosen, ties to the lowest id; with table [V, k] int64 the row of each of token_ids [n] int64.
    Weights are the scores without bias, divided by their sum and times `scale`. The ids of a table
    row must differ from each other.
    """
    n, num_experts = logits.shape
    expect(logits, "logits", (None, None), F32)
    assert 0 < k <= num_experts, f"k is {k}; wanted 1 to {num_experts}"
    assert (bias is None) != (table is None), "wanted a bias or a table, and not both"
    if bias is not None:
        expect(bias, "bias", (num_experts,), F32)
    if table is not None:
        expect(table, "table", (None, k), I64)
        assert token_ids is not None, "a table needs token_ids"
        expect(token_ids, "token_ids", (n,), I64)
    return reference.route(logits, k, scale, bias, table, token_ids)
