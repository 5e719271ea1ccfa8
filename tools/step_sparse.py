"""What of sparse attention and of the indexer is timed: layers of official size. Knows no clock."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from relight.base.formats import RowFormat, index_row
from relight.kernels.attend import Keys
from relight.kernels.attend import cuda as attend_cuda
from relight.kernels.attend.given import GivenAttend
from relight.kernels.attend.step import StepAttend
from relight.kernels.index import Asked
from relight.kernels.index.rows import RowIndex
from relight.kernels.quant import fp4_grid
from relight.kernels.rows import Rows
from relight.kernels.toolbox import Toolbox

WIDTHS, GIVEN_ROWS = (1, 6, 8, 16), 2048
WINDOW, LISTED, RING = 128, 192, 144
CHOSEN, STORED = 512, 32_768
CONTEXTS = (8_192, 131_072)
RATIO = 4
ATTEND_COPIES, INDEX_COPIES = 24, 64
"""Of what is read, taken in turn: more than a cache holds."""


@dataclass(frozen=True)
class Case:
    """`nbytes` are those that a launch must read, each once."""

    name: str
    rows: int
    nbytes: int
    runs: Sequence[Callable[[], object]]


def cases(tools: Toolbox, device: torch.device) -> Iterator[Case]:
    for name, shape in zip(("V4", "V4.1"), attend_cuda.shapes(tools.form), strict=True):
        windows = [packed(shape.window, 16 * RING, device) for _ in range(ATTEND_COPIES)]
        entries = [packed(shape.entries, STORED, device) for _ in range(ATTEND_COPIES)]
        for rows in WIDTHS:
            runs = attention(tools, shape, rows, windows, entries)
            nbytes = rows * (WINDOW * shape.window.bytes + CHOSEN * shape.entries.bytes)
            yield Case(f"attend {name}, {WINDOW} + {CHOSEN} keys", rows, nbytes, runs)
    for context in CONTEXTS:
        count = context // RATIO
        keys = packed(index_row(128), INDEX_COPIES * count, device)
        for rows in WIDTHS:
            nbytes = rows * count * (keys.format.bytes + 8)  # and where each key lies
            scores, both = indexer(tools, rows, keys, count)
            yield Case(f"index scores, {context:,} tokens", rows, nbytes, scores)
            yield Case(f"index, {context:,} tokens", rows, nbytes, both)


def given_cases(tools: Toolbox, device: torch.device) -> Iterator[Case]:
    """Of a chunk of one prompt. Rows share what they list, so bytes are those of the whole store
    and of the window, each once."""
    for name, shape in zip(("V4", "V4.1"), attend_cuda.shapes(tools.form), strict=True):
        run = given_attention(tools, shape, device)
        nbytes = (WINDOW + GIVEN_ROWS) * shape.window.bytes + STORED * shape.entries.bytes
        yield Case(f"given attend {name}, {WINDOW} + {CHOSEN} keys", GIVEN_ROWS, nbytes, [run])
    for context in CONTEXTS:
        count = context // RATIO
        asked, fast = given_asked(count, device), RowIndex(tools)
        nbytes = count * (asked.keys.format.bytes + 8)
        scores, both = partial(fast.scores, asked), partial(fast.select, asked, CHOSEN)
        yield Case(f"given index scores, {context:,} tokens", GIVEN_ROWS, nbytes, [scores])
        yield Case(f"given index, {context:,} tokens", GIVEN_ROWS, nbytes, [both])


def given_asked(count: int, device: torch.device) -> Asked:
    """By rows that all see so many entries of one sequence."""
    q = fp4_grid(torch.randn(GIVEN_ROWS, 64, 128, device=device))
    weights = torch.randn(GIVEN_ROWS, 64, device=device)
    keys, places = packed(index_row(128), count, device), torch.arange(count, device=device)
    seen = torch.full((GIVEN_ROWS,), count, device=device)
    one, counts = torch.zeros_like(seen), (GIVEN_ROWS,)
    return Asked(q, weights, keys, places.unsqueeze(0), counts, one, seen, "prefill")


def given_attention(
    tools: Toolbox, shape: attend_cuda.Shape, device: torch.device
) -> Callable[[], object]:
    """Each row sees the one before it and 127 more, and entries of its own choice."""
    rows, fast = GIVEN_ROWS, GivenAttend(tools)
    q = torch.randn(rows, shape.heads, shape.dim, device=device).to(shape.dtype)
    window = packed(shape.window, WINDOW + rows, device)
    entries = packed(shape.entries, STORED, device)
    listed = torch.arange(LISTED, device=device)
    near = torch.arange(rows, device=device).unsqueeze(1) + listed
    near = torch.where(listed < WINDOW, near, -1)
    far = torch.rand(rows, STORED, device=device).topk(CHOSEN, 1).indices.sort(1).values
    keys, sink = Keys(window, near, entries, far), torch.randn(shape.heads, device=device)
    return partial(fast.attend, q, keys, sink, shape.dim**-0.5)


def attention(
    tools: Toolbox,
    shape: attend_cuda.Shape,
    rows: int,
    windows: list[Rows],
    entries: list[Rows],
) -> list[Callable[[], object]]:
    """Rows of as many sequences, each with a ring of its own and entries all over the store."""
    fast, device = StepAttend(tools), windows[0].data.device
    q = torch.randn(rows, shape.heads, shape.dim, device=device).to(shape.dtype)
    sink = torch.randn(shape.heads, device=device)
    ring = torch.arange(LISTED, device=device) % RING
    near = torch.where(torch.arange(LISTED, device=device) < WINDOW, ring, -1)
    slots = torch.arange(rows, device=device).unsqueeze(1) * RING
    near = torch.where(near >= 0, slots + near, -1)
    draws = [
        torch.stack([torch.randperm(STORED)[:CHOSEN].sort().values for _ in range(rows)]).to(device)
        for _ in windows
    ]
    parts = zip(windows, entries, draws, strict=True)
    return [
        partial(fast.attend, q, Keys(window, near, stored, far), sink, shape.dim**-0.5)
        for window, stored, far in parts
    ]


def indexer(
    tools: Toolbox, rows: int, keys: Rows, count: int
) -> tuple[list[Callable[[], object]], list[Callable[[], object]]]:
    """The scores alone, and with what is chosen of them, of rows of as many sequences."""
    fast, device = RowIndex(tools), keys.data.device
    q = fp4_grid(torch.randn(rows, 64, 128, device=device))
    weights = torch.randn(rows, 64, device=device)
    visible = torch.full((rows,), count, device=device)
    at = torch.arange(count, device=device)

    def places(copy: int) -> Tensor:
        own = (torch.arange(rows) + copy) % INDEX_COPIES
        return own.to(device).unsqueeze(1) * count + at

    every = [places(copy) for copy in range(0, INDEX_COPIES, rows)]
    own, counts = torch.arange(rows, device=device), (1,) * rows
    asked = [Asked(q, weights, keys, where, counts, own, visible, "step") for where in every]
    return (
        [partial(fast.scores, one) for one in asked],
        [partial(fast.select, one, CHOSEN) for one in asked],
    )


def packed(format: RowFormat, count: int, device: torch.device) -> Rows:
    """Random bytes with scales of 1."""
    rows = Rows.empty(format, count, device)
    rows.data.random_(0, 120)
    rows.scale.fill_(56 if format.name == "fp4-fine" else 127)
    return rows
