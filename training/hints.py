"""What inner layers of V4.1 are taught besides, about tools: at the words that say what one does,
the first token of its name, which stands before them; and where a name is to be said, these words,
and to look at them. Knows no network.

A request tells a tool by what it does, so whoever looks that up must find the name there. An entry
of one token holds it only if a layer below has fetched it, and a layer has no reason to fetch what
no layer above looks for, nor to look where nothing is held: without help neither was learnt in
3,000 steps, and with the first half alone neither.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from relight.text.tokenizer import Tokenizer

NONE = -100
"""Where nothing is taught: what `cross_entropy` ignores."""

WORDS = 5
"""Tokens of a description: `Finds the demand of silk`."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Tokens before a tool's name and before its description."""

    name: int
    description: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Marks":
        ids = [tokenizer.encode_text(text) for text in ('{"name": "', '", "description": "')]
        assert [len(some) for some in ids] == [1, 1]
        return cls(ids[0][0], ids[1][0])


def first_of_name(ids: Tensor, marks: Marks) -> Tensor:
    """ids [B, T] -> [B T]: at each word of a description the token that its tool's name begins
    with, elsewhere NONE."""
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    opened, described = (
        torch.where(ids == mark, place, -1).cummax(dim=1).values
        for mark in (marks.name, marks.description)
    )
    since = place - described
    taught = (opened >= 0) & (described > opened) & (since > 0) & (since <= WORDS)
    first = ids.gather(1, (opened + 1).clamp(max=ids.shape[1] - 1))
    return torch.where(taught, first, NONE).flatten()


def sought(ids: Tensor, hints: Tensor, answers: Tensor) -> Tensor:
    """ids [B, T + 1], hints [B T] and whether the token behind each is an answer [B T] ->
    [B, T, T]: which words tell the name that begins behind a token."""
    b, t = ids.shape[0], ids.shape[1] - 1
    behind = torch.where(answers.view(b, t), ids[:, 1:], NONE - 1)
    return behind.unsqueeze(2) == hints.view(b, 1, t)


def not_looking(shares: Tensor, wanted: Tensor) -> Tensor:
    """Cross entropy of one head's shares of attention [B, T, E] to the `wanted` [B, T, T], E >= T,
    together, over the tokens that want any."""
    mass = (shares[..., : wanted.shape[2]].float() * wanted).sum(-1)
    some = wanted.any(-1)
    return -(mass.clamp(min=1e-5).log() * some).sum() / some.sum().clamp(min=1)


def not_known(said: Tensor, ids: Tensor, wanted: Tensor) -> Tensor:
    """Cross entropy of what is `said` [B T, V], log-probabilities, to the words ids [B, T] that are
    `wanted` [B, T, T] there, each as likely."""
    b, t = ids.shape
    each = said.view(b, t, -1).gather(2, ids.unsqueeze(1).expand(b, t, t))
    return -(each * wanted).sum() / wanted.sum().clamp(min=1)
