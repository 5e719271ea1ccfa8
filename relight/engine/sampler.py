"""Draws the tokens of plans and counts them for penalties. Knows no model and no scheduler.

    counts   [slots, V] int32: how often the sequence of a slot has made each token. Set when a
             sequence with penalties or a budget gets the slot, which is all that a preempted one
             needs; after that each of its draws adds one here, on the device: a plan never needs to
             know the token before. 4 bytes * V a slot, 0.5 MB for V = 129,280. Other slots hold
             anything.

A draw that asks for no penalties, bias, bans or log probabilities pays nothing for them, and a
budget costs the one draw where it ends.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relight.base.types import Logprobs, SamplingParams
from relight.engine.plan import Draw, Drawn, Mask, Scored, SetCounts
from relight.kernels.device import send, upload
from relight.kernels.sample import (
    Adjustments,
    Bias,
    FastSample,
    Penalties,
    Places,
    SampleParams,
    Scores,
    sample,
    score_tokens,
)

FORCED = 1e9
"""A bias that no logit, penalty or noise comes near, and that a temperature leaves finite."""
LEAST_LOGPROB = -9999.0
"""Stands for the log of 0, which JSON cannot write. Logits are too small to come near it."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The draws of a step, on the device until somebody reads them. `scores` are those of the rows
    in `asked`, each with how many of the best tokens it asked for."""

    tokens: Tensor  # [draws] int64
    asked: tuple[tuple[int, int], ...] = ()
    scores: Scores | None = None


def count_bytes(num_slots: int, vocab_size: int) -> int:
    """What a sampler keeps."""
    return num_slots * vocab_size * torch.int32.itemsize


class Sampler:
    """`draw` only enqueues work on the device, so that its result may be read a step later."""

    def __init__(
        self,
        num_slots: int,
        vocab_size: int,
        device: torch.device,
        fast: FastSample | None = None,
    ) -> None:
        self.fast = fast
        self.counts = torch.zeros((num_slots, vocab_size), dtype=torch.int32, device=device)

    def set_counts(self, changes: Sequence[SetCounts]) -> None:
        for change in changes:
            row = self.counts[change.slot].zero_()
            tokens = upload(change.tokens, row.device)
            row.index_add_(0, tokens, torch.ones_like(tokens, dtype=torch.int32))

    def draw(self, draws: Sequence[Draw], logits: Tensor, last: Tensor | None = None) -> Sampled:
        """One token for each row of logits [draws, V]. `last` [slots] int64 is what each slot drew
        last: masks may hang on it, and it is told of these draws."""
        return scored(draws, logits, self.tokens(draws, logits, last))

    def tokens(self, draws: Sequence[Draw], logits: Tensor, last: Tensor | None = None) -> Tensor:
        """The same, without what is told of them: [draws] int64."""
        adjustments = self._adjustments(draws, logits.device, last)
        tokens = draw_tokens(draws, logits, adjustments, self.fast)
        counted = [i for i, draw in enumerate(draws) if draw.sampling.counted]
        if counted:
            rows = upload(counted, logits.device)
            slots = upload([draws[i].slot for i in counted], logits.device)
            # A row that gave no token counts as token 0: its sequence ends.
            self.counts[slots, tokens[rows].clamp(min=0)] += 1
        if last is not None:
            slots = upload([draw.slot for draw in draws], logits.device)
            # Of several draws for one slot any may stay: what counts is told with the next row.
            # What was not drawn must not be looked up as a token: the sequence ends, its mates go
            # on.
            last[slots] = tokens.clamp(min=0)
        return tokens

    def _adjustments(
        self, draws: Sequence[Draw], device: torch.device, last: Tensor | None
    ) -> Adjustments | None:
        rows = [i for i, draw in enumerate(draws) if is_adjusted(draw)]
        if not rows:
            return None
        some = [draws[i] for i in rows]
        vocab = self.counts.shape[1]
        penalties = None
        if any(draw.sampling.penalised for draw in some):
            penalties = _penalties(some, self.counts)
        return Adjustments(
            rows=upload(rows, device),
            penalties=penalties,
            bias=_bias(some, self.counts),
            banned=_banned(some, vocab, device),
            allowed=allowed_words(some, vocab, device, last),
        )


def is_adjusted(draw: Draw) -> bool:
    """Whether anything changes the logits of this draw."""
    return draw.sampling.penalised or draw.mask is not None or names_tokens(draw)


def names_tokens(draw: Draw) -> bool:
    """Whether the logits of single tokens change."""
    sampling = draw.sampling
    return (
        bool(sampling.logit_bias)
        or draw.made < sampling.min_tokens
        or draw.made == sampling.think_budget
        or draw.made < len(sampling.forced)
    )


def is_cut(sampling: SamplingParams) -> bool:
    """Whether top-k or top-p leaves tokens out."""
    return sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0)


def draw_tokens(
    draws: Sequence[Draw],
    logits: Tensor,
    adjustments: Adjustments | None = None,
    fast: FastSample | None = None,
) -> Tensor:
    """One token [draws] int64 for each row of logits [draws, V]."""
    return sample(logits, sample_params(draws, logits.device), adjustments, fast)


def read(sampled: Sampled) -> list[Drawn]:
    """Waits for the draws of a step and brings them to the host."""
    drawn: list[Drawn] = sampled.tokens.tolist()
    scores = sampled.scores
    if scores is None:
        return drawn
    own, ids, top = (t.tolist() for t in (scores.own, scores.top_ids, scores.top))
    for number, (row, count) in enumerate(sampled.asked):
        token = drawn[row]
        assert isinstance(token, int), "each row is scored once"
        if token >= 0:
            best = zip(ids[number][:count], map(_finite, top[number][:count]), strict=True)
            drawn[row] = Scored(token, Logprobs(_finite(own[number]), tuple(best)))
    return drawn


def sample_params(draws: Sequence[Draw], device: torch.device) -> SampleParams:
    """The sampling parameters of `draws` as columns."""
    params = [draw.sampling for draw in draws]
    warm = [i for i, p in enumerate(params) if p.temperature > 0]
    cut = [i for i in warm if is_cut(params[i])]
    return SampleParams(
        temperature=_floats([p.temperature for p in params], device),
        top_p=_floats([p.top_p for p in params], device),
        top_k=upload([p.top_k for p in params], device),
        min_p=_floats([p.min_p for p in params], device),
        seed=upload([signed(p.seed) for p in params], device),
        choice=upload([p.choice for p in params], device),
        position=upload([draw.position for draw in draws], device),
        drawn=upload([i for i in warm if i not in cut], device),
        cut=upload(cut, device),
    )


def _penalties(draws: Sequence[Draw], counts: Tensor) -> Penalties:
    """Counts of slots without penalties may be anything: they are multiplied by what is off."""
    device = counts.device
    params = [draw.sampling for draw in draws]
    return Penalties(
        repetition=_floats([p.repetition_penalty for p in params], device),
        frequency=_floats([p.frequency_penalty for p in params], device),
        presence=_floats([p.presence_penalty for p in params], device),
        counts=counts[upload([draw.slot for draw in draws], device)],
    )


def _bias(draws: Sequence[Draw], counts: Tensor) -> Bias | None:
    """What requests ask for, what makes a forced token, and, where a budget ends, what makes the
    token that it ends with: by the device's own counts, since it may have been drawn by a step that
    is not read yet. A token that the model does not have cannot be drawn anyway."""
    device, vocab = counts.device, counts.shape[1]
    ends = {
        (row, draw.sampling.think_close): draw.slot
        for row, draw in enumerate(draws)
        if draw.made == draw.sampling.think_budget and draw.made >= len(draw.sampling.forced)
    }
    asked = {
        (row, token): value
        for row, draw in enumerate(draws)
        for token, value in draw.sampling.logit_bias
        if token < vocab
    }
    asked |= {
        (row, draw.sampling.forced[draw.made]): FORCED
        for row, draw in enumerate(draws)
        if draw.made < len(draw.sampling.forced)
    }
    found = {place: asked.get(place, 0.0) for place in (*ends, *asked)}
    if not found:
        return None
    rows, tokens = zip(*found, strict=True)
    places = Places(upload(rows, device), upload(tokens, device))
    value = _floats(list(found.values()), device)
    if ends:
        made = counts[upload(list(ends.values()), device), places.token[: len(ends)]]
        value[: len(ends)] += torch.where(made > 0, 0.0, FORCED)
    return Bias(places, value)


def _banned(draws: Sequence[Draw], vocab: int, device: torch.device) -> Places | None:
    """Stop tokens, while their sequence is shorter than it must be."""
    found = [
        (row, token)
        for row, draw in enumerate(draws)
        if len(draw.sampling.forced) <= draw.made < draw.sampling.min_tokens
        for token in draw.sampling.stop_token_ids
        if token < vocab
    ]
    if not found:
        return None
    rows, tokens = zip(*found, strict=True)
    return Places(upload(rows, device), upload(tokens, device))


def allowed_words(
    draws: Sequence[Draw], vocab: int, device: torch.device, last: Tensor | None
) -> Tensor | None:
    """[draws, ceil(V / 32)] int32, all bits set for a draw without a mask; None if none has one.
    `last` [slots]: what each slot drew last."""
    if all(draw.mask is None for draw in draws):
        return None
    width = -(-vocab // 32)
    everything = b"\xff" * (4 * width)

    def words(masks: Iterable[bytes]) -> Tensor:
        joined = bytearray().join(mask or everything for mask in masks)
        return send(torch.frombuffer(joined, dtype=torch.int32), device).view(-1, width)

    allowed = words(draw.mask.allowed if draw.mask else b"" for draw in draws)
    awaited = [draw.mask.after if draw.mask else None for draw in draws]
    if all(token is None for token in awaited):
        return allowed
    assert last is not None
    otherwise = words(_otherwise(draw.mask) for draw in draws)
    after = upload([-1 if token is None else token for token in awaited], device)
    holds = last[upload([draw.slot for draw in draws], device)] == after
    return torch.where(holds.unsqueeze(1), allowed, otherwise)


def _otherwise(mask: Mask | None) -> bytes:
    """A mask without a condition holds in any case."""
    if mask is None:
        return b""
    return mask.allowed if mask.after is None else mask.otherwise


def asked_scores(draws: Sequence[Draw]) -> tuple[tuple[int, int], ...]:
    """Which draws ask for log probabilities, and of how many of the best."""
    return tuple(
        (number, count)
        for number, draw in enumerate(draws)
        if (count := draw.sampling.logprobs) is not None
    )


def scored(
    draws: Sequence[Draw], logits: Tensor, tokens: Tensor, rows: Sequence[int] | None = None
) -> Sampled:
    """With log probabilities by the logits as the model gave them: those of draw i are row
    `rows[i]`, None: row i. The most that a row asks for is looked up for all: the order of the best
    is fixed, so a row's own are how they begin."""
    asked = asked_scores(draws)
    if not asked:
        return Sampled(tokens)
    drawn = upload([number for number, _ in asked], logits.device)
    at = drawn if rows is None else upload([rows[number] for number, _ in asked], logits.device)
    scores = score_tokens(logits[at], tokens[drawn], max(count for _, count in asked))
    return Sampled(tokens, asked, scores)


def _floats(values: Sequence[float], device: torch.device) -> Tensor:
    return upload(values, device, torch.float32)


def signed(seed: int) -> int:
    """Any integer seed as one that an int64 holds."""
    return (seed + 2**63) % 2**64 - 2**63


def _finite(value: float) -> float:
    return max(value, LEAST_LOGPROB)
