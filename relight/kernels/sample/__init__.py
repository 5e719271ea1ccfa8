"""Draws one token per row. Knows no request; a row's draw depends on its logits and its parameters
only."""

from typing import Protocol

from torch import Tensor

from relight.kernels.check import F32, I32, I64, expect
from relight.kernels.sample import reference, score
from relight.kernels.sample.params import Adjustments as Adjustments
from relight.kernels.sample.params import Bias as Bias
from relight.kernels.sample.params import Penalties as Penalties
from relight.kernels.sample.params import Places as Places
from relight.kernels.sample.params import SampleParams as SampleParams
from relight.kernels.sample.params import Scores as Scores
from relight.kernels.sample.reference import NOT_DRAWN as NOT_DRAWN


class FastSample(Protocol):
    """Kernels that draw for rows without a cut, as `sample` does."""

    def takes(self, logits: Tensor) -> bool: ...

    def draw(self, logits: Tensor, params: SampleParams) -> Tensor: ...


def sample(
    logits: Tensor,
    params: SampleParams,
    adjustments: Adjustments | None = None,
    fast: FastSample | None = None,
) -> Tensor:
    """logits [n, V] float32 -> tokens [n] int64.

    First the adjustments. Temperature 0: the largest logit, the lowest id among equals. Else logits
    are divided by the temperature; kept are tokens with at least min_p times the best probability,
    of these the top_k best (ties: lowest ids), of these the smallest set of best ones with at least
    top_p of the remaining probability, one at least; and the token with the largest logit plus
    Gumbel noise is drawn. The noise is a hash of (seed, choice, position, token id). A logit of
    -inf is never drawn. A row with NaN or +inf, or with -inf only, gives `NOT_DRAWN`.
    """
    n, vocab = logits.shape
    expect(logits, "logits", (None, None), F32)
    for name in ("temperature", "top_p", "min_p"):
        expect(getattr(params, name), name, (n,), F32)
    for name in ("top_k", "seed", "choice", "position"):
        expect(getattr(params, name), name, (n,), I64)
    for rows in (params.drawn, params.cut):
        if rows is not None:
            expect(rows, "rows", (None,), I64)
    if adjustments is not None:
        _check(adjustments, vocab)
    if fast is not None and fast.takes(logits):
        return reference.sample_by(fast.draw, logits, params, adjustments)
    return reference.sample(logits, params, adjustments)


def score_tokens(logits: Tensor, tokens: Tensor, count: int) -> Scores:
    """log softmax of logits [n, V] float32 at tokens [n] int64, and the `count` best of each row.

    Sums have a fixed order, and of equals the lowest ids come first: a row's result does not depend
    on other rows. Rows that gave `NOT_DRAWN` have no meaning.
    """
    n, vocab = logits.shape
    expect(logits, "logits", (None, None), F32)
    expect(tokens, "tokens", (n,), I64)
    return Scores(*score.score(logits, tokens, min(count, vocab)))


def _check(adjustments: Adjustments, vocab: int) -> None:
    rows = adjustments.rows
    expect(rows, "rows", (None,), I64)
    count = len(rows)
    if (penalties := adjustments.penalties) is not None:
        for name in ("repetition", "frequency", "presence"):
            expect(getattr(penalties, name), name, (count,), F32)
        expect(penalties.counts, "counts", (count, vocab), I32)
    if (bias := adjustments.bias) is not None:
        expect(bias.value, "bias", (len(bias.places.row),), F32)
    for places in (bias.places if bias else None, adjustments.banned):
        if places is not None:
            expect(places.row, "row", (None,), I64)
            expect(places.token, "token", (len(places.row),), I64)
    if adjustments.allowed is not None:
        expect(adjustments.allowed, "allowed", (count, -(-vocab // 32)), I32)
