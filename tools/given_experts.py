"""What of the routed experts of given rows is timed: those of one V4 layer. Knows no clock."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from relight.kernels.codec import StackedFp4
from relight.kernels.experts.cuda import V4_WIDTHS
from relight.kernels.experts.given import GivenExperts, Pairs
from relight.kernels.experts.groups import fitted
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials import fp4_stack, tokens

BF16 = torch.bfloat16
ROWS = (1, 16, 128, 512, 2048, 8192)
PARTS_OF = (2048, 8192)
"""Rows of which each launch is timed by itself."""
EXPERTS, SLOTS, LIMIT = 256, 6, 10.0
PEER_BYTES = 20 * 2**30
"""Of memory for weights that are decoded already: 12.9 GB, and what decoding takes."""


@dataclass(frozen=True)
class Case:
    """`flop` and `nbytes` (of weights) are those that rows need; `peers` do the same in bf16, an
    expert after the other, with weights that are decoded and lists of rows that are known."""

    name: str
    rows: int
    flop: int
    nbytes: int
    runs: Sequence[Callable[[], object]]
    peers: Sequence[Callable[[], object]] = ()


Stacks = tuple[StackedFp4, StackedFp4, StackedFp4]


def cases(tools: Toolbox, device: torch.device) -> Iterator[Case]:
    width, inner = V4_WIDTHS
    gate, up = (fp4_stack(EXPERTS, inner, width, device) for _ in range(2))
    stacks = (gate, up, fp4_stack(EXPERTS, width, inner, device))
    peer = None
    if torch.cuda.mem_get_info(device)[0] > PEER_BYTES:
        peer = _Peer(stacks)
    for rows in ROWS:
        yield _case(tools, stacks, "random", _drawn(rows, device), peer)
    same = torch.arange(0, EXPERTS, EXPERTS // SLOTS, device=device)[:SLOTS]
    yield _case(tools, stacks, "the same", same.expand(2048, SLOTS).contiguous(), peer)
    for rows in PARTS_OF:
        yield from _parts(tools, stacks, _drawn(rows, device))


def _drawn(rows: int, device: torch.device) -> Tensor:
    chosen = torch.rand(rows, EXPERTS, device=device).topk(SLOTS).indices
    return chosen.sort(dim=1).values


def _sizes(stacks: Sequence[StackedFp4], ids: Tensor) -> tuple[int, int]:
    flop = sum(2 * 2 * w.data[0].numel() for w in stacks) * ids.numel()
    nbytes = sum(w.data[0].nbytes + w.scale[0].nbytes for w in stacks)
    return flop, nbytes * int((ids.flatten().bincount() > 0).sum())


def _case(tools: Toolbox, stacks: Stacks, which: str, ids: Tensor, peer: "_Peer | None") -> Case:
    rows, device = len(ids), ids.device
    x, route = tokens(rows, V4_WIDTHS[0], device, BF16), torch.rand(ids.shape, device=device)
    fast = fitted(GivenExperts(tools), *stacks)
    run = partial(fast.experts, x, ids, route, *stacks, LIMIT, BF16)
    peers = [peer.run(x, ids, route)] if peer else []
    return Case(f"experts, {which} ones", rows, *_sizes(stacks, ids), [run], peers)


def _parts(tools: Toolbox, stacks: Stacks, ids: Tensor) -> Iterator[Case]:
    fast, rows, device = fitted(GivenExperts(tools), *stacks), len(ids), ids.device
    assert isinstance(fast, GivenExperts)
    gate, up, down = stacks
    x, route = tokens(rows, V4_WIDTHS[0], device, BF16), torch.rand(ids.shape, device=device)
    pairs, out = Pairs(tools, ids, EXPERTS, fast.TILE_PAIRS), torch.empty(x.shape, device=device)
    yield Case("experts: order", rows, 0, 0, [partial(Pairs, tools, ids, EXPERTS)])
    hidden = partial(fast.hidden, x, pairs, route, gate, up, LIMIT, BF16)
    yield Case("experts: rounding, gate, up", rows, *_sizes((gate, up), ids), [hidden])
    run = partial(fast.down, hidden(), pairs, down, BF16, out)
    yield Case("experts: down, sum", rows, *_sizes((down,), ids), [run])


class _Peer:
    """torch, with matrices in bf16."""

    def __init__(self, stacks: Stacks) -> None:
        self._decoded = [
            torch.stack([w.expert(e).decode().to(BF16) for e in range(EXPERTS)]) for w in stacks
        ]

    def run(self, x: Tensor, ids: Tensor, route: Tensor) -> Callable[[], Tensor]:
        lists = [torch.where(ids == e) for e in range(EXPERTS)]
        chosen = [
            (e, rows, route[rows, slots].unsqueeze(1))
            for e, (rows, slots) in enumerate(lists)
            if len(rows)
        ]
        return partial(self._experts, x, chosen)

    def _experts(self, x: Tensor, chosen: list[tuple[int, Tensor, Tensor]]) -> Tensor:
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        gate, up, down = self._decoded
        for expert, rows, weight in chosen:
            some = x.index_select(0, rows)
            g, u = some @ gate[expert].T, some @ up[expert].T
            hidden = torch.nn.functional.silu(g.clamp(max=LIMIT)) * u.clamp(-LIMIT, LIMIT)
            made = (hidden * weight).to(BF16) @ down[expert].T
            out.index_add_(0, rows, made.float())
        return out
