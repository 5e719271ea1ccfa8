"""What an inner layer of V4.1 is taught besides: at the words that say what a tool does, the first
token of its name, which stands before them. Knows no network.

A request tells a tool by these words, so whoever looks them up must find the name there. An entry
of one token holds it only if a layer below has fetched it, and a layer has no reason to fetch what
no layer above looks for yet: without help neither was learnt in 3,000 steps.
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
