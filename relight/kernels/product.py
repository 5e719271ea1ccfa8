"""Products with weights in their stored form, decoded tile by tile. Knows no op.

Unless its values are kept (`unpack`) a tile is decoded, multiplied and dropped: so it stays in
the CPU's cache, and on other devices costs a bounded scratch. Tiles are cut at fixed rows of the
weight, so they have no part in what a row's bits depend on.
"""

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.codec import Weight, fp8_round
from relight.kernels.invariant import BLOCK_ROWS, matmul_rows

TILE_ROWS = 128
"""Tiles are cut at multiples of this: no FP8 block is cut."""

CPU_TILE_BYTES = 8 * 2**20
DEVICE_TILE_BYTES = 256 * 2**20


def multiply(
    x: Tensor, w: Weight, family: Family, *, quantised: bool = False, rows: int = BLOCK_ROWS
) -> Tensor:
    """x [n, K] times w [N, K] transposed -> [n, N] float32, in blocks of `rows` given rows.

    With `quantised`, the input of an FP8 or FP4 weight is rounded to the FP8 grid first.
    """
    x = fp8_round(x, w.act_block) if quantised and w.quantised else x.float()
    outputs, inner = w.shape
    size = CPU_TILE_BYTES if x.device.type == "cpu" else DEVICE_TILE_BYTES
    tile = max(1, size // (4 * inner * TILE_ROWS)) * TILE_ROWS
    if outputs <= tile:
        return matmul_rows(x, w.decode(), family, rows)
    parts = [
        matmul_rows(x, w.rows(at, min(at + tile, outputs)).decode(), family, rows)
        for at in range(0, outputs, tile)
    ]
    return torch.cat(parts, dim=1)
