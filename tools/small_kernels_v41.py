"""What the small ops of V4.1-Flash do in a step that V4's do not, by kernels and by their
definitions, to be timed by `tools.step_kernels`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from relight.base.formats import compressed_row_v41, index_row
from relight.kernels import engram, hyper, store
from relight.kernels.compress import pool
from relight.kernels.compress.rows import Groups, Raw, RowCompress
from relight.kernels.engram.rows import RowEngram
from relight.kernels.hyper.rows import RowHyper
from relight.kernels.norm import rms_norm
from relight.kernels.rope import rotate
from relight.kernels.rows import Rows
from relight.kernels.toolbox import Toolbox
from relight.kernels.vectors import RowVectors
from tools.small_kernels import Pair

BF16 = torch.bfloat16
EPS = 1e-20
WIDTH, HC, KV, INDEX = 5120, 4, 512, 128
ORDERS, HEADS, ROW, TABLE = 4, 8, 256, 2**20
"""Of n-grams; a table of 2^20 rows is larger than any cache."""


def pairs_v41(tools: Toolbox, device: torch.device, rows: int) -> list[Pair]:
    return [
        *_streams(tools, device, rows),
        *_entries(tools, device, rows),
        *_ngrams(tools, device, rows),
    ]


def _streams(tools: Toolbox, device: torch.device, rows: int) -> list[Pair]:
    fast, norm = RowHyper(tools), torch.rand(WIDTH, device=device)
    streams = torch.randn(rows, HC, WIDTH, device=device).to(BF16)
    pre = torch.rand(rows, HC, device=device)

    def definition() -> Tensor:
        return rms_norm(hyper.collapse(streams, pre, BF16), norm, EPS, BF16)

    return [
        Pair("streams read", 1, lambda: fast.read(streams, pre, norm, EPS), definition),
        Pair("streams' mean", 1, lambda: fast.mean(streams), lambda: hyper.mean(streams, BF16)),
    ]


def _entries(tools: Toolbox, device: torch.device, rows: int) -> list[Pair]:
    """Every row closes a group, of a slot of its own."""
    fast, compress = RowVectors(tools), RowCompress(tools)
    latent = torch.randn(rows, KV, device=device).to(BF16)
    key = torch.randn(rows, INDEX, device=device).to(BF16)
    weight, turn = torch.rand(KV, device=device), torch.rand(32, device=device)
    slots = torch.arange(rows, device=device)
    at, places = slots + 70_000, slots + 1
    keys, entries = (
        Rows.empty(stored, rows + 1, device)
        for stored in (index_row(INDEX), compressed_row_v41(KV))
    )

    def kernel_rows() -> None:
        fast.keep(key, weight[:INDEX], EPS, at, turn, keys, places)
        fast.keep(latent, None, EPS, at, turn, entries, places)

    def definition_rows() -> None:
        x = rms_norm(key, weight[:INDEX], EPS, BF16)
        store.put(keys, places, rotate(x, at, turn, boundary=BF16))
        store.put(entries, places, rotate(latent, at, turn, boundary=BF16))

    ring = torch.randn(rows, 18, 2 * KV, device=device)
    values, gates = torch.randn(2, rows, KV, device=device)
    last = torch.full_like(slots, 2 * 90 - 1)
    raw = Raw(values, gates, torch.zeros(2, KV, device=device), last)
    groups = Groups(last // 2, slots, places)

    def kernel_pool() -> Tensor:
        compress.put_raw(raw, slots * 18 + last % 18, ring)
        return compress.latents(ring, 2, slots, groups, weight, EPS, BF16)

    def definition_pool() -> Tensor:
        ring[:, 0] = torch.cat([values, gates], dim=1)
        members = ring[:, :2]
        parts = (members[..., :KV].contiguous(), members[..., KV:].contiguous())
        return pool(*parts, weight, EPS, BF16)

    return [
        Pair("V4.1's key and entry kept", 2, kernel_rows, definition_rows),
        Pair("compressor 2 to values", 2, kernel_pool, definition_pool),
    ]


@dataclass(frozen=True)
class _Table:
    data: Tensor
    scale: Tensor
    factors: Tensor
    primes: Tensor


def _table(device: torch.device) -> _Table:
    def some(low: int, high: int, width: int) -> Tensor:
        return torch.randint(low, high, (TABLE, width), dtype=torch.uint8, device=device)

    return _Table(
        data=some(0, 126, ROW),
        scale=some(110, 130, ROW // 32),
        factors=torch.randint(2**40, 2**45, (ORDERS,), device=device) * 2 + 1,
        primes=torch.randint(40_000, 43_000, (ORDERS - 1, HEADS), device=device),
    )


def _ngrams(tools: Toolbox, device: torch.device, rows: int) -> list[Pair]:
    fast, t = RowEngram(tools), _table(device)
    classes = torch.randint(99_092, (rows, ORDERS), device=device)
    streams = torch.randn(rows, HC, WIDTH, device=device).to(BF16)
    mapped = torch.randn(rows, (HC + 1) * WIDTH, device=device).to(BF16)
    gain = torch.randn(HC, WIDTH, device=device)

    def found(kernels: RowEngram | None) -> Tensor:
        places = engram.table_rows(classes, t.factors, t.primes, kernels)
        return engram.gather(t.data, t.scale, places, BF16, kernels)

    def gate(kernels: RowEngram | None) -> Tensor:
        return engram.gate(streams, mapped, gain, EPS, BF16, kernels)

    return [
        Pair("n-grams looked up", 2, lambda: found(fast), lambda: found(None)),
        Pair("n-grams' gate", 1, lambda: gate(fast), lambda: gate(None)),
    ]
