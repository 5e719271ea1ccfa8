"""The attention sublayer of V4.1: sliding window, and compressed entries that layers share. Knows
no residual stream, no allocator and no request.

A full layer makes entries and index keys and selects among them, a reindex layer selects anew among
those of its source, a reuse layer reads what its sources hold and chose. The last full layer also
publishes candidate blocks, inside which later layers select.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from relight.base.numerics import Numerics
from relight.base.specs import LayerSpec, ModelConfig
from relight.kernels import index
from relight.kernels.attend import Keys, attend
from relight.kernels.linear import grouped
from relight.kernels.row_ops import NO_KERNELS, Ops
from relight.model.addresses import EntryAddresses, all_entries, chosen_entries
from relight.model.attention import Addresses, Attention
from relight.model.compressor import Compressor
from relight.model.inputs import Segment
from relight.model.state import LayerState
from relight.model.weights_v41 import LayerWeightsV41


@dataclass(slots=True)
class Shared:
    """What layers have published so far in one forward pass."""

    places: dict[int, Tensor | None] = field(default_factory=dict)
    """By index source: the places that each row attends to, None where there is no entry."""
    candidates: Tensor | None = None  # [rows, blocks]


class Csa2(Attention):
    """One layer's attention. `forward` stores what the segment's rows leave behind."""

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerSpec,
        weights: LayerWeightsV41,
        numerics: Numerics,
        boundary: torch.dtype,
        ops: Ops = NO_KERNELS,
    ) -> None:
        super().__init__(config, layer, weights.attention, numerics, boundary, ops)
        self.source, self.queries = weights.source, weights.queries
        self.pooled = None
        if self.source and self.source.pooled:
            eps = config.rms_norm_eps
            self.pooled = Compressor(self.source.pooled, layer.ratio, eps, numerics, ops)

    def share(
        self, x: Tensor, segment: Segment, where: Addresses, state: LayerState, shared: Shared
    ) -> Tensor:
        """x [rows, D], normed -> [rows, D]. Unlike V4's, queries are not normed head by head."""
        w, c = self.weights, self.config
        low_rank = self.vectors.norm(self._linear(x, w.wq_a, segment), w.q_norm, segment)
        q = self._linear(low_rank, w.wq_b, segment).view(-1, c.num_heads, c.head_dim)
        q = self.vectors.rotate(q, segment)
        window = self._window(x, segment, where, state)
        entries = self._places(x, low_rank, segment, where, state, shared)
        out = attend(
            q,
            Keys(window, where.window_index, state.compressed, entries),
            w.sink,
            c.head_dim**-0.5,
            segment.family,
            self.boundary,
            self.ops.of(segment.family).attend,
        )
        out = self.vectors.rotate(out, segment, inverse=True)
        out = out.reshape(out.shape[0], c.o_groups, -1)
        out = grouped(out, w.wo_a, segment.family, self.boundary)
        return self._linear(out.flatten(1), w.wo_b, segment)

    def remember(self, x: Tensor, segment: Segment, where: Addresses, state: LayerState) -> None:
        """Stores what `share` would, for rows x [rows, D] whose output nobody reads."""
        self._window(x, segment, where, state)
        if self.source is not None:
            self._store_entries(x, segment, where, state)

    def _places(
        self,
        x: Tensor,
        low_rank: Tensor,
        segment: Segment,
        where: Addresses,
        state: LayerState,
        shared: Shared,
    ) -> Tensor | None:
        """Stores the entries that close in this segment, if the layer makes any; returns the places
        of those that each row attends to, or None where no sequence has any."""
        if self.layer.index_source is None:
            return None
        entries = where.entries[self.layer.ratio]
        if self.source is not None:
            self._store_entries(x, segment, where, state)
        if self.queries is not None:
            places = None
            if entries.places.shape[1] and self._sees_all(entries):
                places = all_entries(segment, entries)
            elif entries.places.shape[1]:
                chosen = self._choose(x, low_rank, segment, entries, state, shared)
                places = chosen_entries(segment, entries, chosen)
            shared.places[self.layer.index] = places
        return shared.places[self.layer.index_source]

    def _sees_all(self, entries: EntryAddresses) -> bool:
        """The candidate source selects all the same: it publishes blocks, which it must score."""
        candidates = self.config.candidates
        assert candidates is not None
        return self.layer.index != candidates.source and super()._sees_all(entries)

    def _store_entries(
        self, x: Tensor, segment: Segment, where: Addresses, state: LayerState
    ) -> None:
        """Rows and index keys of the same latent; the keys are made before it is rotated."""
        source, ratio, vectors = self.source, self.layer.ratio, self.vectors
        entries = where.entries[ratio]
        assert source is not None
        assert state.compressed is not None
        assert state.keys is not None
        if self.pooled is not None:
            assert state.partial is not None
            rings = where.partial_rings[ratio]
            latent = self.pooled.forward(x, segment, state.partial, rings, entries, self.boundary)
        else:  # an entry a token: groups are the rows themselves
            assert source.single is not None
            latent = self._linear(x, source.single, segment)
            latent = vectors.norm(latent, source.norm, segment)
        places, first = entries.group_place, entries.group_entry * ratio
        key = self._linear(latent, source.wk, segment)
        vectors.keep(key, source.key_norm, segment, state.keys, places, first)
        vectors.keep(latent, None, segment, state.compressed, places, first)

    def _choose(
        self,
        x: Tensor,
        low_rank: Tensor,
        segment: Segment,
        entries: EntryAddresses,
        state: LayerState,
        shared: Shared,
    ) -> Tensor:
        """The top-k entries of each row [rows, k], ascending, -1 behind."""
        c, queries, blocks = self.config, self.queries, self.config.candidates
        assert queries is not None
        assert blocks is not None
        assert state.keys is not None
        q = self._linear(low_rank, queries.wq_b, segment).view(-1, c.index_heads, c.index_dim)
        if self.numerics.quantised:
            q = self.vectors.index_queries(q, segment, turned=False)
        else:
            q = self.vectors.rotate(q, segment)
        weights = self._linear(x, queries.weights_proj, segment)
        weights = weights * (c.index_dim * c.index_heads) ** -0.5
        asked = self._asked(q, weights, segment, entries, state.keys)
        k, size, fast = c.index_topk, blocks.block_size, self.ops.of(segment.family).index
        if self.layer.index < blocks.source:
            return index.select(asked, k, fast)
        if self.layer.index == blocks.source:
            chosen, shared.candidates = index.select_and_publish(
                asked, k, size, blocks.topk_blocks, fast
            )
            return chosen
        assert shared.candidates is not None
        return index.select_within(asked, shared.candidates, k, size, fast)
