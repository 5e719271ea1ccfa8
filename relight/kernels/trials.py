"""Trials of the CUDA kernels on random input: for the canary at start, for tests and for the bench.
Knows no network.

Tolerances are shares of the norm: float32 sums of up to 8,192 terms in another order differ by
1e-7 to 1e-6; a rounding to bf16, where boundaries are bf16, is 2^-9 of a value at most, and of two
nearly equal sums a few fall on different sides.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from relight.kernels.canary import Trial
from relight.kernels.codec import DenseWeight, Fp8Weight, StackedFp4
from relight.kernels.cuda_tools import EXPERTS, LINEAR
from relight.kernels.experts import Experts, experts
from relight.kernels.experts.cuda import V4_WIDTHS, V41_WIDTHS
from relight.kernels.experts.step import StepExperts
from relight.kernels.linear import grouped, linear
from relight.kernels.linear.cuda import V4_LENGTHS, V41_LENGTHS
from relight.kernels.linear.step import StepLinear
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials_between import given_trials
from relight.kernels.trials_engram import engram_trials
from relight.kernels.trials_small import small_trials
from relight.kernels.trials_sparse import sparse_trials

TO_F32, TO_BF16 = 2e-6, 2e-3
EXPERTS_TOLERANCE = 5e-3
"""A hidden value that falls on the other side of an E4M3 step differs by 2^-4; few do."""

ROWS = 9  # more than a tile of tokens

LENGTHS = {128: V4_LENGTHS, 32: V41_LENGTHS}


def random_bytes(*shape: int, device: torch.device) -> Tensor:
    """Every code of E4M3 but NaN, or pairs of E2M1."""
    found = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
    return torch.where((found & 127) == 127, found & 128, found)


def fp8_weight(outputs: int, inner: int, device: torch.device, block: int = 128) -> Fp8Weight:
    blocks = (-(-outputs // block), inner // block)
    scale = torch.randint(112, 124, blocks, dtype=torch.uint8, device=device)
    return Fp8Weight(random_bytes(outputs, inner, device=device), scale, block)


def fp4_stack(
    count: int, outputs: int, inner: int, device: torch.device, act_block: int = 128
) -> StackedFp4:
    data = torch.randint(0, 256, (count, outputs, inner // 2), dtype=torch.uint8, device=device)
    shape = (count, outputs, inner // 32)
    scale = torch.randint(112, 122, shape, dtype=torch.uint8, device=device)
    return StackedFp4(data, scale, act_block)


def tokens(rows: int, inner: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Rows of different sizes, whose groups of 32 differ in size, too."""
    sizes = torch.exp2(torch.randn(rows, 1, device=device))
    groups = torch.exp2(torch.randn(rows, -(-inner // 32), device=device))
    sizes = sizes * groups.repeat_interleave(32, 1)[:, :inner]
    return (torch.randn(rows, inner, device=device) * sizes).to(dtype)


def linear_trials(
    tools: Toolbox,
    device: torch.device,
    outputs: int = 1024,
    lengths: Mapping[int, Sequence[int]] = LENGTHS,
) -> list[Trial]:
    """`lengths` of rows by the block of their scales."""
    form, fast = tools.form, StepLinear(tools)
    boundary = torch.bfloat16 if form.bf16 else torch.float32
    tolerance = TO_BF16 if form.bf16 else TO_F32

    def trial(inner: int, block: int) -> Trial:
        w = fp8_weight(outputs, inner, device, block)
        return Trial(
            LINEAR,
            f"FP8 by {block} [{outputs}, {inner}]",
            lambda: tokens(ROWS, inner, device, boundary),
            lambda x: fast.linear(x, w, boundary),
            lambda x: linear(x, w, "step", True, boundary),
            tolerance,
        )

    found = [trial(inner, block) for block, some in lengths.items() for inner in some]
    if not form.bf16:
        return found + _half_trials(fast, device, outputs)
    return (
        found
        + [_wide_trial(fast, device, outputs, block) for block in lengths]
        + [_dense_trial(fast, device, outputs, inner) for inner in (512, 5120, 4096)]
    )


def _wide_trial(fast: StepLinear, device: torch.device, outputs: int, block: int) -> Trial:
    bf16, w = torch.bfloat16, fp8_weight(outputs, 4096, device, block)
    return Trial(
        LINEAR,
        f"FP8 by {block} in 4 groups [{outputs}, 4096]",
        lambda: tokens(ROWS, 4 * 4096, device, bf16).view(ROWS, 4, 4096),
        lambda x: fast.grouped(x, w, bf16),
        lambda x: grouped(x, w, "step", bf16),
        TO_BF16,
    )


def _dense_trial(fast: StepLinear, device: torch.device, outputs: int, inner: int) -> Trial:
    w = DenseWeight(torch.randn(outputs, inner, device=device).to(torch.bfloat16))
    return Trial(
        LINEAR,
        f"bf16 [{outputs}, {inner}]",
        lambda: tokens(ROWS, inner, device, torch.bfloat16),
        lambda x: fast.linear(x, w, torch.float32),
        lambda x: linear(x, w, "step", False, torch.float32),
        TO_F32,
    )


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


def experts_trial(
    tools: Toolbox,
    device: torch.device,
    count: int = 8,
    slots: int = 6,
    widths: tuple[int, int] = V4_WIDTHS,
    act_block: int = 128,
) -> Trial:
    """Few experts, so that rows share them. What a row chooses hangs on its first value, so that
    it chooses the same alone."""
    boundary = torch.bfloat16 if tools.form.bf16 else torch.float32
    width, inner = widths
    up, gate = (fp4_stack(count, inner, width, device, act_block) for _ in range(2))
    stacks = Experts(gate, up, fp4_stack(count, width, inner, device, act_block))
    fast = StepExperts(tools)
    parts = (stacks.w1, stacks.w3, stacks.w2)

    def routed(x: Tensor) -> tuple[Tensor, Tensor]:
        first = (x[:, :1].float().abs() * 1e4).long() + torch.arange(count, device=device) * 7
        ids = (first * 2654435761 % 1009).argsort(dim=1, stable=True)[:, :slots].sort(1).values
        return ids, (first[:, :slots] % 13 + 1).float() / 13

    return Trial(
        EXPERTS,
        f"FP4 by {act_block}, {slots} of {count}",
        lambda: tokens(ROWS, width, device, boundary),
        lambda x: fast.experts(x, *routed(x), *parts, 10.0, boundary),
        lambda x: experts(x, *routed(x), stacks, 10.0, "step", True, boundary),
        EXPERTS_TOLERANCE,
    )


def trials(tools: Toolbox, device: torch.device) -> list[Trial]:
    """Those of the canary."""
    fine = experts_trial(tools, device, widths=V41_WIDTHS, act_block=32)
    products = [*linear_trials(tools, device), experts_trial(tools, device), fine]
    between = [*small_trials(tools, device), *engram_trials(tools, device)]
    made = [*products, *sparse_trials(tools, device), *between]
    return [*made, *given_trials(tools, device)]
