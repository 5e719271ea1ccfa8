"""Engram over cached state: which n-grams end at each row, and what they add to the streams. Knows
no attention.

A sequence's last token ids lie in a ring, so that n-grams reach back across chunks and prefixes,
and a rewind is setting a length, as for all state.
"""

from functools import partial

import torch
from torch import Tensor

from relight.base.numerics import Numerics
from relight.base.specs import ModelConfig
from relight.cache.layout import token_ring_rows
from relight.kernels import engram
from relight.kernels.linear import linear
from relight.kernels.row_ops import NO_KERNELS, Ops
from relight.model.addresses import NO_KEY, RingAddresses, ring_addresses
from relight.model.inputs import Segment
from relight.model.ngram_table import Values
from relight.model.weights_v41 import EngramWeights


def store_tokens(config: ModelConfig, segment: Segment, ring: Tensor, classes: Tensor) -> Tensor:
    """Stores the segment's token ids in ring [slots, rows]; returns the classes of each row's token
    and of those before it, own first [rows, N]. Those before the start are the padding's."""
    assert config.engram is not None
    back = config.engram.max_ngram - 1
    rings = ring_addresses(segment, token_ring_rows(config), back)
    source = _source(segment, ring, rings)
    positions = segment.positions.unsqueeze(1) - torch.arange(back + 1, device=ring.device)
    at = rings.source(segment, segment.sequence, positions)
    tokens = source[at.clamp(min=0)].masked_fill(at == NO_KEY, config.engram.pad_token_id)
    return classes[tokens]


def _source(segment: Segment, ring: Tensor, rings: RingAddresses) -> Tensor:
    """What places of `rings.source` point into, flat."""
    length = ring.shape[1]
    past = None
    if rings.past is not None:
        past = ring[rings.past // length, rings.past % length]
    ring[rings.places // length, rings.places % length] = segment.token_ids[rings.kept]
    return ring.flatten() if past is None else torch.cat([past, segment.token_ids])


class Ngrams:
    """One layer's table."""

    def __init__(
        self,
        config: ModelConfig,
        weights: EngramWeights,
        numerics: Numerics,
        boundary: torch.dtype,
        ops: Ops = NO_KERNELS,
    ) -> None:
        self.config = config
        self.weights = weights
        self.numerics = numerics
        self.boundary = boundary
        self.ops = ops

    def recall(self, classes: Tensor, segment: Segment) -> Values:
        """Begins to bring the table's rows for the classes [rows, N]: they hang on the token ids
        alone, so they may come while the layers before run."""
        w, fast = self.weights, self.ops.of(segment.family).engram
        rows = engram.table_rows(classes, w.factors, w.primes, fast)
        return w.table.fetch(rows, partial(engram.gather, boundary=self.boundary, fast=fast))

    def forward(self, streams: Tensor, recalled: Values, segment: Segment) -> Tensor:
        """streams [rows, hc, D] -> the streams with what was remembered. Raises BadCheckpoint if
        rows could not be read."""
        w, family, eps = self.weights, segment.family, self.config.rms_norm_eps
        values = recalled()  # [rows, C * d_e]
        mapped = linear(values, w.wkv, family, self.numerics.quantised, self.boundary)
        fast = self.ops.of(family).engram
        return engram.gate(streams, mapped, w.gain, eps, self.boundary, fast)
