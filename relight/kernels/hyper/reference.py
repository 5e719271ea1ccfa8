"""The definition of hyper. All float32; the official order: product first, then the norm's
factor."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.invariant import inverse_rms, matmul_rows, sigmoid, tree_sum

CPU_BYTES = 4 * 2**20
"""Of terms [n, hc, hc, D] that are held at once: more would leave the processor's cache."""


def mix(
    streams: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    iterations: int,
    eps: float,
    norm_eps: float,
    family: Family,
) -> tuple[Tensor, Tensor, Tensor]:
    hc = streams.shape[1]
    parts = _projected(streams, fn, norm_eps, family).split([hc, hc, hc * hc], dim=1)
    bases = base.split([hc, hc, hc * hc])
    pre = sigmoid(parts[0] * scale[0] + bases[0]) + eps
    post = 2.0 * sigmoid(parts[1] * scale[1] + bases[1])
    comb = (parts[2] * scale[2] + bases[2]).unflatten(1, (hc, hc))
    return pre, post, _sinkhorn(comb, iterations, eps)


def head(
    streams: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    eps: float,
    norm_eps: float,
    family: Family,
) -> Tensor:
    return sigmoid(_projected(streams, fn, norm_eps, family) * scale + base) + eps


def _projected(streams: Tensor, fn: Tensor, norm_eps: float, family: Family) -> Tensor:
    """[n, outputs]: the normed streams, stream after stream, times fn."""
    flat = streams.float().flatten(1)
    return matmul_rows(flat, fn, family) * inverse_rms(flat, norm_eps)


def _sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Softmax of the rows, then rows and columns normalised in turn, ending with columns.

    Laid out as [row, column, n] on the way: so a sum adds long vectors, and not twos and fours.
    For few rows an operation takes as long as a view, so views are made once.
    """
    logits = logits.permute(1, 2, 0).contiguous()
    powers = torch.exp(logits - logits.amax(1, keepdim=True))
    comb = powers / tree_sum(powers, 1).unsqueeze(1) + eps
    row_sums, column_sums = _sums(comb, 1), _sums(comb, 0)
    comb.div_(column_sums().add_(eps))
    for _ in range(iterations - 1):
        comb.div_(row_sums().add_(eps))
        comb.div_(column_sums().add_(eps))
    return comb.permute(2, 0, 1).contiguous()


def _sums(x: Tensor, dim: int) -> Callable[[], Tensor]:
    """Gives `tree_sum` of what x holds when it is called, with the dim kept; in one tensor."""
    assert x.shape[dim] & (x.shape[dim] - 1) == 0, "a tree of halves"
    adds: list[tuple[Tensor, Tensor, Tensor]] = []
    while not adds or x.shape[dim] > 1:
        low, high = x.chunk(2, dim)
        x = torch.empty_like(low, memory_format=torch.contiguous_format)
        adds.append((low, high, x))

    def sums() -> Tensor:
        for low, high, out in adds:
            torch.add(low, high, out=out)
        return out

    return sums


def collapse(streams: Tensor, pre: Tensor, boundary: torch.dtype) -> Tensor:
    return tree_sum(streams.float() * pre.unsqueeze(-1), 1).to(boundary)


def mean(streams: Tensor, boundary: torch.dtype) -> Tensor:
    return (tree_sum(streams.float(), 1) / streams.shape[1]).to(boundary)


def expand(
    out: Tensor, streams: Tensor, post: Tensor, comb: Tensor, boundary: torch.dtype
) -> Tensor:
    rows = out.shape[0]
    if out.device.type == "cpu":
        rows = max(1, CPU_BYTES // (4 * comb.shape[1] * math.prod(streams.shape[1:])))
    if out.shape[0] <= rows:
        return _expanded(out, streams, post, comb, boundary)
    parts = [
        _expanded(
            out[at : at + rows],
            streams[at : at + rows],
            post[at : at + rows],
            comb[at : at + rows],
            boundary,
        )
        for at in range(0, out.shape[0], rows)
    ]
    return torch.cat(parts)


def _expanded(
    out: Tensor, streams: Tensor, post: Tensor, comb: Tensor, boundary: torch.dtype
) -> Tensor:
    spread = post.unsqueeze(-1) * out.float().unsqueeze(1)
    mixed = tree_sum(comb.unsqueeze(-1) * streams.float().unsqueeze(2), 1)  # [n, hc, D]
    return (spread + mixed).to(boundary)
