"""Hyper-connections, launched on a CUDA device. Knows no sublayer."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from relight.kernels.block import Block, in_place, rounds
from relight.kernels.hyper import Mix, Unspread, cuda
from relight.kernels.launch import Grid, Launch
from relight.kernels.passes import passes, rows_of_a_pass
from relight.kernels.toolbox import Toolbox

ROWS, MANY_ROWS = 4, 32
"""Rows that a block of `mix_parts` takes: of few as many as it reads at once, and of many more, so
that weights, 12 KB of a block, are read for some."""

MANY = 256
"""From more rows on."""

SPREAD_THREADS, SPREAD_COLUMNS = 64, 8
"""Columns of a thread."""

BALANCE_THREADS = 256


class RowHyper:
    """`hyper` of either family: three launches a sublayer, of many rows two of them a pass."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def takes(self, streams: Tensor, boundary: torch.dtype) -> bool:
        """Whether these streams [n, hc, D] are for the kernels: the same for all rows of a call
        site."""
        return (
            streams.shape[1] == cuda.HC
            and cuda.block(streams.shape[2]) is not None
            and streams.dtype == boundary
            and in_place(streams)
        )

    def mix_and_read(
        self,
        streams: Tensor | Unspread,
        fn: Tensor,
        base: Tensor,
        scale: Tensor,
        reading: Tensor | None,
        norm: Tensor,
        *,
        iterations: int,
        eps: float,
        norm_eps: float,
        act_block: int = 0,
        late: bool = False,
    ) -> tuple[Tensor, Mix, Tensor]:
        """The streams [n, hc, D], their `hyper.mix`, and what the sublayer reads [n, D]: the
        streams by `reading` [n, hc], None for the mix's own `pre`, normed by `norm` [D]; handed
        over to products that round their input in blocks of `act_block`, if that is any. `late`:
        the mix is not finished, which takes as long again and is needed last."""
        n, hc, _ = (streams.streams if isinstance(streams, Unspread) else streams).shape
        shapes = ((n, hc), (n, hc), (n, hc, hc))
        outputs = tuple(base.new_empty(shape) for shape in shapes)
        finish = partial(self._balance, outputs[2], eps, iterations)
        given = (streams, fn, base, scale, reading, norm, (eps, norm_eps))
        whole, x = self._read(*given, outputs, act_block=act_block)
        if late:
            return whole, Mix(*outputs, fast=self, finish=finish), x
        finish()
        return whole, Mix(*outputs, fast=self), x

    def _balance(self, comb: Tensor, eps: float, iterations: int) -> None:
        if count := comb.numel():
            launch = self._tools.load(cuda.balance(self._tools.form), BALANCE_THREADS)
            launch((-(-count // BALANCE_THREADS), 1), comb, len(comb), eps, iterations)

    def read_by_head(
        self,
        streams: Tensor,
        fn: Tensor,
        base: Tensor,
        scale: Tensor,
        norm: Tensor,
        *,
        eps: float,
        norm_eps: float,
    ) -> tuple[Tensor, Tensor]:
        """The streams [n, hc, D] by the weights of `hyper.head`: [n, D], as they are and normed by
        `norm` [D]."""
        nothing, plain = (None, None, None), streams.new_empty((len(streams), streams.shape[2]))
        epsilons = (eps, norm_eps)
        given = (streams, fn, base, scale, None, norm, epsilons, nothing)
        return plain, self._read(*given, plain)[1]

    def read(
        self, streams: Tensor, reading: Tensor, norm: Tensor, norm_eps: float
    ) -> tuple[Tensor, Tensor]:
        """The streams [n, hc, D] by `reading` [n, hc]: [n, D], as they are and normed by `norm`
        [D]."""
        n, _, width = streams.shape
        plain, x = (streams.new_empty((n, width)) for _ in range(2))
        self._collapse(streams, reading.contiguous(), norm, norm_eps, x, plain)
        return plain, x

    def mean(self, streams: Tensor) -> Tensor:
        """`hyper.mean` of streams [n, hc, D]."""
        n, _, width = streams.shape
        found = streams.new_empty((n, width))
        self._collapse(streams, None, None, 0.0, None, found)
        return found

    def _collapse(
        self,
        streams: Tensor,
        reading: Tensor | None,
        norm: Tensor | None,
        norm_eps: float,
        x: Tensor | None,
        plain: Tensor,
    ) -> None:
        n, _, width = streams.shape
        if n:
            held = self._held(width)
            kernel = cuda.read_streams(self._tools.form, held, streams.dtype)
            launch = self._tools.load(kernel, held.threads)
            launch((n, 1), streams, reading, norm, float(norm_eps), x, plain)

    def _read(
        self,
        streams: Tensor | Unspread,
        fn: Tensor,
        base: Tensor,
        scale: Tensor,
        reading: Tensor | None,
        norm: Tensor,
        epsilons: tuple[float, float],
        outputs: tuple[Tensor | None, ...],
        plain: Tensor | None = None,
        act_block: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """The streams, and x."""
        late = streams if isinstance(streams, Unspread) else None
        if isinstance(streams, Unspread):
            streams = torch.empty_like(streams.streams)
        n, _, width = streams.shape
        x = streams.new_empty((n, width))
        held = self._held(width)
        act_block = act_block if rounds(width, held.threads) else 0
        handed = self._tools.hand_over(x, act_block) if act_block else (None, None)
        for part, parts, pieces in self._parts(streams, fn, late):
            rows = part.stop - part.start
            last, grid = self._end(rows, held, streams.dtype, len(base), act_block, pieces)
            read = (streams[part], _part(reading, part), norm)
            given = (parts, base, scale, *read, *epsilons)
            made = (_part(one, part) for one in outputs)
            also = (_part(one, part) for one in (plain, *handed))
            last(grid, *given, *made, x[part], *also)
        return streams, x

    def _end(
        self,
        rows: int,
        held: Block,
        boundary: torch.dtype,
        outputs: int,
        act_block: int,
        pieces: int,
    ) -> tuple[Launch, Grid]:
        form = self._tools.form
        peers = 0 if pieces else cuda.peer_threads(form, held.width)
        if peers:
            end = cuda.mix_end_by_peers(form, held, boundary, outputs, act_block)
            return self._tools.load(end, peers), (cuda.PEERS, rows)
        end = cuda.mix_end(form, held, boundary, outputs, act_block, pieces)
        return self._tools.load(end, held.threads + 32), (rows, 1)

    def _parts(
        self, streams: Tensor, fn: Tensor, late: Unspread | None
    ) -> Iterator[tuple[slice, Tensor, int]]:
        """Of some rows what their projection is the sum of, and of how many pieces weights are: 0
        where slices were summed. `late`: what streams are filled from before."""
        n, hc, width = streams.shape
        splits = hc * width // cuda.SLICE
        nbytes = 4 * splits * cuda.PARTS
        parts = fn.new_empty((rows_of_a_pass(n, nbytes), splits, cuda.PARTS))
        for part in passes(n, nbytes):
            if late:
                self._spread_parts(late, part, streams[part], fn, parts)
            else:
                self._mix_parts(streams[part], fn, parts)
            yield part, parts, 0

    def _mix_parts(self, streams: Tensor, fn: Tensor, parts: Tensor) -> None:
        rows, hc, width = streams.shape
        kernel = cuda.mix_parts(self._tools.form, self._held(width), streams.dtype, len(fn))
        grid = (hc * width // cuda.SLICE, -(-rows // (MANY_ROWS if rows > MANY else ROWS)))
        self._tools.load(kernel, 256)(grid, streams, fn, parts, rows)

    def _spread_parts(
        self, late: Unspread, part: slice, whole: Tensor, fn: Tensor, parts: Tensor
    ) -> None:
        rows, hc, width = whole.shape
        kernel = cuda.spread_parts(self._tools.form, self._held(width), whole.dtype)
        launch = self._tools.load(kernel, 256)
        slots = 0 if late.routed is None else late.routed.shape[1]
        what = (late.out[part], _part(late.routed, part), slots, late.streams[part])
        by = (late.mix.post[part], late.mix.comb[part])
        launch((hc * width // cuda.SLICE, rows), *what, *by, whole, fn, parts)

    def expand(self, out: Tensor, streams: Tensor, mix: Mix, parts: Tensor | None = None) -> Tensor:
        """`hyper.expand`: out [n, D] over streams [n, hc, D]; with parts [n, slots, D] float32,
        which are summed in their order, out is added last, and the sum rounded to its dtype."""
        n, _, width = streams.shape
        y = torch.empty_like(streams)
        if n:
            kernel = cuda.spread(self._tools.form, self._held(width), streams.dtype)
            grid = (n, -(-width // (SPREAD_COLUMNS * SPREAD_THREADS)))
            slots = 0 if parts is None else parts.shape[1]
            given = (out, parts, slots, streams, mix.post, mix.comb, y)
            self._tools.load(kernel, SPREAD_THREADS)(grid, *given)
        return y

    def _held(self, width: int) -> Block:
        held = cuda.block(width)
        assert held is not None, f"{width} columns are not shared evenly by 32 threads"
        return held


def _part(x: Tensor | None, rows: slice) -> Tensor | None:
    return None if x is None else x[rows]
