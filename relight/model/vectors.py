"""What attention does with its vectors between products: norm, rotation, rounding and storing. By
kernels where there are any, else op by op. Knows no product and no layer."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from relight.kernels import store
from relight.kernels.attend import Turn
from relight.kernels.codec import Weight
from relight.kernels.norm import rms_norm
from relight.kernels.quant import fp4_grid, hadamard
from relight.kernels.rope import rotate
from relight.kernels.row_ops import NO_KERNELS, Ops
from relight.kernels.rows import Rows
from relight.kernels.vectors import (
    INDEX_QUERIES,
    NORM,
    PLAIN_INDEX_QUERIES,
    QUERIES,
    TURNED,
    RowVectors,
    Way,
    way_into,
)
from relight.model.inputs import Segment


@dataclass(frozen=True, slots=True)
class Vectors:
    """Of one layer. Positions are those of the segment's rows, if no others are given."""

    frequencies: Tensor
    eps: float
    boundary: torch.dtype
    ops: Ops = NO_KERNELS

    def norm(
        self, x: Tensor, weight: Tensor, segment: Segment, into: Weight | None = None
    ) -> Tensor:
        """`into`: a weight that it is multiplied by, as are all others of the same block."""
        if fast := self._fast(NORM, x, segment):
            return fast.norm(x, weight, self.eps, into.act_block if into else 0)
        return rms_norm(x, weight, self.eps, self.boundary)

    def queries(self, q: Tensor, segment: Segment) -> Tensor:
        """q [rows, H, d], each head normed and rotated."""
        if fast := self._fast(QUERIES, q, segment):
            return fast.queries(q, self.eps, segment.positions, self.frequencies)
        return self.rotate(rms_norm(q, None, self.eps, self.boundary), segment)

    def rotate(self, x: Tensor, segment: Segment, *, inverse: bool = False) -> Tensor:
        """x [rows, .., d], which a kernel turns in its place: nobody else may hold it."""
        if fast := self._fast(TURNED, x, segment):
            return fast.rotate(x, segment.positions, self.frequencies, inverse=inverse)
        return rotate(x, segment.positions, self.frequencies, inverse, boundary=self.boundary)

    def back(self, segment: Segment) -> Turn:
        """By which attention turns its results."""
        apart = partial(self.rotate, segment=segment, inverse=True)
        return Turn(segment.positions, self.frequencies, apart)

    def index_queries(self, q: Tensor, segment: Segment, *, turned: bool) -> Tensor:
        """q [rows, heads, d] rotated, if `turned` times Hadamard's matrix, on the FP4 grid."""
        way = INDEX_QUERIES if turned else PLAIN_INDEX_QUERIES
        if fast := self._fast(way, q, segment):
            return fast.index_queries(q, segment.positions, self.frequencies, turned=turned)
        q = self.rotate(q, segment)
        return fp4_grid(hadamard(q, self.boundary) if turned else q)

    def keep(
        self,
        x: Tensor,
        weight: Tensor | None,
        segment: Segment,
        rows: Rows,
        places: Tensor,
        positions: Tensor | None = None,
    ) -> None:
        """x [m, d], normed by a weight if there is one, and rotated, into rows places [m]: those of
        the segment's rows, or of `positions` [m]."""
        positions = segment.positions if positions is None else positions
        way = way_into(rows)
        if way and (fast := self._fast(way, x, segment)):
            fast.keep(x, weight, self.eps, positions, self.frequencies, rows, places)
            return
        if weight is not None:
            x = rms_norm(x, weight, self.eps, self.boundary)
        x = rotate(x, positions, self.frequencies, boundary=self.boundary)
        store.put(rows, places, x)

    def _fast(self, way: Way, x: Tensor, segment: Segment) -> RowVectors | None:
        fast = self.ops.of(segment.family).vectors
        rope = 2 * self.frequencies.shape[0] if way.rope else 0
        return fast if fast and fast.takes(way, x, self.boundary, rope) else None
