"""Trials of the CUDA kernels of n-grams, as `trials` has those of products. Knows no network."""

import torch
from torch import Tensor

from relight.kernels import engram
from relight.kernels.canary import Trial
from relight.kernels.cuda_tools import ENGRAM
from relight.kernels.engram.rows import RowEngram
from relight.kernels.toolbox import Toolbox

ROWS, TABLE, HC, EPS = 5, 5000, 4, 1e-20

EXACT, ALMOST, FEW_STEPS = 0.0, 2e-6, 3e-3
"""Looked up; sums in the definition's order with a last bit of a function; rounded to bf16."""


def engram_trials(tools: Toolbox, device: torch.device, width: int = 5120) -> list[Trial]:
    boundary = torch.bfloat16 if tools.form.bf16 else torch.float32
    return [_found(tools, device, boundary), _gate(tools, device, boundary, width)]


def _found(tools: Toolbox, device: torch.device, boundary: torch.dtype) -> Trial:
    """What a row's classes are hangs on its first value."""
    fast, (orders, heads, dim) = RowEngram(tools), (4, 8, 64)
    factors = torch.randint(2**30, 2**42, (orders,), device=device) * 2 + 1
    primes = torch.randint(150, 200, (orders - 1, heads), device=device)
    table = torch.randint(0, 126, (TABLE, dim), dtype=torch.uint8, device=device)
    scale = torch.randint(110, 130, (TABLE, dim // 32), dtype=torch.uint8, device=device)

    def classes(x: Tensor) -> Tensor:
        first = (x[:, :1].float().abs() * 1e4).nan_to_num(0.0, 0.0).long()
        return first * torch.arange(1, orders + 1, device=device) % 2**20

    def kernel(x: Tensor) -> Tensor:
        rows = fast.table_rows(classes(x), factors, primes)
        return _known(x, fast.gather(table, scale, rows, boundary))

    def reference(x: Tensor) -> Tensor:
        rows = engram.table_rows(classes(x), factors, primes)
        return _known(x, engram.gather(table, scale, rows).to(boundary))

    def inputs() -> Tensor:
        return torch.randn(ROWS, 8, device=device).to(boundary)

    what = f"{(orders - 1) * heads} rows of {dim}"
    return Trial(ENGRAM, what, inputs, kernel, reference, EXACT)


def _known(x: Tensor, found: Tensor) -> Tensor:
    """What is no number was asked for by what is none."""
    return found.masked_fill(~x.isfinite().all(1, keepdim=True), float("nan"))


def _gate(tools: Toolbox, device: torch.device, boundary: torch.dtype, width: int) -> Trial:
    """Rows are streams, then what was mapped."""
    fast, gain = RowEngram(tools), torch.randn(HC, width, device=device)

    def parts(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, :HC].contiguous(), x[:, HC:].flatten(1).contiguous()

    def inputs() -> Tensor:
        sizes = torch.exp2(torch.randn(ROWS, 1, 1, device=device))
        return (torch.randn(ROWS, 2 * HC + 1, width, device=device) * sizes).to(boundary)

    return Trial(
        ENGRAM,
        f"gate of {HC} streams of {width}",
        inputs,
        lambda x: fast.gate(*parts(x), gain, EPS),
        lambda x: engram.gate(*parts(x), gain, EPS, boundary),
        FEW_STEPS if boundary == torch.bfloat16 else ALMOST,
    )
