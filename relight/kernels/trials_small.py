"""Trials of the CUDA kernels of small ops, as `trials` has those of products. Knows no network.

Sums that have the definition's order give its bits where the functions do (exp, cos, sin); a last
bit of one may move a value over a step of its grid, which tolerances allow for few values. Streams
are projected in another order than the definition's, which is as far off as other float32 sums.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from relight.base.formats import (
    RowFormat,
    compressed_row_v41,
    float_row,
    index_row,
    kv_row,
    window_row_v41,
)
from relight.base.numerics import Family
from relight.kernels import hyper, store
from relight.kernels.canary import Trial
from relight.kernels.compress import pool
from relight.kernels.compress.rows import Groups, Own, Raw, RowCompress
from relight.kernels.cuda_tools import (
    COMPRESS,
    EXPERTS,
    HYPER,
    NORM,
    QUANT,
    ROPE,
    ROUTE,
    SAMPLE,
    STORE,
)
from relight.kernels.experts import swiglu
from relight.kernels.experts.shared import RowShared
from relight.kernels.hyper.rows import RowHyper
from relight.kernels.norm import rms_norm
from relight.kernels.projected import given_hyper
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

ROWS = 5
EPS = 1e-6

ALMOST = 2e-6
"""Float32 sums in another order, and functions whose last bit differs."""

FEW_STEPS = 3e-3
"""A few values on the other side of a step of bf16, E4M3 or E2M1."""

FEW_NIBBLES = 2e-2
"""The same of rows in E2M1, whose steps are a third of a value."""


def small_trials(tools: Toolbox, device: torch.device) -> list[Trial]:
    boundary = torch.bfloat16 if tools.form.bf16 else torch.float32
    return [
        *hyper_trials(tools, device, boundary),
        *vector_trials(tools, device, boundary),
        *compress_trials(tools, device, boundary),
        *route_trials(tools, device),
        route_trials(tools, device, experts=384)[0],
        shared_trial(tools, device, boundary),
        sample_trial(tools, device),
    ]


def hyper_trials(
    tools: Toolbox,
    device: torch.device,
    boundary: torch.dtype,
    width: int = 4096,
    *,
    given: bool = False,
) -> list[Trial]:
    """Rows are streams; what a sublayer gives is their first."""
    fast, hc = given_hyper(tools) if given else RowHyper(tools), 4
    fn = torch.randn(24, hc * width, device=device) / width**0.5
    base, scale = torch.randn(24, device=device), torch.rand(3, device=device) + 0.5
    norm = torch.rand(width, device=device) + 0.5
    epsilons = {"eps": EPS, "norm_eps": EPS}

    def streams() -> Tensor:
        return randoms(ROWS, hc, width, device=device, dtype=boundary)

    def kernel(x: Tensor) -> Tensor:
        parts = (x, fn, base, scale, None, norm)
        _, mix, read = fast.mix_and_read(*parts, iterations=20, eps=EPS, norm_eps=EPS)
        y = fast.expand(x[:, 0].contiguous(), x, mix)
        return joined(mix.pre, mix.post, mix.comb, read, y)

    def reference(x: Tensor) -> Tensor:
        mix = hyper.mix(x, fn, base, scale, iterations=20, family="step", **epsilons)
        read = rms_norm(hyper.collapse(x, mix.pre, boundary), norm, EPS, boundary)
        y = hyper.expand(x[:, 0], x, mix.post, mix.comb, boundary)
        return joined(mix.pre, mix.post, mix.comb, read, y)

    def head(x: Tensor) -> Tensor:
        return joined(*fast.read_by_head(x, fn[:hc], base[:hc], scale[:1], norm, **epsilons))

    def head_reference(x: Tensor) -> Tensor:
        pre = hyper.head(x, fn[:hc], base[:hc], scale[:1], family="step", **epsilons)
        return read_by(x, pre)

    def read_by(x: Tensor, pre: Tensor) -> Tensor:
        plain = hyper.collapse(x, pre, boundary)
        return joined(plain, rms_norm(plain, norm, EPS, boundary))

    def weights(x: Tensor) -> Tensor:
        """Of the streams, which a row has in any company."""
        return x[:, :, 0].float().sigmoid()

    def read(x: Tensor) -> Tensor:
        return joined(fast.mean(x), *fast.read(x, weights(x), norm, EPS))

    def read_reference(x: Tensor) -> Tensor:
        return joined(hyper.mean(x, boundary), read_by(x, weights(x)))

    tolerance = FEW_STEPS if boundary == torch.bfloat16 else 2 * ALMOST
    return [
        Trial(HYPER, f"4 streams of {width}", streams, kernel, reference, tolerance),
        Trial(HYPER, f"head, 4 of {width}", streams, head, head_reference, tolerance),
        Trial(HYPER, f"given weights, 4 of {width}", streams, read, read_reference, tolerance),
    ]


def vector_trials(tools: Toolbox, device: torch.device, boundary: torch.dtype) -> list[Trial]:
    fast = RowVectors(tools)
    weight = torch.rand(4096, device=device) + 0.5
    turn = torch.exp(-torch.arange(32, device=device) / 4)

    def inputs(*shape: int) -> Callable[[], Tensor]:
        return lambda: randoms(ROWS, *shape, device=device, dtype=boundary)

    def kept(stored: RowFormat, tolerance: float, *, normed: bool = True) -> Trial:
        by = weight[: stored.dim] if normed else None

        def kernel(x: Tensor) -> Tensor:
            rows = Rows.empty(stored, 4 * len(x), device)
            fast.keep(x, by, EPS, positions(x), turn, rows, places(x))
            return store.get(rows, places(x))

        def reference(x: Tensor) -> Tensor:
            rows, at = Rows.empty(stored, 4 * len(x), device), positions(x)
            if by is not None:
                x = rms_norm(x, by, EPS, boundary)
            store.put(rows, places(x), rotate(x, at, turn, boundary=boundary))
            return store.get(rows, places(x))

        given = inputs(stored.dim)
        return Trial(STORE, f"rows of {stored.name}", given, kernel, reference, tolerance)

    def index_reference(x: Tensor) -> Tensor:
        x = rotate(x, positions(x), turn, boundary=boundary)
        return fp4_grid(hadamard(x, boundary))

    def queries(x: Tensor) -> Tensor:
        return rotate(rms_norm(x, None, EPS, boundary), positions(x), turn, boundary=boundary)

    tolerance = FEW_STEPS if boundary == torch.bfloat16 else ALMOST
    return [
        Trial(
            NORM,
            "1024",
            inputs(1024),
            lambda x: fast.norm(x, weight[:1024], EPS),
            lambda x: rms_norm(x, weight[:1024], EPS, boundary),
            tolerance,
        ),
        Trial(
            NORM,
            "queries of 512",
            inputs(3, 512),
            lambda x: fast.queries(x, EPS, positions(x), turn),
            queries,
            tolerance,
        ),
        Trial(
            ROPE,
            "512, backwards",
            inputs(3, 512),
            lambda x: fast.rotate(x.clone(), positions(x), turn, inverse=True),
            lambda x: rotate(x, positions(x), turn, inverse=True, boundary=boundary),
            tolerance,
        ),
        kept(kv_row(512, 64), FEW_STEPS),
        kept(window_row_v41(512), FEW_STEPS),
        kept(index_row(128), FEW_NIBBLES),
        kept(compressed_row_v41(512), FEW_NIBBLES, normed=False),
        copy_trial(tools, device, boundary),
        Trial(
            QUANT,
            "index queries of 128",
            inputs(3, 128),
            lambda x: fast.index_queries(x, positions(x), turn),
            index_reference,
            FEW_STEPS,
        ),
        Trial(
            QUANT,
            "index queries of 128, not turned",
            inputs(3, 128),
            lambda x: fast.index_queries(x, positions(x), turn, turned=False),
            lambda x: fp4_grid(rotate(x, positions(x), turn, boundary=boundary)),
            FEW_STEPS,
        ),
    ]


def copy_trial(tools: Toolbox, device: torch.device, boundary: torch.dtype) -> Trial:
    """Rows that are moved: packed by the definition on either side."""
    fast, stored = RowStore(tools), kv_row(512, 64)

    def moved(x: Tensor, kernel: RowStore | None) -> Tensor:
        source, target = (Rows.empty(stored, 4 * len(x) + 1, device) for _ in range(2))
        store.put(source, places(x), x)
        store.copy(source, places(x), target, places(x).flip(0), kernel)
        return store.get(target, places(x).flip(0))

    return Trial(
        STORE,
        "rows that are moved",
        lambda: randoms(ROWS, 512, device=device, dtype=boundary),
        lambda x: moved(x, fast),
        lambda x: moved(x, None),
        0.0,
    )


def compress_trials(
    tools: Toolbox, device: torch.device, boundary: torch.dtype, family: Family = "step"
) -> list[Trial]:
    """A row is all members of a group, in a slot of its own; the last of them come as they were
    projected: one that goes into the ring first, or several given ones that are read before. What
    is not stored comes out as it is."""
    kv, keys = kv_row(512, 64), index_row(128)
    return [
        _compress_trial(tools, device, boundary, stored, ratio, family)
        for stored, ratio in ((kv, 4), (kv, 128), (keys, 4), (float_row(512), 2))
    ]


def _compress_trial(
    tools: Toolbox,
    device: torch.device,
    boundary: torch.dtype,
    stored: RowFormat,
    ratio: int,
    family: Family,
) -> Trial:
    fast, halves, dim = RowCompress(tools), 2 if ratio == 4 else 1, stored.dim
    members, channels = halves * ratio, halves * dim
    ring_rows, own = members + 16, 1 if family == "step" else members // 2 + 1
    back = torch.arange(own - 1, -1, -1, device=device)
    norm, turn = torch.rand(dim, device=device) + 0.5, torch.exp(-torch.arange(32) / 4).to(device)
    ape = torch.randn(ratio, channels, device=device)

    def kernel(x: Tensor) -> Tensor:
        ring, last = torch.zeros(len(x), ring_rows, 2 * channels, device=device), closing(x, ratio)
        slots = torch.arange(len(x), device=device)
        for before in range(own, members):
            ring[slots, (last - before) % ring_rows] = x[:, members - 1 - before]
        values, gates = (part.contiguous() for part in x[:, -own:].flatten(0, 1).chunk(2, dim=1))
        at = last.unsqueeze(1) - back
        raw = Raw(values, gates, ape, at.flatten())
        rows, groups = Rows.empty(stored, 4 * len(x) + 1, device), slots * 4 + 1
        made = Groups(last // ratio, slots, groups)
        before_ring = None
        if family == "step":
            fast.put_raw(raw, slots * ring_rows + last % ring_rows, ring)
        else:
            before_ring = Own(raw, at[:, 0].contiguous(), slots * own)
        given = (ring, ratio, slots, made, norm, EPS)
        if stored.name == "float32":
            return fast.latents(*given, boundary, before_ring).float()
        fast.close(*given, turn, rows, boundary, before_ring)
        return store.get(rows, groups)

    def reference(x: Tensor) -> Tensor:
        last = closing(x, ratio)
        values, gates = x.chunk(2, dim=2)
        added = torch.zeros_like(gates)
        added[:, -own:] = ape[(last.unsqueeze(1) - back) % ratio]
        gates = gates + added
        if halves == 2:
            values, gates = (
                torch.cat([part[:, :ratio, :dim], part[:, ratio:, dim:]], 1)
                for part in (values, gates)
            )
        entry = pool(values.contiguous(), gates.contiguous(), norm, EPS, boundary)
        if stored.name == "float32":
            return entry.float()
        entry = rotate(entry, last // ratio * ratio, turn, boundary=boundary)
        if stored.name == "fp4":
            entry = hadamard(entry, boundary)
        rows, at = Rows.empty(stored, len(x), device), torch.arange(len(x), device=device)
        store.put(rows, at, entry)
        return store.get(rows, at)

    return Trial(
        COMPRESS,
        f"{ratio} tokens to {stored.name} of {dim}",
        lambda: randoms(ROWS, members, 2 * channels, device=device, dtype=torch.float32),
        kernel,
        reference,
        FEW_STEPS,
    )


def route_trials(tools: Toolbox, device: torch.device, experts: int = 256) -> list[Trial]:
    fast, bias = RowRoute(tools), torch.randn(experts, device=device) / 4
    drawn = torch.rand(100, experts, device=device)
    drawn[:, 5] = 2.0  # in every row: tests make that logit no number
    table = drawn.topk(6, dim=1).indices
    scale = 1.5

    def logits() -> Tensor:
        return randoms(ROWS, experts, device=device, dtype=torch.float32)

    def given(x: Tensor, hashed: bool) -> dict[str, Tensor | None]:
        if hashed:
            return {"bias": None, "table": table, "token_ids": positions(x) % 100}
        return {"bias": bias, "table": None, "token_ids": None}

    def trial(how: str, hashed: bool) -> Trial:
        return Trial(
            ROUTE,
            f"6 of {experts} by {how}",
            logits,
            lambda x: joined(*fast.route(x, 6, scale, **given(x, hashed))),
            lambda x: joined(*route(x, 6, scale, **given(x, hashed))),
            ALMOST,
        )

    return [trial("bias", False), trial("a table", True)]


def shared_trial(tools: Toolbox, device: torch.device, boundary: torch.dtype) -> Trial:
    fast = RowShared(tools)

    def kernel(x: Tensor) -> Tensor:
        gate, up = (part.contiguous() for part in x.unbind(1))
        return fast.swiglu(gate, up, 1.0)

    def reference(x: Tensor) -> Tensor:
        gate, up = x.unbind(1)
        return swiglu(gate, up, 1.0, boundary)

    return Trial(
        EXPERTS,
        "shared expert of 2048",
        lambda: randoms(ROWS, 2, 2048, device=device, dtype=boundary),
        kernel,
        reference,
        FEW_STEPS if boundary == torch.bfloat16 else ALMOST,
    )


def sample_trial(tools: Toolbox, device: torch.device, vocab: int = 129_280) -> Trial:
    """Some rows greedy, some with a temperature, and of these some with min-p."""
    fast = StepSample(tools)

    def params(x: Tensor) -> SampleParams:
        key, one = positions(x), torch.ones(len(x), device=device)
        return SampleParams(
            temperature=key % 3 * 0.7,
            top_p=one,
            top_k=torch.zeros_like(key),
            min_p=key % 2 * 0.02,
            seed=key * 7919,
            choice=key % 5,
            position=key,
        )

    def told(tokens: Tensor) -> Tensor:
        """What was not drawn is no number."""
        return tokens.float().masked_fill(tokens < 0, float("nan")).unsqueeze(1)

    return Trial(
        SAMPLE,
        f"of {vocab} tokens",
        lambda: randoms(ROWS, vocab, device=device, dtype=torch.float32) * 3,
        lambda x: told(fast.draw(x, params(x))),
        lambda x: told(sample(x, params(x))),
        0.0,
    )


def randoms(rows: int, *shape: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Rows of different sizes."""
    sizes = torch.exp2(torch.randn(rows, *(1 for _ in shape), device=device))
    return (torch.randn(rows, *shape, device=device) * sizes).to(dtype)


def positions(x: Tensor) -> Tensor:
    """A number for each row, which it has in any company."""
    return (x.flatten(1)[:, 0].float().abs() * 1e4).long()


def closing(x: Tensor, ratio: int) -> Tensor:
    """For each row a position that closes a group, with a whole group in front of it."""
    return (positions(x) % 1000 + 2) * ratio - 1


def places(x: Tensor) -> Tensor:
    return torch.arange(len(x), device=x.device) * 4 + 1


def joined(*parts: Tensor) -> Tensor:
    return torch.cat([part.flatten(1).float() for part in parts], dim=1)
