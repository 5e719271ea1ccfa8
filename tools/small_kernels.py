"""What the small ops of one layer of V4-Flash do in a step and with a chunk of a prompt, by kernels
and by their definitions, to be timed by `tools.step_kernels`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from relight.base.formats import RowFormat, index_row, kv_row
from relight.base.numerics import Family
from relight.kernels import hyper, store
from relight.kernels.compress import pool
from relight.kernels.compress.rows import Groups, Own, Raw, RowCompress
from relight.kernels.experts import swiglu
from relight.kernels.experts.shared import RowShared
from relight.kernels.hyper.rows import RowHyper
from relight.kernels.norm import rms_norm
from relight.kernels.quant import fp4_grid, hadamard
from relight.kernels.rope import rotate
from relight.kernels.route import route
from relight.kernels.route.rows import RowRoute
from relight.kernels.rows import Rows
from relight.kernels.sample import SampleParams, sample
from relight.kernels.sample.step import StepSample
from relight.kernels.store.rows import RowStore
from relight.kernels.toolbox import Toolbox
from relight.kernels.vectors import RowVectors

BF16 = torch.bfloat16
EPS = 1e-6
WIDTH, HC, HEADS, KV, INDEX, VOCAB = 4096, 4, 64, 512, 128, 129_280


@dataclass(frozen=True)
class Pair:
    """The same by kernels and by the definition."""

    name: str
    launches: int
    kernel: Callable[[], object]
    definition: Callable[[], object]


def pairs(tools: Toolbox, device: torch.device, rows: int) -> list[Pair]:
    """Of made rows, each of a sequence of its own."""
    shapes = ((4, kv_row(KV, 64)), (128, kv_row(KV, 64)), (4, index_row(INDEX)))
    return [
        *_hyper(tools, device, rows, "step"),
        *_vectors(tools, device, rows),
        *(_compressor(tools, device, rows, *shape) for shape in shapes),
        _routing(tools, device, rows),
        _drawing(tools, device, rows),
    ]


def given_pairs(tools: Toolbox, device: torch.device, rows: int) -> list[Pair]:
    """Of given rows, all of one sequence."""
    shapes = ((4, kv_row(KV, 64)), (128, kv_row(KV, 64)), (4, index_row(INDEX)))
    return [
        *_hyper(tools, device, rows, "prefill"),
        *_vectors(tools, device, rows),
        *(_given_compressor(tools, device, rows, *shape) for shape in shapes),
        _copying(tools, device, rows),
        _routing(tools, device, rows),
        _shared(tools, device, rows),
    ]


def _hyper(tools: Toolbox, device: torch.device, rows: int, family: Family) -> list[Pair]:
    fast = RowHyper(tools)
    streams = torch.randn(rows, HC, WIDTH, device=device).to(BF16)
    out = streams[:, 0].contiguous()
    fn = torch.randn(24, HC * WIDTH, device=device) / WIDTH**0.5
    base, scale = torch.randn(24, device=device), torch.rand(3, device=device)
    norm = torch.rand(WIDTH, device=device)
    parts = (streams, fn, base, scale)
    mix = hyper.mix(*parts, iterations=20, eps=EPS, norm_eps=EPS, family=family)

    def definition() -> Tensor:
        found = hyper.mix(*parts, iterations=20, eps=EPS, norm_eps=EPS, family=family)
        return rms_norm(hyper.collapse(streams, found.pre, BF16), norm, EPS, BF16)

    return [
        Pair(
            "mHC mix and read",
            3,
            lambda: fast.mix_and_read(*parts, None, norm, iterations=20, eps=EPS, norm_eps=EPS),
            definition,
        ),
        Pair(
            "mHC spread",
            1,
            lambda: fast.expand(out, streams, mix),
            lambda: hyper.expand(out, streams, mix.post, mix.comb, BF16),
        ),
    ]


def _vectors(tools: Toolbox, device: torch.device, rows: int) -> list[Pair]:
    fast = RowVectors(tools)
    low, kv = (torch.randn(rows, width, device=device).to(BF16) for width in (1024, KV))
    q = torch.randn(rows, HEADS, KV, device=device).to(BF16)
    index_q = torch.randn(rows, HEADS, INDEX, device=device).to(BF16)
    weight, turn = torch.rand(1024, device=device), torch.rand(32, device=device)
    at = torch.arange(rows, device=device) + 70_000
    ring, places = Rows.empty(kv_row(KV, 64), 144, device), at % 144

    def keep() -> None:
        x = rotate(rms_norm(kv, weight[:KV], EPS, BF16), at, turn, boundary=BF16)
        store.put(ring, places, x)

    return [
        Pair(
            "norm of wq_a",
            1,
            lambda: fast.norm(low, weight, EPS),
            lambda: rms_norm(low, weight, EPS, BF16),
        ),
        Pair(
            "queries",
            1,
            lambda: fast.queries(q, EPS, at, turn),
            lambda: rotate(rms_norm(q, None, EPS, BF16), at, turn, boundary=BF16),
        ),
        Pair(
            "output turned back",
            1,
            lambda: fast.rotate(q, at, turn, inverse=True),
            lambda: rotate(q, at, turn, True, boundary=BF16),
        ),
        Pair(
            "window row kept",
            1,
            lambda: fast.keep(kv, weight, EPS, at, turn, ring, places),
            keep,
        ),
        Pair(
            "index queries",
            1,
            lambda: fast.index_queries(index_q, at, turn),
            lambda: fp4_grid(hadamard(rotate(index_q, at, turn, boundary=BF16), BF16)),
        ),
    ]


def _compressor(
    tools: Toolbox, device: torch.device, rows: int, ratio: int, stored: RowFormat
) -> Pair:
    """Every row closes a group, of a slot of its own."""
    fast, halves, dim = RowCompress(tools), 2 if ratio == 4 else 1, stored.dim
    members, channels = halves * ratio, halves * dim
    slots, ring_rows = torch.arange(rows, device=device), members + 16
    ring = torch.randn(rows, ring_rows, 2 * channels, device=device)
    values, gates = torch.randn(2, rows, channels, device=device)
    ape, norm = torch.rand(ratio, channels, device=device), torch.rand(dim, device=device)
    turn, last = torch.rand(32, device=device), torch.full_like(slots, 128 * 90 - 1)
    places = slots * ring_rows + last % ring_rows
    into, groups = Rows.empty(stored, rows + 1, device), Groups(last // ratio, slots, slots + 1)

    def kernel() -> None:
        fast.put_raw(Raw(values, gates, ape, last), places, ring)
        fast.close(ring, ratio, slots, groups, norm, EPS, turn, into, BF16)

    def definition() -> None:
        ring[:, 0] = torch.cat([values, gates + ape[last % ratio]], dim=1)
        picked = ring[:, :members, :dim].contiguous()
        weighed_by = ring[:, :members, dim : 2 * dim].contiguous()
        entry = pool(picked, weighed_by, norm, EPS, BF16)
        entry = rotate(entry, last // ratio * ratio, turn, boundary=BF16)
        if stored.name == "fp4":
            entry = hadamard(entry, BF16)
        store.put(into, groups.place, entry)

    return Pair(f"compressor {ratio} to {stored.name}", 2, kernel, definition)


def _given_compressor(
    tools: Toolbox, device: torch.device, rows: int, ratio: int, stored: RowFormat
) -> Pair:
    """Groups are read as they were projected, and the last rows are kept."""
    fast, halves, dim = RowCompress(tools), 2 if ratio == 4 else 1, stored.dim
    members, channels = halves * ratio, halves * dim
    ring = torch.randn(1, members + 16, 2 * channels, device=device)
    values, gates = torch.randn(2, rows, channels, device=device)
    ape, norm = torch.rand(ratio, channels, device=device), torch.rand(dim, device=device)
    at, turn = torch.arange(rows, device=device) + 128 * 90, torch.rand(32, device=device)
    raw, none = Raw(values, gates, ape, at), torch.zeros(1, dtype=torch.int64, device=device)
    kept = torch.arange(rows, device=device)[-ring.shape[1] :]
    entry = torch.arange(rows // ratio, device=device)
    into = Rows.empty(stored, len(entry) + 1, device)
    groups = Groups(entry + 128 * 90 // ratio, torch.zeros_like(entry), entry + 1)

    def kernel() -> None:
        own = Own(raw, at[:1], none)
        fast.close(ring, ratio, none, groups, norm, EPS, turn, into, BF16, own)
        fast.put_raw(raw, at[kept] % ring.shape[1], ring, kept)

    def definition() -> None:
        weighed_by = gates + ape[at % ratio]
        picked, shares = (
            x[:, :dim].unflatten(0, (-1, ratio)).repeat(1, halves, 1) for x in (values, weighed_by)
        )
        latent = pool(picked, shares, norm, EPS, BF16)
        latent = rotate(latent, groups.entry * ratio, turn, boundary=BF16)
        if stored.name == "fp4":
            latent = hadamard(latent, BF16)
        store.put(into, groups.place, latent)

    return Pair(f"compressor {ratio} to {stored.name}", 2, kernel, definition)


def _copying(tools: Toolbox, device: torch.device, rows: int) -> Pair:
    fast = RowStore(tools)
    source, target = (Rows.empty(kv_row(KV, 64), rows, device) for _ in range(2))
    at = torch.arange(rows, device=device)
    given = (source, at, target, at.flip(0))
    return Pair("rows moved", 1, lambda: store.copy(*given, fast), lambda: store.copy(*given))


def _shared(tools: Toolbox, device: torch.device, rows: int) -> Pair:
    fast = RowShared(tools)
    gate, up = torch.randn(2, rows, 2048, device=device).to(BF16)
    return Pair(
        "shared expert gated",
        1,
        lambda: fast.swiglu(gate, up, 10.0),
        lambda: swiglu(gate, up, 10.0, BF16),
    )


def _routing(tools: Toolbox, device: torch.device, rows: int) -> Pair:
    logits, bias = torch.randn(rows, 256, device=device), torch.randn(256, device=device)
    how = {"bias": bias, "table": None, "token_ids": None}
    router = RowRoute(tools)
    return Pair(
        "routing",
        1,
        lambda: router.route(logits, 6, 1.5, **how),
        lambda: route(logits, 6, 1.5, **how),
    )


def _drawing(tools: Toolbox, device: torch.device, rows: int) -> Pair:
    vocab = torch.randn(rows, VOCAB, device=device)
    key, some = torch.arange(rows, device=device), torch.arange(rows, device=device)
    one, none = torch.ones(rows, device=device), torch.zeros_like(key)
    params = SampleParams(one, one, none, 0 * one, key, none, key, some, some[:0])
    draw = StepSample(tools)
    return Pair("drawing", 3, lambda: draw.draw(vocab, params), lambda: sample(vocab, params))
