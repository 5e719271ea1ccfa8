"""Guesses at the next tokens of sequences: who makes them for a runner, and behind which of its
draws. Knows no plan and no scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from relight.engine.plan import Draw, Proposed, Rows
from relight.engine.sampler import sample_params
from relight.kernels.device import download, upload
from relight.kernels.rows import Rows as Ring
from relight.kernels.sample import FastSample, SampleParams, sample
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

    def __init__(self, draft: Draft, rings: Sequence[Ring], fast: FastSample | None = None) -> None:
        self._draft = draft
        self._rings = rings
        self._fast = fast

    @property
    def nbytes(self) -> int:
        """Of the draft's weights."""
        return self._draft.weights.nbytes

    @property
    def most(self) -> int:
        """Tokens that are guessed at once."""
        return self._draft.config.draft.block_size

    def keep(self, taps: Tensor, segment: Segment) -> None:
        self._draft.keep(taps, segment, self._rings)

    def propose(
        self, slots: Tensor, positions: Tensor, anchors: Tensor, draws: Sequence[Draw]
    ) -> tuple[Tensor, Tensor]:
        return self.draw(slots, positions, anchors, sample_params(draws, slots.device))

    def draw(
        self, slots: Tensor, positions: Tensor, anchors: Tensor, params: SampleParams
    ) -> tuple[Tensor, Tensor]:
        """The same by parameters whose positions mean nothing."""

        def pick(logits: Tensor, place: int) -> Tensor:
            at = replace(params, position=positions + 2 + place)
            return sample(logits, at, fast=self._fast).clamp(min=0)  # no numbers: some token

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
    `lengths` [slots] counts all of their rows."""
    device, asking = drawn.device, who_asks(rows)
    if not asking:
        return None
    width = max(one.proposed for one, _ in asking)
    slots, first, proposed = (
        upload(column, device)
        for column in zip(*((one.slot, at, one.proposed) for one, at in asking), strict=True)
    )
    guessed = upload([token for one, _ in asking for token in guesses_of(one, width)], device)
    anchors, positions = behind(
        slots, first, proposed, guessed.view(len(asking), width), drawn, lengths
    )
    tokens, confidence = proposer.propose(
        slots, positions, anchors, [draws[at] for _, at in asking]
    )
    return Guesses(tokens, confidence, tuple(one.propose for one, _ in asking))


def who_asks(rows: Sequence[Rows]) -> list[tuple[Rows, int]]:
    """Those that ask for guesses, and the first of their draws."""
    asking, first = [], 0
    for one in rows:
        if one.propose:
            asking.append((one, first))
        first += one.proposed + 1 if one.sample else 0
    return asking


def guesses_of(rows: Rows, width: int) -> tuple[int, ...]:
    """The guesses among its tokens, filled up with what cannot be drawn."""
    proposed = rows.tokens[len(rows.tokens) - rows.proposed :]
    return proposed + (-2,) * (width - rows.proposed)


def behind(
    slots: Tensor,
    first: Tensor,
    proposed: Tensor,
    guessed: Tensor,
    drawn: Tensor,
    lengths: Tensor,
) -> tuple[Tensor, Tensor]:
    """The anchors [n] of n sequences, which have `proposed` [n] guesses in `guessed` [n, width] and
    one draw more in `drawn` from `first` [n] on; and the positions [n] of the rows in front of
    them. Of any width it is the same.

    Which of its draws counts is decided here as the scheduler will: the first that differs from the
    guess for its place.
    """
    width = guessed.shape[1]
    place = torch.arange(width + 1, device=drawn.device)
    found = drawn[first.unsqueeze(1) + torch.minimum(place, proposed.unsqueeze(1))]
    agreed = (found[:, :width] == guessed).long().cumprod(1).sum(1)
    anchors = found.gather(1, agreed.unsqueeze(1)).squeeze(1).clamp(min=0)
    return anchors, lengths[slots] - 1 - (proposed - agreed)
