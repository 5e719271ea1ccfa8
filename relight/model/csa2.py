"""The attention sublayer of V4.1: sliding window, and compressed entries that layers share. Knows
no residual stream, no allocator and no request.

A full layer makes entries and index keys and selects among them, a reindex layer selects anew among
those of its source, a reuse layer reads what its sources hold and chose. The last full layer also
publishes candidate blocks, inside which later layers select.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from relight.base.numerics import Numerics
from relight.base.specs import LayerSpec, ModelConfig
from relight.kernels import index
from relight.kernels.row_ops import NO_KERNELS, Ops
from relight.model.addresses import EntryAddresses, pad_keys
from relight.model.attention import Addresses, Asker, Attention
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
        if self.queries:
            self.asker = Asker(self.queries.wq_b, self.queries.weights_proj)
        self.pooled = None
        if self.source and self.source.pooled:
            eps = config.rms_norm_eps
            self.pooled = Compressor(self.source.pooled, layer.ratio, eps, numerics, ops)

    def share(
        self,
        x: Tensor,
        segment: Segment,
        where: Addresses,
        state: LayerState,
        shared: Shared,
        late: Callable[[], None],
    ) -> Tensor:
        """x [rows, D], normed -> [rows, D]. Unlike V4's, queries are not normed head by head."""

        def listed(asked: index.Asked | None) -> Tensor | None:
            return self._published(asked, segment, where, shared)

        return self._attended(x, segment, where, state, listed, late)

    def _placed(self, q: Tensor, segment: Segment) -> Tensor:
        return self.vectors.rotate(q, segment)

    def remember(self, x: Tensor, segment: Segment, where: Addresses, state: LayerState) -> None:
        """Stores what `share` would, for rows x [rows, D] whose output nobody reads."""
        self._window(x, segment, where, state)
        self._store_entries(x, segment, where, state)

    def _published(
        self, asked: index.Asked | None, segment: Segment, where: Addresses, shared: Shared
    ) -> Tensor | None:
        """The places of the entries that each row attends to, by this layer or by its source, or
        None where no sequence has any."""
        if self.layer.index_source is None:
            return None
        if self.queries is not None:
            entries, places = where.entries[self.layer.ratio], None
            if asked is not None:
                chosen = self._chosen(asked, segment, shared)
                places = pad_keys(chosen[:, : entries.places.shape[1]])
            elif entries.places.shape[1]:
                places = where.every(segment, self.layer.ratio)
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
        if source is None:
            return
        entries = where.entries[ratio]
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

    def _chosen(self, asked: index.Asked, segment: Segment, shared: Shared) -> Tensor:
        """The places of the top-k entries of each row [rows, k], -1 behind."""
        k, blocks = self.config.index_topk, self.config.candidates
        fast = self.ops.of(segment.family).index
        assert blocks is not None
        if self.layer.index < blocks.source:
            return index.select(asked, k, fast, placed=True)
        if self.layer.index == blocks.source:
            chosen, shared.candidates = index.select_and_publish(
                asked, k, blocks.block_size, blocks.topk_blocks, fast, placed=True
            )
            return chosen
        assert shared.candidates is not None
        among = (shared.candidates, k, blocks.block_size, fast)
        return index.select_within(asked, *among, placed=True)
