"""Compressors, launched on a CUDA device. Knows no layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from relight.kernels.block import in_words, strides
from relight.kernels.compress import cuda
from relight.kernels.launch import Long
from relight.kernels.rows import Rows
from relight.kernels.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups that may close, all [groups] int64: the entry that each makes, its sequence, and
    its row in the store, 0 where it does not close."""

    entry: Tensor
    sequence: Tensor
    place: Tensor


@dataclass(frozen=True, slots=True)
class Raw:
    """Projected rows of a segment, float32: `values` and `gates` [n, c * d], to which ape
    [ratio, c * d] is added by `positions` [n]."""

    values: Tensor
    gates: Tensor
    ape: Tensor
    positions: Tensor

    def __post_init__(self) -> None:
        parts = (self.values, self.gates, self.ape)
        assert all(x.is_contiguous() for x in parts), "they lie in pieces"


@dataclass(frozen=True, slots=True)
class Own:
    """Raw rows that are read before they are in a ring, which may not hold all of them: those of a
    sequence are rows first_rows [sequences] on, at positions starts [sequences] on."""

    raw: Raw
    starts: Tensor
    first_rows: Tensor


class RowCompress:
    """Compressors of either family in two launches: V4's from projected rows to stored entries,
    V4.1's to entries whose keys are made before they are stored. Made rows go into the ring
    first, since several segments may have rows of one group."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def takes(self, ring: Tensor, ratio: int, rows: Rows, rope: int) -> bool:
        """Whether entries of `ratio` tokens, pooled from ring [slots, ring, values | gates], of
        which `rope` values are rotated, are stored in `rows` by these kernels."""
        stored, dim = rows.format, rows.format.dim
        known = {"fp8": dim in cuda.THREADS, "fp4": dim == cuda.HADAMARD_WIDTH}
        fits = known.get(stored.name, False) and rope == cuda.ROPE and in_words(rows)
        return fits and self.takes_latents(ring, ratio, dim)

    def takes_latents(self, ring: Tensor, ratio: int, dim: int) -> bool:
        """Whether entries of `dim` values are pooled by these kernels."""
        halves = 2 if ratio == cuda.OVERLAP_RATIO else 1
        return (
            dim in cuda.THREADS
            and ratio in cuda.RATIOS
            and ring.shape[2] == ring.stride(1) == 2 * halves * dim
            and ring.shape[1] >= halves * ratio
            and ring.data_ptr() % 16 == ring.stride(0) % 4 == 0
        )

    def put_raw(self, raw: Raw, places: Tensor, ring: Tensor, kept: Tensor | None = None) -> None:
        """Rows kept [m] of the raw ones, or all, into rows places [m] of the ring."""
        count, channels = len(places), raw.values.shape[1]
        assert kept is not None or count == len(raw.values), f"{count} places for all raw rows"
        if count == 0:
            return
        kernel = cuda.put_raw(self._tools.form, channels, raw.ape.shape[0])
        launch = self._tools.load(kernel, cuda.RAW_THREADS)
        grid = (count, -(-channels // cuda.RAW_THREADS))
        given = (raw.values, raw.gates, raw.ape, raw.positions, kept, places)
        launch(grid, *given, ring, Long(ring.stride(0)), ring.shape[1])

    def close(
        self,
        ring: Tensor,
        ratio: int,
        slots: Tensor,
        groups: Groups,
        norm: Tensor,
        eps: float,
        frequencies: Tensor,
        rows: Rows,
        boundary: torch.dtype,
        own: Own | None = None,
    ) -> None:
        """Pools each group that closes out of the ring of its sequence's slot, and of the segment's
        `own` rows where they are not there, norms, rotates and stores it; index keys are
        multiplied by Hadamard's matrix first."""
        count = groups.entry.shape[0]
        if count == 0:
            return
        kernel = cuda.pool(self._tools.form, rows.format, ratio, boundary)
        launch = self._tools.load(kernel, cuda.pool_threads(rows.format.dim, ratio))
        where = (groups.entry, groups.sequence, slots, groups.place, *_addresses(own))
        given = (ring, Long(ring.stride(0)), ring.shape[1], norm, eps, frequencies)
        launch((count, 1), *where, *given, *strides(rows))

    def latents(
        self,
        ring: Tensor,
        ratio: int,
        slots: Tensor,
        groups: Groups,
        norm: Tensor,
        eps: float,
        boundary: torch.dtype,
        own: Own | None = None,
    ) -> Tensor:
        """The same entries [groups, d] in `boundary`, not rotated; zeros of a group that does not
        close."""
        count, dim = groups.entry.shape[0], norm.shape[0]
        y = torch.empty((count, dim), dtype=boundary, device=ring.device)
        if count:
            kernel = cuda.latents(self._tools.form, dim, ratio, boundary)
            launch = self._tools.load(kernel, cuda.pool_threads(dim, ratio))
            where = (groups.entry, groups.sequence, slots, groups.place, *_addresses(own))
            given = (ring, Long(ring.stride(0)), ring.shape[1], norm, eps, None)
            launch((count, 1), *where, *given, y, None, Long(0), Long(0), 1, 0, 0)
        return y


def _addresses(own: Own | None) -> tuple[Tensor | None, ...]:
    if own is None:
        return (None,) * 5
    raw = own.raw
    return raw.values, raw.gates, raw.ape, own.starts, own.first_rows
