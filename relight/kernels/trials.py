"""Trials of the CUDA kernels on random input: for the canary at start, for tests and for the bench.
Knows no network.

Tolerances are shares of the norm: float32 sums of up to 8,192 terms in another order differ by
1e-7 to 1e-6; a rounding to bf16, where boundaries are bf16, is 2^-9 of a value at most, and of two
nearly equal sums a few fall on different sides.
"""

import torch
from torch import Tensor

from relight.kernels.canary import Trial
from relight.kernels.codec import DenseWeight, Fp8Weight, StackedFp4
from relight.kernels.cuda_tools import EXPERTS, LINEAR
from relight.kernels.experts import Experts, experts
from relight.kernels.experts.step import StepExperts
from relight.kernels.linear import grouped, linear
from relight.kernels.linear.step import StepLinear
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials_small import small_trials
from relight.kernels.trials_sparse import sparse_trials

TO_F32, TO_BF16 = 2e-6, 2e-3
EXPERTS_TOLERANCE = 5e-3
"""A hidden value that falls on the other side of an E4M3 step differs by 2^-4; few do."""

ROWS = 9  # more than a tile of tokens


def random_bytes(*shape: int, device: torch.device) -> Tensor:
    """Every code of E4M3 but NaN, or pairs of E2M1."""
    found = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
    return torch.where((found & 127) == 127, found & 128, found)


def fp8_weight(outputs: int, inner: int, device: torch.device) -> Fp8Weight:
    blocks = (-(-outputs // 128), inner // 128)
    scale = torch.randint(112, 124, blocks, dtype=torch.uint8, device=device)
    return Fp8Weight(random_bytes(outputs, inner, device=device), scale, 128)


def fp4_stack(count: int, outputs: int, inner: int, device: torch.device) -> StackedFp4:
    data = torch.randint(0, 256, (count, outputs, inner // 2), dtype=torch.uint8, device=device)
    shape = (count, outputs, inner // 32)
    return StackedFp4(data, torch.randint(112, 122, shape, dtype=torch.uint8, device=device))


def tokens(rows: int, inner: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Rows of different sizes."""
    sizes = torch.exp2(torch.randn(rows, 1, device=device))
    return (torch.randn(rows, inner, device=device) * sizes).to(dtype)


def linear_trials(tools: Toolbox, device: torch.device, outputs: int = 1024) -> list[Trial]:
    form, fast = tools.form, StepLinear(tools)
    boundary = torch.bfloat16 if form.bf16 else torch.float32
    tolerance = TO_BF16 if form.bf16 else TO_F32

    def trial(inner: int) -> Trial:
        w = fp8_weight(outputs, inner, device)
        return Trial(
            LINEAR,
            f"FP8 [{outputs}, {inner}]",
            lambda: tokens(ROWS, inner, device, boundary),
            lambda x: fast.linear(x, w, boundary),
            lambda x: linear(x, w, "step", True, boundary),
            tolerance,
        )

    found = [trial(inner) for inner in (1024, 2048, 4096, 8192)]
    return found + (_wide_trials if form.bf16 else _half_trials)(fast, device, outputs)


def _wide_trials(fast: StepLinear, device: torch.device, outputs: int) -> list[Trial]:
    bf16, w = torch.bfloat16, fp8_weight(outputs, 4096, device)
    head = DenseWeight(torch.randn(outputs, 4096, device=device).to(bf16))
    return [
        Trial(
            LINEAR,
            f"FP8 in 4 groups [{outputs}, 4096]",
            lambda: tokens(ROWS, 4 * 4096, device, bf16).view(ROWS, 4, 4096),
            lambda x: fast.grouped(x, w, bf16),
            lambda x: grouped(x, w, "step", bf16),
            TO_BF16,
        ),
        Trial(
            LINEAR,
            f"bf16 [{outputs}, 4096]",
            lambda: tokens(ROWS, 4096, device, bf16),
            lambda x: fast.linear(x, head, torch.float32),
            lambda x: linear(x, head, "step", False, torch.float32),
            TO_F32,
        ),
    ]


def _half_trials(fast: StepLinear, device: torch.device, outputs: int) -> list[Trial]:
    """Before SM80 tokens that are not quantised are fp16; of both sides here, to compare sums."""
    head = DenseWeight(torch.randn(outputs, 4096, device=device).to(torch.bfloat16))
    return [
        Trial(
            LINEAR,
            f"bf16 with fp16 tokens [{outputs}, 4096]",
            lambda: tokens(ROWS, 4096, device, torch.float32),
            lambda x: fast.linear(x.half(), head, torch.float32),
            lambda x: linear(x.half().float(), head, "step", False, torch.float32),
            TO_F32,
        )
    ]


def experts_trial(tools: Toolbox, device: torch.device, count: int = 8, slots: int = 6) -> Trial:
    """Few experts, so that rows share them. What a row chooses hangs on its first value, so that
    it chooses the same alone."""
    boundary = torch.bfloat16 if tools.form.bf16 else torch.float32
    up, gate = (fp4_stack(count, 2048, 4096, device) for _ in range(2))
    stacks = Experts(gate, up, fp4_stack(count, 4096, 2048, device))
    fast = StepExperts(tools)
    parts = (stacks.w1, stacks.w3, stacks.w2)

    def routed(x: Tensor) -> tuple[Tensor, Tensor]:
        first = (x[:, :1].float().abs() * 1e4).long() + torch.arange(count, device=device) * 7
        ids = (first * 2654435761 % 1009).argsort(dim=1, stable=True)[:, :slots].sort(1).values
        return ids, (first[:, :slots] % 13 + 1).float() / 13

    return Trial(
        EXPERTS,
        f"FP4, {slots} of {count}",
        lambda: tokens(ROWS, 4096, device, boundary),
        lambda x: fast.experts(x, *routed(x), *parts, 10.0, boundary),
        lambda x: experts(x, *routed(x), stacks, 10.0, "step", True, boundary),
        EXPERTS_TOLERANCE,
    )


def trials(tools: Toolbox, device: torch.device) -> list[Trial]:
    """Those of the canary."""
    products = [*linear_trials(tools, device), experts_trial(tools, device)]
    return [*products, *sparse_trials(tools, device), *small_trials(tools, device)]
