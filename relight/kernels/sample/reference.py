"""The definition of sample. Probabilities are summed as integers, exact in any order, so a cut does
not depend on how a device sums."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from relight.kernels.invariant import keep_largest
from relight.kernels.peek import every, looks_are_free
from relight.kernels.sample.adjust import add_bias, allow, ban, penalise
from relight.kernels.sample.params import Adjustments, SampleParams

Draw = Callable[[Tensor, SampleParams], Tensor]

NOT_DRAWN = -1
"""Instead of a token: the row has NaN, +inf, or no token that may be drawn."""

ROWS = 4
"""Rows at a time: a dozen temporaries of ROWS * V * 8 bytes, 4 MB each for V = 129,280. On a CPU
32 rows at a time took five times as long, most of it in page faults."""

NARROW = 1024
"""A CPU looks for a cut among this many best tokens first, and among all where it lies farther."""

WEIGHT_BITS = 40
"""Probabilities relative to the best are integers of 1 / 2^40; their sum stays below 2^63 up to
V = 2^23."""

NOISE_BITS = 40

_LEAST_GAP = 2.0**-24
"""Distance of the noise from 1: one step of float32 below 1."""


def sample(logits: Tensor, params: SampleParams, adjustments: Adjustments | None) -> Tensor:
    tokens, valid = _greedy(logits)
    if adjustments is not None:
        logits = _adjusted(logits, adjustments)
        tokens, still = _greedy(logits)
        valid &= still

    def draw(rows: Tensor) -> Tensor:
        return _draw(floor(_scaled(logits, params, rows), params.min_p[rows]), params, rows)

    _replace(tokens, params.drawn, lambda: _warm(params) & ~_cut(params), draw)
    _draw_cut(tokens, logits, params)
    return torch.where(valid, tokens, NOT_DRAWN)


def sample_by(
    draw: Draw, logits: Tensor, params: SampleParams, adjustments: Adjustments | None
) -> Tensor:
    """The same, where `draw` gives the tokens of rows without a cut, or NOT_DRAWN."""
    valid = None
    if adjustments is not None:
        _, valid = _greedy(logits)
        logits = _adjusted(logits, adjustments)
    found = draw(logits, params)
    if valid is None and params.cut is not None and not len(params.cut):
        return found
    there = found >= 0 if valid is None else (found >= 0) & valid
    _draw_cut(found, logits, params)
    return torch.where(there, found, NOT_DRAWN)


def _draw_cut(tokens: Tensor, logits: Tensor, params: SampleParams) -> None:
    def draw(rows: Tensor) -> Tensor:
        cuts = params.top_p[rows], params.top_k[rows], params.min_p[rows]
        return _draw(keep(_scaled(logits, params, rows), *cuts), params, rows)

    _replace(tokens, params.cut, lambda: _warm(params) & _cut(params), draw)


def _replace(
    tokens: Tensor,
    told: Tensor | None,
    mine: Callable[[], Tensor],
    draw: Callable[[Tensor], Tensor],
) -> None:
    """Draws for the rows that are told, else for those that `mine` marks. Where nobody looks all
    are drawn for, and the others keep what they have."""
    rows, marked = told, None
    if rows is None and looks_are_free(tokens):
        rows = torch.where(mine())[0]
    elif rows is None:
        rows, marked = torch.arange(len(tokens), device=tokens.device), mine()
    for some in _few(rows):
        found = draw(some)
        tokens[some] = found if marked is None else torch.where(marked[some], found, tokens[some])


def _warm(params: SampleParams) -> Tensor:
    return params.temperature > 0


def _cut(params: SampleParams) -> Tensor:
    return (params.top_p < 1) | (params.top_k > 0)


def _few(rows: Tensor) -> Iterator[Tensor]:
    """Some rows at a time; none of no rows, where `split` would give one empty part."""
    return (rows[start : start + ROWS] for start in range(0, len(rows), ROWS))


def _scaled(logits: Tensor, params: SampleParams, rows: Tensor) -> Tensor:
    """The best of each row is 0."""
    part = logits[rows]
    return (part - part.amax(1, keepdim=True)) / params.temperature[rows].unsqueeze(1)


def _draw(scaled: Tensor, params: SampleParams, rows: Tensor) -> Tensor:
    key = params.seed[rows], params.choice[rows], params.position[rows]
    return (scaled + gumbel(*key, scaled.shape[1])).argmax(1)


def _greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row, the first of equals as torch documents, and whether it is
    finite: NaN counts as the largest, and if it is -inf there is nothing to draw."""
    tokens = logits.argmax(1)
    return tokens, logits.gather(1, tokens.unsqueeze(1)).squeeze(1).isfinite()


def _adjusted(logits: Tensor, adjustments: Adjustments) -> Tensor:
    """A copy; the rows that are not adjusted keep their bits."""
    part = logits[adjustments.rows]
    if (by := adjustments.penalties) is not None:
        part = penalise(part, by.counts, by.repetition, by.frequency, by.presence)
    if (bias := adjustments.bias) is not None:
        part = add_bias(part, bias.places.row, bias.places.token, bias.value)
    if (places := adjustments.banned) is not None:
        part = ban(part, places.row, places.token)
    if adjustments.allowed is not None:
        part = allow(part, adjustments.allowed)
    return logits.index_copy(0, adjustments.rows, part)


def floor(scaled: Tensor, min_p: Tensor) -> Tensor:
    """scaled [n, V], the best of each row 0, with -inf where min-p cuts."""
    return scaled.masked_fill(torch.exp(scaled) < min_p.unsqueeze(1), float("-inf"))


def keep(scaled: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """scaled [n, V], the best of each row 0, with -inf where min-p, top-k or top-p cut."""
    scaled = floor(scaled, min_p)
    vocab = scaled.shape[1]
    limit = torch.where(top_k > 0, top_k, vocab).clamp(max=vocab)
    total = _weight(scaled).sum(1)
    width = min(NARROW, vocab) if looks_are_free(scaled) else vocab
    while True:
        best = scaled.topk(width, dim=1).values
        count = _count(best, total, top_p, limit)
        if width == vocab or every(count < width):
            break
        width = vocab
    least = best.gather(1, count.unsqueeze(1) - 1).squeeze(1)
    return scaled.masked_fill(~keep_largest(scaled, least, count), float("-inf"))


def _weight(scaled: Tensor) -> Tensor:
    """Probability relative to the best as an integer."""
    return (torch.exp(scaled) * 2.0**WEIGHT_BITS).to(torch.int64)


def _count(best: Tensor, total: Tensor, top_p: Tensor, limit: Tensor) -> Tensor:
    """How many of `best` [n, width], descending, are kept [n]: at least one, at most `limit` and as
    many as it takes to hold top_p of the weight of the first `limit` ones. `total` is the weight of
    all tokens. Right if less than width."""
    width = best.shape[1]
    weight = _weight(best)
    before = weight.cumsum(1) - weight
    last = limit.clamp(max=width).unsqueeze(1) - 1
    mass = (before + weight).gather(1, last).squeeze(1)
    mass = torch.where(limit < width, mass, total)
    needed = torch.where(
        top_p < 1, (mass.float() * top_p).to(torch.int64), torch.iinfo(torch.int64).max
    )
    rank = torch.arange(width, device=best.device)
    kept = (before < needed.unsqueeze(1)) & (rank < limit.unsqueeze(1))
    return kept.sum(1).clamp(min=1)


def gumbel(seed: Tensor, choice: Tensor, position: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise of every token [n, vocab] float32: -log(-log(u)) with u = 1 - v."""
    bits = hash_bits(seed, choice, position, vocab)
    return -torch.log(-torch.log1p(-uniform(bits)))


def uniform(bits: Tensor) -> Tensor:
    """Hash bits int64 -> v in (0, 1), both ends excluded, float32 and as fine near 0 as float32 is:
    that end makes the large noise."""
    high = _shift(bits, 64 - NOISE_BITS).float()
    return ((high + 0.5) * 2.0**-NOISE_BITS).clamp(max=1 - _LEAST_GAP)


def hash_bits(seed: Tensor, choice: Tensor, position: Tensor, vocab: int) -> Tensor:
    """64 bits for every (seed, choice, position, token id): [n, vocab] int64.

    A counter-based generator: each number is mixed into the state by the finaliser of SplitMix64
    (Steele, Lea and Flood 2014), in int64 arithmetic that wraps.
    """
    key = _mix(_mix(_mix(seed) + choice) + position)
    token = torch.arange(vocab, device=seed.device)
    return _mix(key.unsqueeze(1) + token)


def _mix(x: Tensor) -> Tensor:
    x = x + _GOLDEN
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)
