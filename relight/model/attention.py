"""The attention sublayer of V4: sliding window, CSA (compressed, selected) and HCA (compressed,
dense). Knows no residual stream, no allocator and no request.

It differs from the classic in five ways: one KV head whose 512-dim row is key and value at once;
queries through a low-rank bottleneck shared with the indexer; RoPE on the *last* 64 dims, taken off
the output again by the inverse rotation at the query's position; a sink logit per head; and keys
that are the last 128 tokens plus entries that stand for 4 or 128 tokens each.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

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
    entry_addresses,
    pad_keys,
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
    listed: dict[int, Tensor] = field(default_factory=dict)  # by ratio; see `every`

    def every(self, segment: Segment, ratio: int) -> Tensor:
        """The places of all entries that each row sees [rows, keys]. Those of made rows are kept
        for later layers; of given rows they are long, and made anew."""
        if ratio in self.listed:
            return self.listed[ratio]
        found = all_entries(segment, self.entries[ratio])
        if segment.family == "step":
            self.listed[ratio] = found
        return found


def addresses(config: ModelConfig, segment: Segment) -> Addresses:
    rings = ring_addresses(segment, window_ring_rows(config), config.window - 1)
    ratios = sorted({layer.ratio for layer in config.layers if layer.ratio})
    return Addresses(
        rings,
        window_keys(segment, rings, config.window),
        {r: ring_addresses(segment, partial_ring_rows(r), history_rows(r)) for r in ratios},
        {r: entry_addresses(segment, r) for r in ratios},
    )


@dataclass(frozen=True, slots=True)
class Asker:
    """What selects entries: queries of a few heads, and a weight for each of them."""

    wq_b: Weight  # [index_heads * index_dim, q_lora]
    weights_proj: Weight  # [index_heads, D]


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
        self.compressor = self.index_compressor = self.asker = None
        if weights.compressor:
            self.compressor = Compressor(weights.compressor, layer.ratio, eps, numerics, ops)
        if weights.indexer:
            self.asker = Asker(weights.indexer.wq_b, weights.indexer.weights_proj)
            self.index_compressor = Compressor(
                weights.indexer.compressor, layer.ratio, eps, numerics, ops
            )

    def forward(
        self,
        x: Tensor,
        segment: Segment,
        where: Addresses,
        state: LayerState,
        late: Callable[[], None],
    ) -> Tensor:
        """x [rows, D], normed -> [rows, D]. `late`: what is to be done meanwhile."""

        def listed(asked: index.Asked | None) -> Tensor | None:
            return self._listed(asked, segment, where)

        return self._attended(x, segment, where, state, listed, late)

    def _attended(
        self,
        x: Tensor,
        segment: Segment,
        where: Addresses,
        state: LayerState,
        listed: Callable[[index.Asked | None], Tensor | None],
        late: Callable[[], None],
    ) -> Tensor:
        """`listed` gives the places of the entries that each row attends to, or None where no
        sequence of the segment has any.

        What rows leave behind hangs on x alone and is needed by attention, index keys and weights
        by the selection, the queries of heads behind it.
        """
        ops, asker = self.ops.of(segment.family), self._asking(where)

        def keys() -> Rows:
            window = self._window(x, segment, where, state)
            self._store_entries(x, segment, where, state)
            return window

        def index_keys() -> None:
            self._store_index_keys(x, segment, where, state)

        def index_weights() -> Tensor | None:
            return self._index_weights(asker, x, segment) if asker else None

        def queries() -> Tensor:
            return self._queries(latent, segment)

        with ops.branches() as beside:
            keyed = beside.begin("index keys" if self.index_compressor else None, index_keys)
            weighed = beside.begin("index weights" if asker else None, index_weights)
            kept = beside.begin("keys", keys)
            beside.begin("balance", late)
            latent = self._linear(x, self.weights.wq_a, segment)
            latent = self.vectors.norm(latent, self.weights.q_norm, segment, self.weights.wq_b)
            placed = beside.begin("queries" if asker else None, queries)
            asked = None
            if asker:
                asked_by = self._index_queries(asker, latent, segment)
                keyed()
                if self.index_compressor is None:
                    kept()  # index keys are among what it stores
                asked = self._asked(asked_by, weighed(), segment, where, state)
            entries = listed(asked)
            q, window = placed(), kept()
            out = attend(
                q,
                Keys(window, where.window_index, state.compressed, entries),
                self.weights.sink,
                self.config.head_dim**-0.5,
                segment.family,
                self.boundary,
                ops.attend,
                self.vectors.back(segment),
            )
            out = out.reshape(out.shape[0], self.config.o_groups, -1)
            out = grouped(out, self.weights.wo_a, segment.family, self.boundary)
            return self._linear(out.flatten(1), self.weights.wo_b, segment)

    def _queries(self, latent: Tensor, segment: Segment) -> Tensor:
        """[rows, H, d] of the low-rank latent [rows, r], as they meet keys."""
        q = self._linear(latent, self.weights.wq_b, segment)
        return self._placed(q.view(-1, self.config.num_heads, self.config.head_dim), segment)

    def _placed(self, q: Tensor, segment: Segment) -> Tensor:
        return self.vectors.queries(q, segment)

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

    def _store_entries(
        self, x: Tensor, segment: Segment, where: Addresses, state: LayerState
    ) -> None:
        """Stores the entries that close in this segment, if the layer makes any."""
        if self.compressor is None:
            return
        ratio, given = self.layer.ratio, (self.frequencies, self.boundary)
        entries, rings = where.entries[ratio], where.partial_rings[ratio]
        assert state.compressed is not None
        assert state.partial is not None
        self.compressor.store(x, segment, state.partial, rings, entries, state.compressed, *given)

    def _store_index_keys(
        self, x: Tensor, segment: Segment, where: Addresses, state: LayerState
    ) -> None:
        """Stores their index keys, if a compressor of its own makes them."""
        if self.index_compressor is None:
            return
        ratio, given = self.layer.ratio, (self.frequencies, self.boundary)
        entries, rings = where.entries[ratio], where.partial_rings[ratio]
        assert state.index_partial is not None
        assert state.keys is not None
        # Orthonormal on both sides: without rounding it cancels.
        turned, places = self.numerics.quantised, (state.index_partial, rings, entries, state.keys)
        self.index_compressor.store(x, segment, *places, *given, turned=turned)

    def _listed(
        self, asked: index.Asked | None, segment: Segment, where: Addresses
    ) -> Tensor | None:
        """The places of the entries that each row attends to, or None where no sequence of the
        segment has any."""
        ratio = self.layer.ratio
        if not ratio or not where.entries[ratio].places.shape[1]:
            return None
        if asked is None:
            return where.every(segment, ratio)
        fast = self.ops.of(segment.family).index
        chosen = index.select(asked, self.config.index_topk, fast, placed=True)
        return pad_keys(chosen[:, : where.entries[ratio].places.shape[1]])

    def _sees_all(self, entries: EntryAddresses) -> bool:
        """Whether no row sees more entries than would be selected."""
        return entries.places.shape[1] <= self.config.index_topk

    def _asking(self, where: Addresses) -> Asker | None:
        """What the rows of this layer select entries by; None where they do not: where there are
        none, or no more than each row may read."""
        if self.asker is None:
            return None
        entries = where.entries[self.layer.ratio]
        return self.asker if entries.places.shape[1] and not self._sees_all(entries) else None

    def _asked(
        self,
        q: Tensor,
        weights: Tensor | None,
        segment: Segment,
        where: Addresses,
        state: LayerState,
    ) -> index.Asked:
        entries = where.entries[self.layer.ratio]
        assert weights is not None
        assert state.keys is not None
        return index.Asked(
            q,
            weights,
            state.keys,
            entries.places,
            segment.counts,
            segment.sequence,
            entries.visible,
            segment.family,
        )

    def _index_queries(self, asker: Asker, latent: Tensor, segment: Segment) -> Tensor:
        """[rows, h, d] of the indexer's heads, as they meet keys."""
        q = self._linear(latent, asker.wq_b, segment)
        q = q.view(-1, self.config.index_heads, self.config.index_dim)
        if self.numerics.quantised:
            q = self.vectors.index_queries(q, segment, turned=self.index_compressor is not None)
        else:
            q = self.vectors.rotate(q, segment)
        return q.float()

    def _index_weights(self, asker: Asker, x: Tensor, segment: Segment) -> Tensor:
        """[rows, h] of the indexer's heads, float32."""
        weights = self._linear(x, asker.weights_proj, segment)
        scale = (self.config.index_dim * self.config.index_heads) ** -0.5
        # One launch: the product is rounded to the boundary, and is float32 then.
        return torch.mul(weights, scale, out=torch.empty_like(weights, dtype=torch.float32))

    def _linear(self, x: Tensor, weight: Weight, segment: Segment) -> Tensor:
        return linear(x, weight, segment.family, self.numerics.quantised, self.boundary)
