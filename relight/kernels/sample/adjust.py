"""The definition of what changes logits before a draw: penalties, bias, bans, mask. Every step is
elementwise, so a row does not depend on the rows beside it."""

import torch
from torch import Tensor

NEVER = float("-inf")
BYTE_BITS = 8


def penalise(
    logits: Tensor, counts: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    """logits [n, V] of tokens that were made `counts` [n, V] times; each penalty is [n].

    Repetition (Keskar et al. 2019, CTRL) divides a positive logit and multiplies another one.
    Frequency is subtracted for every time that a token was made, presence once.
    """
    made = counts > 0
    factor = repetition.unsqueeze(1)
    repeated = torch.where(logits > 0, logits / factor, logits * factor)
    logits = torch.where(made, repeated, logits)
    logits = logits - counts * frequency.unsqueeze(1)
    return logits - made * presence.unsqueeze(1)


def add_bias(logits: Tensor, row: Tensor, token: Tensor, value: Tensor) -> Tensor:
    """Adds value [m] at (row, token) [m], every place once."""
    logits = logits.clone()
    logits[row, token] += value
    return logits


def ban(logits: Tensor, row: Tensor, token: Tensor) -> Tensor:
    """Nothing is drawn at (row, token) [m]. A number that is assigned to places of a CUDA tensor
    comes from the host by a copy that is waited for; one that fills a tensor does not."""
    return logits.index_put((row, token), logits.new_full((), NEVER))


def allow(logits: Tensor, words: Tensor) -> Tensor:
    """Only tokens whose bit is set are drawn: token t has bit t % 32 of words [n, ceil(V / 32)]
    int32 at t // 32.

    Eight tokens at a time are looked up by their byte and added: on a CPU a fill by a mask branches
    at every token, and took ten times as long.
    """
    bits = torch.arange(BYTE_BITS, dtype=torch.uint8, device=logits.device)
    each = torch.arange(2**BYTE_BITS, dtype=torch.uint8, device=logits.device)
    added = torch.where((each.unsqueeze(1) >> bits & 1).bool(), 0.0, NEVER)  # [256, 8]
    rows, octets = len(words), words.contiguous().view(torch.uint8).flatten().int()
    bias = added.index_select(0, octets).view(rows, words.shape[1] * 32)
    return logits + bias[:, : logits.shape[1]]
