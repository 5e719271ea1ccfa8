"""Draws one token per row. Knows no request; a row's draw depends on its logits and its parameters
only."""

from dataclasses import dataclass

from torch import Tensor

from relight.kernels.check import F32, I64, expect
from relight.kernels.sample import reference


@dataclass(frozen=True, slots=True)
class SampleParams:
    """Parameters of each row, all [n] on the device of the logits."""

    temperature: Tensor  # float32; 0 is greedy
    top_p: Tensor  # float32; 1 is off
    top_k: Tensor  # int64; 0 is off
    min_p: Tensor  # float32; 0 is off
    seed: Tensor  # int64
    choice: Tensor  # int64
    position: Tensor  # int64, absolute position of the token that is drawn


def sample(logits: Tensor, params: SampleParams) -> Tensor:
    """logits [n, V] float32 -> tokens [n] int64.

    Temperature 0: the largest logit, the lowest id among equals. Else logits are divided by the
    temperature; kept are tokens with at least min_p times the best probability, of these the top_k
    best (ties: lowest ids), of these the smallest set of best ones with at least top_p of the
    remaining probability, one at least; and the token with the largest logit plus Gumbel noise is
    drawn. The noise is a hash of (seed, choice, position, token id). A logit of -inf is never
    drawn.
    """
    n = logits.shape[0]
    expect(logits, "logits", (None, None), F32)
    for name in ("temperature", "top_p", "min_p"):
        expect(getattr(params, name), name, (n,), F32)
    for name in ("top_k", "seed", "choice", "position"):
        expect(getattr(params, name), name, (n,), I64)
    return reference.sample(
        logits,
        params.temperature,
        params.top_p,
        params.top_k,
        params.min_p,
        params.seed,
        params.choice,
        params.position,
    )
