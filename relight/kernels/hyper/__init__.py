"""Hyper-connections (mHC): how a sublayer reads the residual streams and how its output is spread
over them. Knows no sublayer.

`pre` weighs the streams into the sublayer's input, `post` its output into each stream, and `comb`,
doubly stochastic by Sinkhorn iterations, mixes the streams among themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.check import F32, FLOATS, expect, expect_boundary, expect_family
from relight.kernels.hyper import reference


class FastHyper(Protocol):
    """Kernels. Rows that they have mixed are spread by them, too."""

    def expand(
        self, out: Tensor, streams: Tensor, mix: "Mix", parts: Tensor | None = None
    ) -> Tensor: ...


def nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Mix:
    """Weights of one sublayer, float32. `finish` is called before the streams are spread: until
    then comb need not be there."""

    pre: Tensor  # [n, hc]
    post: Tensor  # [n, hc]
    comb: Tensor  # [n, hc, hc], from stream, to stream
    fast: FastHyper | None = field(default=None, kw_only=True, repr=False)  # made it, and goes on
    finish: Callable[[], None] = field(default=nothing, kw_only=True, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Unspread:
    """Streams behind a sublayer that are not spread yet, since what reads them can do that."""

    out: Tensor  # [n, D]
    routed: Tensor | None  # [n, slots, D] float32, to which out is added last
    streams: Tensor  # [n, hc, D], before the sublayer
    mix: Mix


def mix(
    streams: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    *,
    iterations: int,
    eps: float,
    norm_eps: float,
    family: Family,
) -> Mix:
    """The weights of a sublayer from its input streams [n, hc, D].

    fn [hc * (2 + hc), hc * D], base [hc * (2 + hc)] and scale [3] float32; rows are pre, post,
    comb.
    """
    _, hc, width = streams.shape
    outputs = hc * (2 + hc)
    expect(streams, "streams", (None, None, None), FLOATS)
    expect(fn, "fn", (outputs, hc * width), F32)
    expect(base, "base", (outputs,), F32)
    expect(scale, "scale", (3,), F32)
    assert iterations >= 1, f"iterations is {iterations}; wanted 1 or more"
    expect_family(family)
    return Mix(*reference.mix(streams, fn, base, scale, iterations, eps, norm_eps, family))


def head(
    streams: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    *,
    eps: float,
    norm_eps: float,
    family: Family,
) -> Tensor:
    """The weights `pre` [n, hc] of the last collapse; fn [hc, hc * D], base [hc], scale [1]."""
    _, hc, width = streams.shape
    expect(streams, "streams", (None, None, None), FLOATS)
    expect(fn, "fn", (hc, hc * width), F32)
    expect(base, "base", (hc,), F32)
    expect(scale, "scale", (1,), F32)
    expect_family(family)
    return reference.head(streams, fn, base, scale, eps, norm_eps, family)


def collapse(streams: Tensor, pre: Tensor, boundary: torch.dtype) -> Tensor:
    """sum_k pre_k * stream_k: [n, hc, D], [n, hc] -> [n, D] in `boundary`."""
    expect(streams, "streams", (None, None, None), FLOATS)
    expect(pre, "pre", streams.shape[:2], F32)
    expect_boundary(boundary)
    return reference.collapse(streams, pre, boundary)


def mean(streams: Tensor, boundary: torch.dtype) -> Tensor:
    """The mean of the streams: [n, hc, D] -> [n, D] in `boundary`, float32 inside."""
    expect(streams, "streams", (None, None, None), FLOATS)
    expect_boundary(boundary)
    return reference.mean(streams, boundary)


def expand(
    out: Tensor, streams: Tensor, post: Tensor, comb: Tensor, boundary: torch.dtype
) -> Tensor:
    """stream_k = post_k * out + sum_j comb[j, k] * stream_j, in `boundary`: out [n, D], streams
    [n, hc, D] before the sublayer, post [n, hc], comb [n, hc, hc] -> [n, hc, D]."""
    n, hc, width = streams.shape
    expect(out, "out", (n, width), FLOATS)
    expect(streams, "streams", (None, None, None), FLOATS)
    expect(post, "post", (n, hc), F32)
    expect(comb, "comb", (n, hc, hc), F32)
    expect_boundary(boundary)
    return reference.expand(out, streams, post, comb, boundary)
