"""What makes the bits of a row independent of the rows around it. Knows no op.

A library sum or matrix product picks its order of additions by the shape of the whole problem, by
the number of threads and by alignment. Everything here fixes the order instead: sums are trees of
elementwise additions, products have fixed shapes (given rows in zero-padded blocks, made rows one
by one), and functions are composed of those whose result does not depend on the place of an
element.

Callers must leave `torch.backends.cuda.matmul.allow_tf32` off, which is torch's default.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.numerics import Family

BLOCK_ROWS = 64
"""Rows of a block of the prefill family."""

TILE_COLUMNS, TILE_INNER = 64, 256
"""Outputs and terms of one library product: too small for a library to split among threads.
Measured with MKL on an Intel CPU with AVX-512: unsplit rows of K >= 1024 depend on the number of
threads, with 16 threads also on their place, and single rows on the number of threads at any K.
Tiles do not, on that CPU, an AMD one and an H200, for 1 to 16 threads and all layer shapes of
V4."""

ALIGN = 16
"""K and N are padded to multiples of this: with an odd K or N = 24 the bits depend on place or
threads even on the AMD CPU."""


def tree_sum(x: Tensor, dim: int) -> Tensor:
    """Sum over `dim` as a tree of halves, as if zero-padded to a power of two, in the dtype of
    x."""
    dim %= x.dim()
    size = x.shape[dim]
    if size == 0:
        return x.sum(dim)
    while size > 1:
        half = 1 << ((size - 1).bit_length() - 1)
        rest = size - half
        if rest == half:
            low, high = x.chunk(2, dim)
            x = low + high
        else:
            low, middle, high = (
                x.narrow(dim, at, length)
                for at, length in ((0, rest), (rest, half - rest), (half, rest))
            )
            x = torch.cat([low + high, middle], dim)
        size = half
    return x.squeeze(dim)


def in_blocks(fn: Callable[..., Tensor], *tensors: Tensor, rows: int = BLOCK_ROWS) -> Tensor:
    """Applies `fn` to blocks of exactly `rows` rows of the tensors (first dim), the last one padded
    with zeros, and joins the rows of its results. Blocks are fresh copies: the alignment of what
    the caller holds cannot matter. At least one block is computed, so that n = 0 keeps its
    shapes."""
    count = tensors[0].shape[0]
    results = []
    for start in range(0, max(count, 1), rows):
        block = [_padded(tensor[start : start + rows], rows) for tensor in tensors]
        results.append(fn(*block)[: max(min(rows, count - start), 0)])
    return results[0] if len(results) == 1 else torch.cat(results)


def _padded(part: Tensor, rows: int) -> Tensor:
    block = part.new_zeros((rows, *part.shape[1:]))
    block[: part.shape[0]] = part
    return block


def family_rows(family: Family, rows: int = BLOCK_ROWS) -> int:
    """Rows of one block: made rows are computed one by one."""
    return rows if family == "prefill" else 1


def matmul_rows(x: Tensor, w: Tensor, family: Family, rows: int = BLOCK_ROWS) -> Tensor:
    """x [n, K] float32 times w [N, K] float32 transposed -> [n, N] float32.

    The prefill family multiplies blocks of `rows` rows, the step family one row at a time; the two
    differ in bits. Sums run over tiles of the terms in ascending order.
    """
    count, (columns, inner) = x.shape[0], w.shape
    short, narrow = -columns % TILE_COLUMNS, -inner % ALIGN
    if short or narrow:
        w = F.pad(w, (0, narrow, 0, short))
    tiles: Tensor = w.unflatten(0, (-1, TILE_COLUMNS)).transpose(1, 2)  # [t, K, 64]
    rows = family_rows(family, rows)
    blocks = _blocks(x, rows, narrow)  # [b, rows, K]
    out = _products(blocks[..., :TILE_INNER], tiles[:, :TILE_INNER])
    for at in range(TILE_INNER, tiles.shape[1], TILE_INNER):
        out += _products(blocks[..., at : at + TILE_INNER], tiles[:, at : at + TILE_INNER])
    return out.transpose(1, 2).reshape(-1, w.shape[0])[:count, :columns].contiguous()


def _blocks(x: Tensor, rows: int, narrow: int) -> Tensor:
    """x [n, K] as [blocks, rows, K + narrow] in memory of its own, zero behind the last row: so
    each block begins at a multiple of 64 bytes, wherever the caller's tensor lies. At least one."""
    if x.shape[0] == rows and not narrow:
        return x.clone(memory_format=torch.contiguous_format).unsqueeze(0)
    count = max(-(-x.shape[0] // rows), 1)
    padded = x.new_zeros((count * rows, x.shape[1] + narrow))
    padded[: x.shape[0], : x.shape[1]] = x
    return padded.view(count, rows, -1)


def _products(blocks: Tensor, tiles: Tensor) -> Tensor:
    """Each of blocks [b, m, k] times all of tiles [t, k, c] -> [b, t, m, c].

    A loop, since in a larger batch a library may order its sums otherwise. The views are made
    outside of it: for one row they would cost more than its product.
    """
    if len(blocks) == 1:
        return torch.bmm(blocks.expand(len(tiles), -1, -1), tiles).unsqueeze(0)
    wide = blocks.unsqueeze(1).expand(-1, tiles.shape[0], -1, -1)
    out = blocks.new_empty((*wide.shape[:3], tiles.shape[2]))
    for block, result in zip(wide.unbind(), out.unbind(), strict=True):
        torch.bmm(block, tiles, out=result)
    return out


def sigmoid(x: Tensor) -> Tensor:
    """torch.sigmoid has another result in the vectorised body of a tensor than in its tail."""
    return 1.0 / (1.0 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    return x * sigmoid(x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) without overflow."""
    return x.clamp(min=0.0) + torch.log1p(torch.exp(-x.abs()))


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last dim, which stays with size 1."""
    return torch.rsqrt(tree_sum(x * x, -1).unsqueeze(-1) / x.shape[-1] + eps)


def keep_largest(x: Tensor, least: Tensor, count: Tensor) -> Tensor:
    """Mask [n, m] of `count` [n] values of each row of x [n, m]: all above `least` [n], which is
    the count-th largest, and of those equal to it the ones with the lowest index."""
    above = x > least.unsqueeze(1)
    equal = x == least.unsqueeze(1)
    wanted = count - above.sum(1)
    return above | (equal & (equal.cumsum(1) <= wanted.unsqueeze(1)))
