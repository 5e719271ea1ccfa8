"""What of the products of given rows is timed: those of one V4 layer. Knows no clock."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from relight.kernels.codec import DenseWeight, Fp8Weight, Weight
from relight.kernels.linear.given import GivenLinear
from relight.kernels.tiles import Tile
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials import fp8_weight, tokens

BF16 = torch.bfloat16
ROWS = (16, 128, 512, 2048, 8192)
FP8 = (
    ("wq_a", 1024, 4096),
    ("wkv", 512, 4096),
    ("shared w1", 2048, 4096),
    ("shared w2", 4096, 2048),
    ("wq_b", 32_768, 1024),
    ("index wq_b", 8192, 1024),
    ("wo_b", 4096, 8192),
)
DENSE = (
    ("router", 256, 4096, torch.float32),
    ("compressor", 1024, 4096, torch.float32),
    ("weights_proj", 64, 4096, BF16),
)
TRIED = (
    ("128 x 128, 3 stages", 1, (4, 2, 8, 1, 3, 1)),
    ("128 x 128, 4 stages", 1, (4, 2, 8, 1, 4, 1)),
    ("128 x 128, 6 stages", 1, (4, 2, 8, 1, 6, 1)),
    ("128 x 128, 6 stages, 2 a turn", 1, (4, 2, 8, 1, 6, 2)),
    ("128 x 64, two blocks", 1, (4, 1, 8, 2, 4, 1)),
    ("64 x 128, two blocks", 1, (2, 2, 8, 2, 4, 1)),
    ("128 x 64, warps of 32", 1, (4, 2, 4, 1, 4, 1)),
    ("128 x 128, values", 2, (4, 2, 8, 1, 4, 1)),
    ("128 x 64, two blocks, values", 2, (4, 1, 8, 2, 4, 1)),
)
"""How, bytes of a token's value, and of the tile: warps along rows and tokens, tokens of a warp by
8, blocks a processor, stages, and units of a turn."""
GROUPS = 8
COPIES = 2
RATE_SIZE = 8192


@dataclass(frozen=True)
class Case:
    """`peers` multiply the same in bf16, with weights that are decoded already."""

    name: str
    rows: int
    flop: int
    runs: Sequence[Callable[[], object]]
    rounding: Sequence[Callable[[], object]]  # the same with what comes before: tokens to E4M3
    peers: Sequence[Callable[[], object]]


def cases(tools: Toolbox, device: torch.device) -> Iterator[Case]:
    fast = GivenLinear(tools)
    for name, outputs, inner in FP8:
        some = [fp8_weight(outputs, inner, device) for _ in range(COPIES)]
        for rows in ROWS:
            x = tokens(rows, inner, device, BF16)
            codes, scales = fast.rounded(x, some[0])
            yield Case(
                name,
                rows,
                2 * rows * outputs * inner,
                [partial(fast.multiply, codes, scales, w, BF16) for w in some],
                [partial(fast.linear, x, w, BF16) for w in some],
                [partial(torch.matmul, x, w.decode().to(BF16).T) for w in some],
            )
    for name, outputs, inner, boundary in DENSE:
        dense = DenseWeight(torch.randn(outputs, inner, device=device).to(BF16))
        for rows in ROWS:
            x = tokens(rows, inner, device, BF16)
            run = partial(fast.linear, x, dense, boundary)
            peer = partial(torch.matmul, x, dense.data.T)
            yield Case(name, rows, 2 * rows * outputs * inner, [run], [], [peer])
    yield from _grouped(fast, device)


def _grouped(fast: GivenLinear, device: torch.device) -> Iterator[Case]:
    outputs, inner = GROUPS * 1024, 4096
    some = [fp8_weight(outputs, inner, device) for _ in range(COPIES)]
    for rows in ROWS:
        x = tokens(rows, GROUPS * inner, device, BF16).view(rows, GROUPS, inner)
        runs = [partial(fast.grouped, x, w, BF16) for w in some]
        peers = [partial(_group_peer, x, _by_group(w)) for w in some]
        yield Case("wo_a", rows, 2 * rows * outputs * inner, runs, [], peers)


def _by_group(w: Fp8Weight) -> Tensor:
    return w.decode().to(BF16).view(GROUPS, -1, w.shape[1])


def _group_peer(x: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("ngk,grk->ngr", x, w)


class ByTile(GivenLinear):
    """With one tile for all."""

    def __init__(self, tools: Toolbox, tile: Tile) -> None:
        super().__init__(tools)
        self._one = tile

    def _tile(self, rows: int, w: Weight, x_bytes: int, groups: int) -> Tile:
        return self._one


def tried(tools: Toolbox, device: torch.device) -> Iterator[Case]:
    """Other tiles and stages than those that are taken, and tokens as values where codes are: what
    might be faster for many rows, along a long K and a short one. All give the same bits."""
    rows = 8192
    for name, outputs, inner in (("wo_b", 4096, 8192), ("wq_b", 32_768, 1024)):
        w, x = fp8_weight(outputs, inner, device), tokens(rows, inner, device, BF16)
        tokens_of = {1: tools.quantise(x), 2: (tools.round(x, 128), None)}
        for how, x_bytes, (row_warps, token_warps, *rest) in TRIED:
            token_tiles, min_blocks, stages, turn = rest
            tile = Tile(
                8, x_bytes, 128, row_warps, token_warps, 2, token_tiles, min_blocks, stages, turn
            )
            multiply = ByTile(tools, tile).multiply
            codes, scales = tokens_of[x_bytes]
            run = partial(multiply, codes, scales, w, BF16)
            yield Case(f"{name} by {how}", rows, 2 * rows * outputs * inner, [run], [], [])


def rate_run(device: torch.device) -> tuple[Callable[[], object], int]:
    """A large product in bf16 by torch, and its operations: the rate that others are shares of."""
    x, w = (torch.randn(RATE_SIZE, RATE_SIZE, device=device).to(BF16) for _ in range(2))
    return partial(torch.matmul, x, w.T), 2 * RATE_SIZE**3
