"""Draws, launched on a CUDA device. Knows no request."""

import torch
from torch import Tensor

from relight.kernels.block import in_place
from relight.kernels.launch import MOST_ROWS, Launch
from relight.kernels.sample import cuda
from relight.kernels.sample.params import SampleParams
from relight.kernels.toolbox import Toolbox


class StepSample:
    """`sample` of rows without top-k, top-p and adjustments: three launches."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def takes(self, logits: Tensor) -> bool:
        return in_place(logits) and logits.shape[0] <= MOST_ROWS and logits.shape[1] < 2**31

    def draw(self, logits: Tensor, params: SampleParams) -> Tensor:
        """logits [n, V] -> tokens [n] int64, as `sample` without a cut."""
        n, vocab = logits.shape
        found = torch.empty(n, dtype=torch.int64, device=logits.device)
        if n == 0:
            return found
        parts = [
            torch.empty((n, cuda.SPLITS), dtype=torch.int32, device=logits.device) for _ in range(4)
        ]
        grid = (cuda.SPLITS, n)
        self._load("largest_parts")(grid, logits, *parts[:2], vocab)
        key = (params.seed, params.choice, params.position)
        floors = (params.temperature, params.min_p)
        self._load("drawn_parts")(grid, logits, *parts[:2], *floors, *key, *parts[2:], vocab)
        self._load("choose")((n, 1), *parts, params.temperature, found)
        return found

    def _load(self, entry: str) -> Launch:
        return self._tools.load(cuda.kernel(self._tools.form, entry), cuda.ENTRIES[entry])
