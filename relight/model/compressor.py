"""Pools `ratio` tokens into one entry: the compressor of CSA and HCA layers, and of index keys.
Knows no attention.

Raw rows (values and gates of a token, float32) lie in a ring until their group closes. Ratio 4
overlaps: a token gives its A half to the next group and its B half to its own, so an entry is
pooled from 8 rows, 4 of them one group back; the other ratios have one half.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from relight.base.numerics import Numerics
from relight.cache.layout import OVERLAP_RATIO
from relight.kernels import store
from relight.kernels.compress import pool
from relight.kernels.compress.rows import Groups, Own, Raw
from relight.kernels.linear import linear
from relight.kernels.quant import hadamard
from relight.kernels.rope import rotate
from relight.kernels.row_ops import NO_KERNELS, Ops
from relight.kernels.rows import Rows
from relight.model.addresses import EntryAddresses, RingAddresses
from relight.model.inputs import Segment
from relight.model.weights import CompressorWeights

Found = TypeVar("Found")

Source = Callable[[Tensor], Tensor]
"""Rows of a ring or scratch at indexes of any shape."""


def history_rows(ratio: int) -> int:
    """Raw rows before a segment that one of its groups may read."""
    return 2 * ratio - 1 if ratio == OVERLAP_RATIO else ratio - 1


@dataclass(frozen=True, slots=True)
class Compressor:
    """One compressor of one layer. `ring` is its raw rows [slots, ring, values | gates] float32."""

    weights: CompressorWeights
    ratio: int
    eps: float
    numerics: Numerics
    ops: Ops = NO_KERNELS

    def forward(
        self,
        x: Tensor,
        segment: Segment,
        ring: Tensor,
        rings: RingAddresses,
        entries: EntryAddresses,
        boundary: torch.dtype,
    ) -> Tensor:
        """x [rows, D] -> the entry of every group that may close, normed, not rotated [groups, d].

        Stores the raw rows of the segment. The projections are float32 in official code, whatever
        the boundary.
        """
        fast, w = self.ops.of(segment.family).compress, self.weights
        if fast and fast.takes_latents(ring, self.ratio, w.norm.shape[0]):
            given = (ring, self.ratio, segment.slots)
            return self._closed(
                x,
                segment,
                ring,
                rings,
                entries,
                lambda groups, own: fast.latents(*given, groups, w.norm, self.eps, boundary, own),
            )
        raw = self._project(x, segment)
        source = _source(raw, ring, rings)
        values, gates = self._members(source, segment, rings, entries)
        return pool(values, gates, self.weights.norm, self.eps, boundary)

    def store(
        self,
        x: Tensor,
        segment: Segment,
        ring: Tensor,
        rings: RingAddresses,
        entries: EntryAddresses,
        rows: Rows,
        frequencies: Tensor,
        boundary: torch.dtype,
        *,
        turned: bool = False,
    ) -> None:
        """As `forward`, and stores each entry in `rows`, rotated by the position of its first token
        and, if `turned`, multiplied by Hadamard's matrix."""
        fast, w = self.ops.of(segment.family).compress, self.weights
        rope = 2 * frequencies.shape[0]
        if fast and fast.takes(ring, self.ratio, rows, rope):
            assert turned == (rows.format.name == "fp4"), "kernels turn what is stored as FP4"
            given = (w.norm, self.eps, frequencies, rows, boundary)
            self._closed(
                x,
                segment,
                ring,
                rings,
                entries,
                lambda groups, own: fast.close(
                    ring, self.ratio, segment.slots, groups, *given, own
                ),
            )
            return
        latent = self.forward(x, segment, ring, rings, entries, boundary)
        first = entries.group_entry * self.ratio
        latent = rotate(latent, first, frequencies, boundary=boundary)
        if turned:
            latent = hadamard(latent, boundary)
        store.put(rows, entries.group_place, latent)

    def _closed(
        self,
        x: Tensor,
        segment: Segment,
        ring: Tensor,
        rings: RingAddresses,
        entries: EntryAddresses,
        close: Callable[[Groups, Own | None], Found],
    ) -> Found:
        """Stores the raw rows; what a kernel makes of the groups that close."""
        fast = self.ops.of(segment.family).compress
        assert fast is not None
        raw = Raw(*self._projected(x, segment), self.weights.ape, segment.positions)
        groups = Groups(entries.group_entry, entries.group_sequence, entries.group_place)
        if rings.past is None:
            fast.put_raw(raw, rings.places, ring)
            return close(groups, None)
        found = close(groups, Own(raw, segment.starts, segment.first_rows))
        fast.put_raw(raw, rings.places, ring, rings.kept)
        return found

    def _project(self, x: Tensor, segment: Segment) -> Tensor:
        values, gates = self._projected(x, segment)
        gates = gates + self.weights.ape[segment.positions % self.ratio]
        return torch.cat([values, gates], dim=1)  # [rows, 2 * c * d]

    def _projected(self, x: Tensor, segment: Segment) -> tuple[Tensor, Tensor]:
        w = self.weights
        values = linear(x, w.wkv, segment.family, quantised=False, boundary=torch.float32)
        gates = linear(x, w.wgate, segment.family, quantised=False, boundary=torch.float32)
        return values, gates

    def _members(
        self, source: Source, segment: Segment, rings: RingAddresses, entries: EntryAddresses
    ) -> tuple[Tensor, Tensor]:
        """The raw rows of each group [groups, members, d]; absent: gate -inf and value 0."""
        overlap = self.ratio == OVERLAP_RATIO
        members = 2 * self.ratio if overlap else self.ratio
        offsets = torch.arange(self.ratio - members, self.ratio, device=segment.positions.device)
        positions = entries.group_entry.unsqueeze(1) * self.ratio + offsets
        at = rings.source(segment, entries.group_sequence, positions)
        rows = source(at.clamp(min=0))  # [groups, members, 2 * c * d]
        values, gates = rows.chunk(2, dim=-1)
        if overlap:
            values, gates = self._halves(values), self._halves(gates)
        absent = (at < 0).unsqueeze(-1)
        return values.masked_fill(absent, 0.0), gates.masked_fill(absent, float("-inf"))

    def _halves(self, rows: Tensor) -> Tensor:
        first, second = rows.chunk(2, dim=-1)
        return torch.cat([first[:, : self.ratio], second[:, self.ratio :]], dim=1)


def _source(raw: Tensor, ring: Tensor, rings: RingAddresses) -> Source:
    """Stores the segment's raw rows in the ring; returns what groups are read from."""
    length = ring.shape[1]

    def of_ring(at: Tensor) -> Tensor:
        return ring[at // length, at % length]  # one layer's part of a pool: never to be copied

    past = None if rings.past is None else of_ring(rings.past)
    ring[rings.places // length, rings.places % length] = raw[rings.kept]
    if past is None:
        return of_ring
    flat = torch.cat([past, raw])
    return lambda at: flat.index_select(0, at.flatten()).unflatten(0, at.shape)
