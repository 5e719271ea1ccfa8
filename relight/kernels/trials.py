"""Trials of the CUDA kernels on random input: for the canary at start, for tests and for the bench.
Knows no network.

Tolerances are shares of the norm: float32 sums of up to 8,192 terms in another order differ by
1e-7 to 1e-6; a rounding to bf16, where boundaries are bf16, is 2^-9 of a value at most, and of two
nearly equal sums a few fall on different sides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.kernels.canary import Trial
from relight.kernels.codec import DenseWeight, FastLinear, Fp8Weight, StackedFp4
from relight.kernels.cuda_tools import EXPERTS, GIVEN, LINEAR
from relight.kernels.experts import Experts, experts
from relight.kernels.experts.cuda import V4_WIDTHS, V41_WIDTHS
from relight.kernels.experts.given import GivenExperts
from relight.kernels.experts.groups import fitted
from relight.kernels.experts.step import StepExperts
from relight.kernels.linear import grouped, linear
from relight.kernels.linear.cuda import MANY_OUTPUTS, V4_LENGTHS, V41_LENGTHS
from relight.kernels.linear.given import GivenLinear
from relight.kernels.linear.step import StepLinear
from relight.kernels.select import Variant
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials_between import given_trials
from relight.kernels.trials_engram import engram_trials
from relight.kernels.trials_small import small_trials
from relight.kernels.trials_sparse import sparse_trials

TO_F32, TO_BF16 = 2e-6, 2e-3
EXPERTS_TOLERANCE = 5e-3
"""A hidden value that falls on the other side of an E4M3 step differs by 2^-4; few do."""

ROWS = 9  # more than a tile of tokens
GIVEN_ROWS = 150  # likewise

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


@dataclass(frozen=True)
class _Products:
    """Trials of the products of one family, of so many rows."""

    fast: FastLinear
    variant: Variant
    rows: int
    device: torch.device

    def packed(self, outputs: int, inner: int, block: int, boundary: torch.dtype) -> Trial:
        fast, family = self.fast, self.variant.family
        w = fp8_weight(outputs, inner, self.device, block)
        return Trial(
            self.variant,
            f"FP8 by {block} [{outputs}, {inner}]",
            lambda: tokens(self.rows, inner, self.device, boundary),
            lambda x: fast.linear(x, w, boundary),
            lambda x: linear(x, w, family, True, boundary),
            TO_BF16 if boundary == torch.bfloat16 else TO_F32,
        )

    def grouped(
        self, outputs: int, inner: int, block: int, boundary: torch.dtype = torch.bfloat16
    ) -> Trial:
        fast, family = self.fast, self.variant.family
        w = fp8_weight(outputs, inner, self.device, block)
        return Trial(
            self.variant,
            f"FP8 by {block} in 4 groups [{outputs}, {inner}]",
            lambda: tokens(self.rows, 4 * inner, self.device, boundary).view(self.rows, 4, inner),
            lambda x: fast.grouped(x, w, boundary),
            lambda x: grouped(x, w, family, boundary),
            TO_BF16 if boundary == torch.bfloat16 else TO_F32,
        )

    def dense(self, outputs: int, inner: int, x: torch.dtype = torch.bfloat16) -> Trial:
        fast, family = self.fast, self.variant.family
        w = DenseWeight(torch.randn(outputs, inner, device=self.device).to(torch.bfloat16))
        return Trial(
            self.variant,
            f"bf16 [{outputs}, {inner}]",
            lambda: tokens(self.rows, inner, self.device, x),
            lambda x: fast.linear(x, w, torch.float32),
            lambda x: linear(x, w, family, False, torch.float32),
            TO_F32,
        )


def linear_trials(
    tools: Toolbox,
    device: torch.device,
    outputs: int = 1024,
    lengths: Mapping[int, Sequence[int]] = LENGTHS,
    many: Sequence[int] = (1024, 1280),
) -> list[Trial]:
    """`lengths` of rows by the block of their scales; of those in `many` also with as many outputs
    as have kernels of their own."""
    form, fast = tools.form, StepLinear(tools)
    made = _Products(fast, LINEAR, ROWS, device)
    boundary = torch.bfloat16 if form.bf16 else torch.float32
    found = [
        made.packed(outputs, inner, block, boundary)
        for block, some in lengths.items()
        for inner in some
    ]
    found += [
        made.packed(MANY_OUTPUTS, inner, block, boundary)
        for block, some in lengths.items()
        for inner in some
        if inner in many
    ]
    return (
        found
        + [made.grouped(outputs, 4096, block, boundary) for block in lengths]
        + [made.dense(outputs, inner, boundary) for inner in (512, 5120, 4096)]
        + [made.dense(64, inner, boundary) for inner in (5120, 4096)]
    )


def given_linear_trials(
    tools: Toolbox, device: torch.device, many: int = 16_384, few: int = 512
) -> list[Trial]:
    """With `many` outputs a row among others is in a wide tile and alone in a narrow one."""
    given = _Products(GivenLinear(tools), GIVEN[LINEAR.op], GIVEN_ROWS, device)
    bf16 = tools.form.bf16
    boundary = torch.bfloat16 if bf16 else torch.float32
    found = [given.packed(many, 1024, 128, boundary), given.packed(few, 8192, 128, boundary)]
    found += [given.packed(many, 1280, 32, boundary), given.packed(few, 5120, 32, boundary)]
    if bf16:
        found += [given.grouped(many, 1024, 128), given.grouped(few, 4096, 32)]
        found += [given.dense(many, 1024), given.dense(few // 2, 4096)]
    return found


def experts_trial(
    tools: Toolbox,
    device: torch.device,
    count: int = 8,
    slots: int = 6,
    widths: tuple[int, int] = V4_WIDTHS,
    act_block: int = 128,
    family: Family = "step",
) -> Trial:
    """Few experts, so that rows share them. What a row chooses hangs on its first value, so that
    it chooses the same alone."""
    boundary = torch.bfloat16 if tools.form.bf16 else torch.float32
    width, inner = widths
    up, gate = (fp4_stack(count, inner, width, device, act_block) for _ in range(2))
    stacks = Experts(gate, up, fp4_stack(count, width, inner, device, act_block))
    parts = (stacks.w1, stacks.w3, stacks.w2)
    fast = StepExperts(tools) if family == "step" else fitted(GivenExperts(tools), *parts)
    rows = ROWS if family == "step" else GIVEN_ROWS

    def routed(x: Tensor) -> tuple[Tensor, Tensor]:
        first = (x[:, :1].float().abs() * 1e4).long() + torch.arange(count, device=device) * 7
        ids = (first * 2654435761 % 1009).argsort(dim=1, stable=True)[:, :slots].sort(1).values
        return ids, (first[:, :slots] % 13 + 1).float() / 13

    return Trial(
        EXPERTS if family == "step" else GIVEN[EXPERTS.op],
        f"FP4 by {act_block}, {slots} of {count}",
        lambda: tokens(rows, width, device, boundary),
        lambda x: fast.experts(x, *routed(x), *parts, 10.0, boundary),
        lambda x: experts(x, *routed(x), stacks, 10.0, family, True, boundary),
        EXPERTS_TOLERANCE,
    )


def trials(tools: Toolbox, device: torch.device) -> list[Trial]:
    """Those of the canary."""
    fine = experts_trial(tools, device, widths=V41_WIDTHS, act_block=32)
    products = [*linear_trials(tools, device), experts_trial(tools, device), fine]
    given = [*given_linear_trials(tools, device), *given_trials(tools, device)]
    given += [
        experts_trial(tools, device, family="prefill"),
        experts_trial(tools, device, widths=V41_WIDTHS, act_block=32, family="prefill"),
    ]
    between = [*small_trials(tools, device), *engram_trials(tools, device)]
    made = [*products, *sparse_trials(tools, device), *between]
    return [*made, *given]
