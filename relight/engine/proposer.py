"""Guesses at the next tokens of sequences: who makes them for a runner, and behind which of its
draws. Knows no plan and no scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from relight.engine.plan import Draw, Proposed, Rows
from relight.engine.sampler import sample_params
from relight.kernels.device import download, upload
from relight.kernels.rows import Rows as Ring
from relight.kernels.sample import sample
from relight.model.draft import Draft
from relight.model.inputs import Segment


@dataclass(frozen=True, slots=True)
class Guesses:
    """Of n sequences for k places each; sequence i asked for `asked[i]` of them."""

    tokens: Tensor  # [n, k] int64
    confidence: Tensor  # [n, k] float32, a probability
    asked: tuple[int, ...]

    def download(self) -> "Guesses":
        return replace(self, tokens=download(self.tokens), confidence=download(self.confidence))

    def read(self) -> list[Proposed]:
        """Waits for them."""
        tokens, confidence = self.tokens.tolist(), self.confidence.tolist()
        return [
            Proposed(tuple(row[:count]), tuple(sure[:count]))
            for row, sure, count in zip(tokens, confidence, self.asked, strict=True)
        ]


class Proposer(Protocol):
    def keep(self, taps: Tensor, segment: Segment) -> None:
        """Remembers the rows of a segment; taps [rows, taps * D] is what the model passed."""
        ...

    def propose(
        self, slots: Tensor, positions: Tensor, anchors: Tensor, draws: Sequence[Draw]
    ) -> tuple[Tensor, Tensor]:
        """Tokens and confidence [n, k] for the places behind anchors [n], which follow the rows at
        positions [n]. `draws` says how the tokens of each sequence are drawn."""
        ...


class DraftProposer:
    """Draws from a draft's logits as the sampler does from the model's, with the same noise: then
    both agree most often. Penalties, bias and masks are left to the model."""

    def __init__(self, draft: Draft, rings: Sequence[Ring]) -> None:
        self._draft = draft
        self._rings = rings

    @property
    def nbytes(self) -> int:
        """Of the draft's weights."""
        return self._draft.weights.nbytes

    def keep(self, taps: Tensor, segment: Segment) -> None:
        self._draft.keep(taps, segment, self._rings)

    def propose(
        self, slots: Tensor, positions: Tensor, anchors: Tensor, draws: Sequence[Draw]
    ) -> tuple[Tensor, Tensor]:
        params = sample_params(draws, slots.device)

        def pick(logits: Tensor, place: int) -> Tensor:
            at = replace(params, position=positions + 2 + place)
            return sample(logits, at).clamp(min=0)  # no numbers: some token

        proposal = self._draft.propose(slots, positions, anchors, self._rings, pick)
        return proposal.tokens, proposal.confidence.sigmoid()


def propose(
    proposer: Proposer,
    rows: Sequence[Rows],
    draws: Sequence[Draw],
    drawn: Tensor,
    lengths: Tensor,
) -> Guesses | None:
    """What `rows`, made before given, ask for; None if nothing. `drawn` [draws] is what they drew,
    `lengths` [slots] counts all of their rows.

    Which of its draws counts is decided here as the scheduler will: the first that differs from the
    guess for its place.
    """
    device, asking, first = drawn.device, [], 0
    for one in rows:
        if one.propose:
            asking.append((one, first))
        first += one.proposed + 1 if one.sample else 0
    if not asking:
        return None
    width = max(one.proposed for one, _ in asking)
    places = upload(
        [at + min(place, one.proposed) for one, at in asking for place in range(width + 1)], device
    )
    guessed = upload([token for one, _ in asking for token in _guessed(one, width)], device)
    found = drawn[places].view(len(asking), width + 1)
    agreed = (found[:, :width] == guessed.view(len(asking), width)).long().cumprod(1).sum(1)
    anchors = found.gather(1, agreed.unsqueeze(1)).squeeze(1).clamp(min=0)
    slots = upload([one.slot for one, _ in asking], device)
    wrong = upload([one.proposed for one, _ in asking], device) - agreed
    tokens, confidence = proposer.propose(
        slots, lengths[slots] - 1 - wrong, anchors, [draws[at] for _, at in asking]
    )
    return Guesses(tokens, confidence, tuple(one.propose for one, _ in asking))


def _guessed(rows: Rows, width: int) -> tuple[int, ...]:
    """The guesses among its tokens, filled up with what cannot be drawn."""
    proposed = rows.tokens[len(rows.tokens) - rows.proposed :]
    return proposed + (-2,) * (width - rows.proposed)
