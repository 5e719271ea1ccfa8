"""Engram in plain torch: which rows of an n-gram table a token reads, and how much of them a stream
takes. Knows no layer's other tensors and no tokenizer.

A token's n-gram of order n is the classes of itself and the n - 1 tokens before it.
"""

import torch
from torch import Tensor

from relight.base.engram import multipliers, table_primes
from relight.base.specs import LayerSpec, ModelConfig
from relight.model.reference_parts import unit_rms

LEAST_DOT = 1e-6
"""Below this size a dot gates as if it were so large."""


class NgramHashes:
    """`token_classes` [vocab] int64 is what the tokenizer's map makes of each id."""

    def __init__(self, config: ModelConfig, token_classes: Tensor) -> None:
        assert config.engram is not None
        tables = [layer.index for layer in config.layers if layer.engram_rows]
        self._classes = token_classes
        self._pad = token_classes[config.engram.pad_token_id]
        self._multipliers = {index: multipliers(config.engram, index) for index in tables}
        primes = table_primes(config.engram, len(tables))
        self._primes = dict(zip(tables, primes, strict=True))

    def rows(self, layer: LayerSpec, ids: Tensor) -> Tensor:
        """Of ids [B, T]: rows of the layer's table [B, T, columns], by order, then by head."""
        return ngram_rows(
            self._classes[ids], self._pad, self._multipliers[layer.index], self._primes[layer.index]
        )


def ngram_rows(
    classes: Tensor,
    pad: Tensor,
    factors: tuple[int, ...],
    primes: tuple[tuple[int, ...], ...],
) -> Tensor:
    """classes [B, T] int64 → [B, T, columns]. Each hash has a run of rows as long as its prime. The
    classes before the first are `pad`. Products stay below 2^63."""
    length, back = classes.shape[-1], len(factors) - 1
    padded = torch.cat([pad.expand(*classes.shape[:-1], back), classes], dim=-1)
    mixed = classes * factors[0]
    columns, offset = [], 0
    for order, sizes in enumerate(primes, start=1):
        start = back - order
        mixed = mixed ^ padded[..., start : start + length] * factors[order]
        for size in sizes:
            columns.append(mixed % size + offset)
            offset += size
    return torch.stack(columns, dim=-1)


def gated(streams: Tensor, keys: Tensor, value: Tensor, gain: Tensor, eps: float) -> Tensor:
    """What each stream [B, T, S, D] takes of `value` [B, T, D]: as much as it agrees with its key
    [B, T, S, D], both of unit size and weighed by `gain` [S, D]."""
    dots = (unit_rms(streams, eps) * unit_rms(keys, eps) * gain).sum(dim=-1)
    dots = dots * streams.shape[-1] ** -0.5
    gates = torch.sigmoid(dots.abs().clamp(min=LEAST_DOT).sqrt().copysign(dots))
    return gates.unsqueeze(-1) * value.unsqueeze(-2)
