"""The attention sublayer of V4: sliding window, CSA (compressed, selected) and HCA (compressed,
dense). Knows no residual stream, no allocator and no request.

It differs from the classic in five ways: one KV head whose 512-dim row is key and value at once;
queries through a low-rank bottleneck shared with the indexer; RoPE on the *last* 64 dims, taken off
the output again by the inverse rotation at the query's position; a sink logit per head; and keys
that are the last 128 tokens plus entries that stand for 4 or 128 tokens each.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from relight.base.config import LayerSpec, ModelConfig
from relight.base.numerics import Numerics
from relight.cache.layout import partial_ring_rows, window_ring_rows
from relight.kernels import index, store
from relight.kernels.attend import Keys, attend
from relight.kernels.codec import Weight
from relight.kernels.linear import grouped, linear
from relight.kernels.rope import frequencies
from relight.kernels.row_ops import NO_KERNELS, Ops
from relight.kernels.rows import Rows
from relight.model.addresses import (
    EntryAddresses,
    RingAddresses,
    all_entries,
    chosen_entries,
    entry_addresses,
    ring_addresses,
    window_keys,
)
from relight.model.compressor import Compressor, history_rows
from relight.model.inputs import Segment
from relight.model.state import LayerState
from relight.model.vectors import Vectors
from relight.model.weights import AttentionWeights


@dataclass(frozen=True, slots=True)
class Addresses:
    """Places of a segment's rows for every kind of state; the same for all layers of a ratio."""

    rings: RingAddresses
    window_index: Tensor
    partial_rings: dict[int, RingAddresses]
    entries: dict[int, EntryAddresses]


def addresses(config: ModelConfig, segment: Segment) -> Addresses:
    rings = ring_addresses(segment, window_ring_rows(config), config.window - 1)
    ratios = sorted({layer.ratio for layer in config.layers if layer.ratio})
    return Addresses(
        rings,
        window_keys(segment, rings, config.window),
        {r: ring_addresses(segment, partial_ring_rows(r), history_rows(r)) for r in ratios},
        {r: entry_addresses(segment, r) for r in ratios},
    )


class Attention:
    """One layer's attention. `forward` stores what the segment's rows leave behind."""

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerSpec,
        weights: AttentionWeights,
        numerics: Numerics,
        boundary: torch.dtype,
        ops: Ops = NO_KERNELS,
    ) -> None:
        self.config = config
        self.layer = layer
        self.weights = weights
        self.numerics = numerics
        self.boundary = boundary
        self.ops = ops
        theta, scaling = config.rope_theta, None
        if layer.ratio:
            theta, scaling = config.compress_rope_theta, config.rope_scaling
        device = weights.sink.device
        self.frequencies = frequencies(theta, config.rope_dim, scaling).to(device)
        eps = config.rms_norm_eps
        self.vectors = Vectors(self.frequencies, eps, boundary, ops)
        self.compressor = self.index_compressor = None
        if weights.compressor:
            self.compressor = Compressor(weights.compressor, layer.ratio, eps, numerics, ops)
        if weights.indexer:
            self.index_compressor = Compressor(
                weights.indexer.compressor, layer.ratio, eps, numerics, ops
            )

    def forward(self, x: Tensor, segment: Segment, where: Addresses, state: LayerState) -> Tensor:
        """x [rows, D], normed -> [rows, D]."""
        w = self.weights
        low_rank = self.vectors.norm(self._linear(x, w.wq_a, segment), w.q_norm, segment)
        q = self._linear(low_rank, w.wq_b, segment)
        q = q.view(-1, self.config.num_heads, self.config.head_dim)
        q = self.vectors.queries(q, segment)
        window = self._window(x, segment, where, state)
        entries = self._entries(x, low_rank, segment, where, state)
        out = attend(
            q,
            Keys(window, where.window_index, state.compressed, entries),
            w.sink,
            self.config.head_dim**-0.5,
            segment.family,
            self.boundary,
            self.ops.of(segment.family).attend,
        )
        out = self.vectors.rotate(out, segment, inverse=True)
        groups = self.config.o_groups
        out = grouped(out.reshape(out.shape[0], groups, -1), w.wo_a, segment.family, self.boundary)
        return self._linear(out.flatten(1), w.wo_b, segment)

    def _window(self, x: Tensor, segment: Segment, where: Addresses, state: LayerState) -> Rows:
        """Stores the window rows of the segment; returns what `window_index` points into."""
        norm, rings = self.weights.kv_norm, where.rings
        kv = self._linear(x, self.weights.wkv, segment)
        if rings.past is None:
            self.vectors.keep(kv, norm, segment, state.window, rings.places)
            return state.window
        fast = self.ops.of(segment.family).store
        scratch = Rows.empty(state.window.format, rings.past.shape[0] + kv.shape[0], kv.device)
        past, new = torch.arange(scratch.count, device=kv.device).split(
            [rings.past.shape[0], kv.shape[0]]
        )
        store.copy(state.window, rings.past, scratch, past, fast)
        self.vectors.keep(kv, norm, segment, scratch, new)
        store.copy(scratch, new[rings.kept], state.window, rings.places, fast)
        return scratch

    def _entries(
        self, x: Tensor, low_rank: Tensor, segment: Segment, where: Addresses, state: LayerState
    ) -> Tensor | None:
        """Stores the entries that close in this segment; returns the places of those that each row
        attends to, or None where no sequence of the segment has any."""
        if self.compressor is None:
            return None
        ratio = self.layer.ratio
        entries, rings = where.entries[ratio], where.partial_rings[ratio]
        assert state.compressed is not None
        assert state.partial is not None
        places = (state.partial, rings, entries, state.compressed)
        self.compressor.store(x, segment, *places, self.frequencies, self.boundary)
        if self.index_compressor is not None:
            self._index_keys(x, segment, where, state)
        if not entries.places.shape[1]:
            return None
        if self.index_compressor is None or self._sees_all(entries):
            return all_entries(segment, entries)
        return chosen_entries(segment, entries, self._select(x, low_rank, segment, entries, state))

    def _sees_all(self, entries: EntryAddresses) -> bool:
        """Whether no row sees more entries than would be selected."""
        return entries.places.shape[1] <= self.config.index_topk

    def _index_keys(self, x: Tensor, segment: Segment, where: Addresses, state: LayerState) -> None:
        ratio = self.layer.ratio
        entries, rings = where.entries[ratio], where.partial_rings[ratio]
        assert self.index_compressor is not None
        assert state.index_partial is not None
        assert state.keys is not None
        places = (state.index_partial, rings, entries, state.keys)
        # Orthonormal on both sides: without rounding it cancels.
        turned = self.numerics.quantised
        self.index_compressor.store(
            x, segment, *places, self.frequencies, self.boundary, turned=turned
        )

    def _select(
        self,
        x: Tensor,
        low_rank: Tensor,
        segment: Segment,
        entries: EntryAddresses,
        state: LayerState,
    ) -> Tensor:
        """The top-k entries of each row [rows, k], ascending, -1 behind."""
        config, indexer = self.config, self.weights.indexer
        assert indexer is not None
        assert state.keys is not None
        q = self._linear(low_rank, indexer.wq_b, segment)
        q = q.view(-1, config.index_heads, config.index_dim)
        if self.numerics.quantised:
            q = self.vectors.index_queries(q, segment, turned=True)
        else:
            q = self.vectors.rotate(q, segment)
        scale = (config.index_dim * config.index_heads) ** -0.5
        weights = self._linear(x, indexer.weights_proj, segment) * scale
        asked = self._asked(q, weights, segment, entries, state.keys)
        return index.select(asked, config.index_topk, self.ops.of(segment.family).index)

    def _asked(
        self, q: Tensor, weights: Tensor, segment: Segment, entries: EntryAddresses, keys: Rows
    ) -> index.Asked:
        """What the rows' queries q [rows, h, d] and weights [rows, h] of their heads ask."""
        return index.Asked(
            q.float(),
            weights.float(),
            keys,
            entries.places,
            segment.counts,
            segment.sequence,
            entries.visible,
            segment.family,
        )

    def _linear(self, x: Tensor, weight: Weight, segment: Segment) -> Tensor:
        return linear(x, weight, segment.family, self.numerics.quantised, self.boundary)
