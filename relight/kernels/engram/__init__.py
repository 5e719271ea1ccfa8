"""Engram: rows of an n-gram table by hashes, and how much of them each stream takes. Knows no
sequence and no tokenizer."""

from typing import Protocol

import torch
from torch import Tensor

from relight.kernels.check import F32, FLOATS, I64, U8, expect, expect_boundary
from relight.kernels.engram import reference


class FastEngram(Protocol):
    """Kernels, chosen at load for rows of a family."""

    def takes(self, streams: Tensor, boundary: torch.dtype) -> bool: ...

    def takes_table(self, table: Tensor, scale: Tensor) -> bool: ...

    def table_rows(self, classes: Tensor, factors: Tensor, primes: Tensor) -> Tensor: ...

    def gather(
        self, table: Tensor, scale: Tensor, rows: Tensor, boundary: torch.dtype
    ) -> Tensor: ...

    def gate(self, streams: Tensor, mapped: Tensor, gain: Tensor, eps: float) -> Tensor: ...


def table_rows(
    classes: Tensor, factors: Tensor, primes: Tensor, fast: FastEngram | None = None
) -> Tensor:
    """classes [n, N] int64, of a token and of those 1 … N - 1 back; factors [N] int64, primes
    [N - 1, heads] int64 -> rows [n, (N - 1) * heads] int64, by order, then by head.

    The hash of order m xors the products of the first m classes and factors, all below 2^63, and
    is taken modulo each prime; a prime's run of rows begins behind those of the primes before it.
    """
    expect(classes, "classes", (None, factors.shape[0]), I64)
    expect(factors, "factors", (None,), I64)
    expect(primes, "primes", (factors.shape[0] - 1, None), I64)
    if fast is not None:
        return fast.table_rows(classes, factors, primes)
    return reference.table_rows(classes, factors, primes)


def gather(
    table: Tensor,
    scale: Tensor,
    rows: Tensor,
    boundary: torch.dtype = torch.float32,
    fast: FastEngram | None = None,
) -> Tensor:
    """The values of table rows [n, c], side by side: table [R, d] E4M3 bytes, scale [R, d / 32]
    UE8M0 bytes -> [n, c * d] in `boundary`, which holds them exactly."""
    expect(table, "table", (None, None), U8)
    expect(scale, "scale", (table.shape[0], table.shape[1] // 32), U8)
    expect(rows, "rows", (None, None), I64)
    expect_boundary(boundary)
    if fast is not None and fast.takes_table(table, scale):
        return fast.gather(table, scale, rows, boundary)
    return reference.gather(table, scale, rows).to(boundary)


def gate(
    streams: Tensor,
    mapped: Tensor,
    gain: Tensor,
    eps: float,
    boundary: torch.dtype,
    fast: FastEngram | None = None,
) -> Tensor:
    """streams [n, hc, D], mapped [n, (hc + 1) * D] (a key for each stream, then one value), gain
    [hc, D] float32 -> stream_k + g_k * value, [n, hc, D] in `boundary`; float32 inside.

    g = sigmoid(±sqrt(max(|s|, 1e-6))) with the sign of s = (x . gain * key) / (|x| |key|) * sqrt(D)
    per stream, norms as root mean squares with eps under the root.
    """
    _, hc, width = streams.shape
    expect(streams, "streams", (None, None, None), FLOATS)
    expect(mapped, "mapped", (streams.shape[0], (hc + 1) * width), FLOATS)
    expect(gain, "gain", (hc, width), F32)
    expect_boundary(boundary)
    if fast is not None and mapped.dtype == boundary and fast.takes(streams, boundary):
        return fast.gate(streams, mapped, gain, eps)
    return reference.gate(streams, mapped, gain, eps, boundary)
