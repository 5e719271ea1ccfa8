"""The definition of engram."""

import torch
from torch import Tensor

from relight.kernels.codec import fp8_dequantise
from relight.kernels.invariant import inverse_rms, sigmoid, tree_sum

LEAST_DOT = 1e-6


def table_rows(classes: Tensor, factors: Tensor, primes: Tensor) -> Tensor:
    mixed, orders = classes[:, 0] * factors[0], []
    for order in range(1, factors.shape[0]):
        mixed = mixed ^ classes[:, order] * factors[order]
        orders.append(mixed)
    buckets = torch.stack(orders, dim=1).unsqueeze(2) % primes  # [n, N - 1, heads]
    sizes = primes.flatten()
    return buckets.flatten(1) + (sizes.cumsum(0) - sizes)


def gather(table: Tensor, scale: Tensor, rows: Tensor) -> Tensor:
    flat = rows.flatten()
    values = fp8_dequantise(table.index_select(0, flat), scale.index_select(0, flat))
    return values.view(rows.shape[0], rows.shape[1] * table.shape[1])


def gate(
    streams: Tensor, mapped: Tensor, gain: Tensor, eps: float, boundary: torch.dtype
) -> Tensor:
    hc, width = streams.shape[1:]
    x, mapped = streams.float(), mapped.float()
    keys, value = mapped[:, : hc * width].unflatten(1, (hc, width)), mapped[:, hc * width :]
    dots = tree_sum(x * gain * keys, -1).unsqueeze(-1)
    dots = dots * inverse_rms(x, eps) * inverse_rms(keys, eps) * width**-0.5
    gates = sigmoid(dots.abs().clamp(min=LEAST_DOT).sqrt().copysign(dots))
    return (x + gates * value.unsqueeze(1)).to(boundary)
