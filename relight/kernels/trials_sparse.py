"""Trials of the CUDA kernels of sparse attention and of the indexer, as `trials` has those of
products. Knows no network.

What is listed for a row hangs on the row's first value, so that it has the same alone.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.formats import RowFormat, index_row
from relight.kernels import store
from relight.kernels.attend import FastAttend, Keys, attend
from relight.kernels.attend import cuda as attend_cuda
from relight.kernels.attend.given import GivenAttend
from relight.kernels.attend.step import StepAttend
from relight.kernels.canary import Trial
from relight.kernels.cuda_tools import ATTEND, INDEX
from relight.kernels.index import Asked
from relight.kernels.index import cuda as index_cuda
from relight.kernels.index import reference as definition
from relight.kernels.index.rows import RowIndex
from relight.kernels.quant import fp4_grid
from relight.kernels.rows import Rows
from relight.kernels.toolbox import Toolbox

ROWS = 5

SLOTS, RING, STORED = 3, 144, 900
WINDOW_KEYS, ENTRY_KEYS = 192, 512
KEYS, ENTRIES, K = 4000, 3000, 512

TO_F32, TO_BF16 = 2e-6, 2e-3
"""Sums of float32 in another order; numerators and results on the other side of a step of bf16."""


def sparse_trials(tools: Toolbox, device: torch.device) -> list[Trial]:
    return [*attend_trials(tools, device), *index_trials(tools, device)]


def attend_trials(
    tools: Toolbox, device: torch.device, rows: int = ROWS, given: bool = False
) -> list[Trial]:
    fast: FastAttend = GivenAttend(tools) if given else StepAttend(tools)

    def trial(shape: attend_cuda.Shape) -> Trial:
        window, entries = rings(shape.window, device), filled(shape.entries, STORED, device)
        sink = torch.randn(shape.heads, device=device)
        scale = shape.dim**-0.5

        def keys(q: Tensor) -> Keys:
            near, far = listed(q, WINDOW_KEYS, window.count), listed(q, ENTRY_KEYS, STORED)
            return Keys(window, near, entries, far)

        return Trial(
            ATTEND,
            f"{shape.window.name} and {shape.entries.name}",
            lambda: (2 * torch.randn(rows, shape.heads, shape.dim, device=device)).to(shape.dtype),
            lambda q: fast.attend(q, keys(q), sink, scale, None),
            lambda q: attend(q, keys(q), sink, scale, "step", shape.dtype),
            TO_BF16 if shape.dtype == torch.bfloat16 else TO_F32,
        )

    return [trial(shape) for shape in attend_cuda.shapes(tools.form)]


def index_trials(tools: Toolbox, device: torch.device, rows: int = ROWS) -> list[Trial]:
    """What comes out are the scores of what was chosen, best first: of two entries with nearly the
    same score either may be chosen."""
    fast = RowIndex(tools)

    def trial(heads: int) -> Trial:
        keys, values = filled(index_row(index_cuda.DIM), KEYS, device), heads * index_cuda.DIM

        def asked(x: Tensor) -> Asked:
            """Each row is a sequence of its own. Weights are made last: all else is read before
            the kernel in front has ended."""
            own = torch.arange(len(x), device=device)
            places = (seeds(x) * 40503 + torch.arange(ENTRIES, device=device) * 2654435761) % KEYS
            q = fp4_grid(x[:, :values]).view(-1, heads, index_cuda.DIM)
            visible = ENTRIES - seeds(x).squeeze(1) % 1500
            weights, counts = x[:, values:].clone(), (1,) * len(x)
            return Asked(q, weights, keys, places, counts, own, visible, "step")

        def kernel(x: Tensor) -> Tensor:
            return _best(fast.scores(asked(x)), fast.select(asked(x), K))

        def reference(x: Tensor) -> Tensor:
            return _best(definition.scores(asked(x)), definition.select(asked(x), K))

        return Trial(
            INDEX,
            f"{K} of {ENTRIES} by {heads} heads",
            lambda: torch.randn(rows, values + heads, device=device),
            kernel,
            reference,
            TO_F32,
        )

    return [trial(heads) for heads in (64, 32)]


def _best(scores: Tensor, chosen: Tensor) -> Tensor:
    found = scores.gather(1, chosen.clamp(min=0)).masked_fill(chosen < 0, 0.0)
    return found.sort(1, descending=True).values


def seeds(x: Tensor) -> Tensor:
    """A number for each row [n, 1]."""
    return (x.flatten(1)[:, :1].float().abs() * 1e4).nan_to_num(0.0, 0.0).long()


def listed(q: Tensor, width: int, count: int) -> Tensor:
    """Keys of rows q [n, ..] -> [n, width] of `count`, -1 for some in between and behind."""
    seed, at = seeds(q), torch.arange(width, device=q.device)
    found = (seed * 40503 + at * 2654435761 + at * at * seed % 8191) % count
    missing = ((seed + at) % 7 == 3) | (at > width - 1 - seed % (width // 2))
    return torch.where(missing, -1, found)


def filled(format: RowFormat, count: int, device: torch.device) -> Rows:
    rows = Rows.empty(format, count, device)
    store.put(rows, torch.arange(count, device=device), torch.randn(count, format.dim).to(device))
    return rows


def rings(format: RowFormat, device: torch.device) -> Rows:
    """Rows in two levels, which do not follow each other."""
    whole = filled(format, SLOTS * RING, device)
    parts = (part.view(SLOTS, RING, -1) for part in (whole.data, whole.scale))
    return Rows(format, *(F.pad(part, (0, 0, 0, 16))[:, :RING] for part in parts))
