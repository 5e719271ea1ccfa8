"""What the sampler is told of rows, and what it tells of them. Knows no request."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class SampleParams:
    """Parameters of each row, all [n] on the device of the logits.

    `drawn` and `cut` say which rows have a temperature, without and with top-k or top-p. Who knows
    it tells it, since nobody else can without waiting for the device; None: it is looked up, and
    where nobody looks all rows are drawn so, and the draws of those that are not are dropped.
    """

    temperature: Tensor  # float32; 0 is greedy
    top_p: Tensor  # float32; 1 is off
    top_k: Tensor  # int64; 0 is off
    min_p: Tensor  # float32; 0 is off
    seed: Tensor  # int64
    choice: Tensor  # int64
    position: Tensor  # int64, absolute position of the token that is drawn
    drawn: Tensor | None = None  # [d] int64
    cut: Tensor | None = None  # [c] int64


@dataclass(frozen=True, slots=True)
class Penalties:
    """Penalties of a rows, each [a] float32, over `counts` [a, V] int32: how often each token was
    made. For tokens that were made at all, a positive logit is divided by `repetition` and another
    multiplied by it (1 is off); then frequency times the count and presence are subtracted."""

    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    counts: Tensor


@dataclass(frozen=True, slots=True)
class Places:
    """Logits at (row, token), both [m] int64, every place once; row counts the adjusted rows."""

    row: Tensor
    token: Tensor


@dataclass(frozen=True, slots=True)
class Bias:
    """`value` [m] float32 is added at `places`."""

    places: Places
    value: Tensor


@dataclass(frozen=True, slots=True)
class Adjustments:
    """What changes the logits of some rows before the draw, in this order; None is off.

    `rows` [a] int64: which rows, each once. `banned` are never drawn. Of `allowed`
    [a, ceil(V / 32)] int32 token t has bit t % 32 of word t // 32: tokens without it are never
    drawn.
    """

    rows: Tensor
    penalties: Penalties | None = None
    bias: Bias | None = None
    banned: Places | None = None
    allowed: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """Log probabilities of each row: of its token [n] float32; ids [n, k] int64 and log
    probabilities [n, k] float32 of the k best tokens, the best first."""

    own: Tensor
    top_ids: Tensor
    top: Tensor
