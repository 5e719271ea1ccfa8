"""Launches of each kernel that steps and prompts of V4-Flash and V4.1-Flash have, with several rows
and with one: what is looked at by a sanitizer. Small where a kernel's code allows it. Knows no
result."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from relight.kernels.attend import Keys
from relight.kernels.attend import cuda as attend_cuda
from relight.kernels.attend.given import GivenAttend
from relight.kernels.build import Builder, Kernel
from relight.kernels.canary import Trial
from relight.kernels.codec import DenseWeight
from relight.kernels.experts.cuda import V4_WIDTHS, V41_WIDTHS
from relight.kernels.experts.given import GivenExperts
from relight.kernels.experts.shared import RowShared
from relight.kernels.hyper import Mix, Unspread
from relight.kernels.hyper.rows import RowHyper
from relight.kernels.launch import Launch, Launcher
from relight.kernels.linear import cuda as linear_cuda
from relight.kernels.linear.cuda import BF16_OUTPUTS, V4_BF16, V41_BF16
from relight.kernels.linear.given import ENOUGH_BLOCKS, GivenLinear
from relight.kernels.linear.step import StepLinear
from relight.kernels.projected import given_hyper
from relight.kernels.route.rows import RowRoute
from relight.kernels.streams import SideStream
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials import (
    LENGTHS,
    experts_trial,
    fp4_stack,
    fp8_weight,
    linear_trials,
    tokens,
)
from relight.kernels.trials_between import given_trials
from relight.kernels.trials_engram import engram_trials
from relight.kernels.trials_small import EPS, hyper_trials, randoms, small_trials
from relight.kernels.trials_sparse import filled, listed, rings, sparse_trials
from relight.kernels.vectors import RowVectors

Work = Callable[[], object]
BF16 = torch.bfloat16
MODELS = ((4096, 1024, 128), (5120, 1280, 32))
"""Of V4-Flash and V4.1-Flash: width, that of queries before they are spread, block of scales."""
MANY_ROWS = 300
FEW_WIDTHS = (512, 256)
"""Of experts whose kernels are of any width."""
ENOUGH_TILES = (1, 20, ENOUGH_BLOCKS)
"""From how many on products of given rows take wide tiles: those of 2,048 outputs and 130 rows are
16 of the widest and 32 of the next."""
PARTS = ("made", "given", "between", "streams")
"""Each has weights of its own and can run without the others."""


class Noting(Toolbox):
    """Keeps in order which kernels it was asked for: all of them are launched next."""

    def __init__(
        self, builder: Builder, launcher: Launcher, side: SideStream | None = None
    ) -> None:
        super().__init__(builder, launcher, side)
        self.noted: dict[Kernel, None] = {}

    def load(self, kernel: Kernel, threads: int, ring_bytes: int = 0) -> Launch:
        self.noted[kernel] = None
        return super().load(kernel, threads, ring_bytes)


class _Nothing:
    """Builds nothing for an architecture, and launches nothing."""

    def __init__(self, arch: str) -> None:
        self.arch = arch

    def build(self, kernel: Kernel) -> None:
        pass

    def load(self, *arguments: object, **options: object) -> Callable[..., None]:
        return lambda *arguments: None


def launched(arch: str) -> dict[str, list[Kernel]]:
    """The kernels of each part, for a device of `arch`. Takes none: tensors have no values."""
    found = {}
    for part in PARTS:
        nothing = _Nothing(arch)
        tools = Noting(nothing, nothing)  # type: ignore[arg-type]
        for _, work in launches(part, tools, torch.device("meta")):
            work()
        found[part] = list(tools.noted)
    return found


def launches(part: str, tools: Toolbox, device: torch.device) -> Iterator[tuple[str, Work]]:
    """Name and work. Weights are made as they come."""
    some: dict[str, Callable[[Toolbox, torch.device], Iterable[tuple[str, Work]]]] = {
        "made": _made,
        "given": _given,
        "between": _between,
        "streams": _streams,
    }
    assert tuple(some) == PARTS
    yield from some[part](tools, device)


def _tried(trials: Iterable[Trial]) -> Iterator[tuple[str, Work]]:
    for trial in trials:
        x = trial.inputs()
        some = (3,) if trial.variant.op == "attend" else ()  # a cut of its own (`attend/cuda.py`)
        for rows in (x, *(x[:count] for count in some), x[:1]):
            name = f"{trial.variant.op} {trial.variant.family} {trial.shape} of {len(rows)}"
            yield name, partial(trial.kernel, rows)


def _made(tools: Toolbox, device: torch.device) -> Iterator[tuple[str, Work]]:
    yield from _tried(linear_trials(tools, device, outputs=512, many=()))
    for widths, block in ((V4_WIDTHS, 128), (V41_WIDTHS, 32)):
        yield from _tried([experts_trial(tools, device, 6, 3, widths, block)])
    yield from _as_of_other_outputs(tools, device)


def _as_of_other_outputs(tools: Toolbox, device: torch.device) -> Iterator[tuple[str, Work]]:
    """The kernels that matrices of other numbers of outputs have."""
    multiply = StepLinear(tools)._product
    for rows in (9, 1):
        tiles = -(-rows // linear_cuda.TILE_TOKENS)
        for block, inner in ((block, inner) for block, some in LENGTHS.items() for inner in some):
            made = linear_cuda.fp8(tools.form, inner, tiles, True, block)
            w = fp8_weight(512, inner, device, block)
            codes = tools.quantise(tokens(rows, inner, device, BF16), block)
            name = f"FP8 by {block} [many, {inner}] of {rows}"
            yield name, partial(multiply, made, *codes, w.data, w.scale, 1, BF16)
        for inner, many in itertools.product((*V4_BF16, *V41_BF16), BF16_OUTPUTS):
            made = linear_cuda.bf16(tools.form, inner, tiles, False, many)
            x = tokens(rows, inner, device, BF16)
            dense = torch.zeros(512, inner, dtype=BF16, device=device)
            name = f"bf16 [as {many}, {inner}] of {rows}"
            yield name, partial(multiply, made, x, None, dense, None, 1, torch.float32)


def _given(tools: Toolbox, device: torch.device) -> Iterator[tuple[str, Work]]:
    """Tiles of each size, which a real prompt takes for how many there are."""
    for block in (128, 32):
        yield from _tried([experts_trial(tools, device, 6, 3, FEW_WIDTHS, block, "prefill")])
        yield f"experts by {block} without warp groups", _experts(tools, device, block)
    for shape in attend_cuda.shapes(tools.form):
        name = f"attention to {shape.entries.name} without warp groups"
        yield name, _attention(tools, device, shape)
    for tiles, rows in itertools.product(ENOUGH_TILES, (130, 1)):
        fast = GivenLinear(tools, tiles)
        x = tokens(rows, 4 * 512, device, BF16)
        groups, part = x.view(rows, 4, 512), x[:, :512].contiguous()
        for block in (128, 32):
            w, whole = (fp8_weight(many, 512, device, block) for many in (512, 2048))
            name = f"FP8 by {block} of {rows}, {tiles} tiles or more wide"
            yield f"{name}, in groups", partial(fast.grouped, groups, whole, BF16)
            yield name, partial(fast.linear, part, w, BF16)
        dense = DenseWeight(torch.zeros(512, 512, dtype=BF16, device=device))
        for to in (BF16, torch.float32):
            name = f"bf16 to {to} of {rows}, {tiles} tiles or more wide"
            yield name, partial(fast.linear, part, dense, to)


def _experts(tools: Toolbox, device: torch.device, block: int) -> Work:
    (width, inner), fast = FEW_WIDTHS, GivenExperts(tools)
    up, gate = (fp4_stack(6, inner, width, device, block) for _ in range(2))
    down = fp4_stack(6, width, inner, device, block)
    rows = torch.arange(130, device=device).unsqueeze(1)
    ids = ((rows + torch.arange(3, device=device)) % 6).sort(1).values
    x, weights = tokens(130, width, device, BF16), torch.ones(130, 3, device=device)
    return partial(fast.experts, x, ids, weights, gate, up, down, 10.0, BF16)


def _attention(tools: Toolbox, device: torch.device, shape: attend_cuda.Shape) -> Work:
    window, entries = rings(shape.window, device), filled(shape.entries, 300, device)
    q = torch.randn(9, shape.heads, shape.dim, device=device).to(shape.dtype)
    keys = Keys(window, listed(q, 192, window.count), entries, listed(q, 512, 300))
    sink = torch.zeros(shape.heads, device=device)
    return partial(GivenAttend(tools, groups=False).attend, q, keys, sink, shape.dim**-0.5)


def _between(tools: Toolbox, device: torch.device) -> Iterator[tuple[str, Work]]:
    yield from _tried([*sparse_trials(tools, device), *small_trials(tools, device)])
    yield from _tried([*engram_trials(tools, device), *given_trials(tools, device)])
    vectors, shared, route = RowVectors(tools), RowShared(tools), RowRoute(tools)
    turn = torch.exp(-torch.arange(32, device=device) / 4)
    for rows in (5, 1):
        for width in (512, 1280, 4096, 5120):
            x, by = tokens(rows, width, device, BF16), torch.ones(width, device=device)
            yield f"norm {width} of {rows}", partial(vectors.norm, x, by, EPS)
        for _, width, block in MODELS:
            x, by = tokens(rows, width, device, BF16), torch.ones(width, device=device)
            yield f"norm {width}, rounded, of {rows}", partial(vectors.norm, x, by, EPS, block)
            x = tokens(rows, 2048, device, BF16)
            yield f"gate by {block} of {rows}", partial(shared.swiglu, x, x, 10.0, block)
            for dtype in (BF16, torch.float32):
                x = tokens(rows, 1024, device, dtype)
                yield f"codes by {block} of {rows}", partial(tools.quantise, x, block)
                if block == 32:
                    yield f"values of {rows}", partial(tools.round, x, block)
        logits, bias = torch.rand(rows, 128, device=device), torch.rand(128, device=device)
        how = {"bias": bias, "table": None, "token_ids": None}
        yield f"3 of 128 experts of {rows}", partial(route.route, logits, 3, 1.5, **how)
    at = torch.arange(MANY_ROWS, device=device)
    q = tokens(MANY_ROWS, 64 * 512, device, BF16).view(MANY_ROWS, 64, 512)
    yield f"64 heads turned of {MANY_ROWS}", partial(vectors.queries, q, EPS, at, turn)
    yield f"64 heads turned back of {MANY_ROWS}", partial(vectors.rotate, q, at, turn, inverse=True)


def _streams(tools: Toolbox, device: torch.device) -> Iterator[tuple[str, Work]]:
    """As sublayers mix, read and spread them, with what the products behind are handed over."""
    for width, _, block in MODELS:
        for given in (False, True):
            yield from _tried(hyper_trials(tools, device, BF16, width, given=given))
            fast = given_hyper(tools) if given else RowHyper(tools)
            for rows in (MANY_ROWS, 1) if given else (6, 1):
                work = _mixed(fast, rows, width, block, device, slots=not given)
                yield f"streams of {width} of {rows}", work


def _mixed(
    fast: RowHyper, rows: int, width: int, block: int, device: torch.device, *, slots: bool
) -> Work:
    """Where slots of experts may be summed as they are spread, also by what reads the streams."""
    streams = randoms(rows, 4, width, device=device, dtype=BF16)
    out, routed = streams[:, 0].contiguous(), torch.ones(rows, 6, width, device=device)
    sizes = ((rows, 4), (rows, 4), (rows, 4, 4))
    mix = Mix(*(torch.full(size, 0.25, device=device) for size in sizes))
    fn, base, scale = (torch.ones(size, device=device) for size in ((24, 4 * width), (24,), (3,)))
    given = (fn, base, scale, None, torch.ones(width, device=device))

    def work() -> None:
        read: list[Tensor | Unspread] = [streams]
        for parts in (None, routed) if slots else (None,):
            fast.expand(out, streams, mix, parts)
            read += [Unspread(out, parts, streams, mix)] if slots else []
        for one, act_block in itertools.product(read, (0, block)):
            mix_and_read = partial(fast.mix_and_read, iterations=2, eps=EPS, norm_eps=EPS)
            _, found, _ = mix_and_read(one, *given, act_block=act_block, late=True)
            found.finish()

    return work
