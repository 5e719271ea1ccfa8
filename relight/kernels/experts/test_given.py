"""Which experts given rows may go through by kernels, and what is launched for how many: without a
device."""

from typing import Any

import pytest
import torch
from torch import Tensor

from relight.kernels.build import Kernel
from relight.kernels.codec import StackedDense, StackedFp4, fp4_quantise
from relight.kernels.experts import given
from relight.kernels.experts.given import GivenExperts, objection
from relight.kernels.experts.groups import GroupExperts, fitted
from relight.kernels.forms import form_of

U8, BF16, F32 = torch.uint8, torch.bfloat16, torch.float32


def stack(count: int, outputs: int, inner: int, **named: int) -> StackedFp4:
    scale = torch.full((count, outputs, inner // 32), 120, dtype=U8)
    return StackedFp4(torch.full((count, outputs, inner // 2), 0x11, dtype=U8), scale, **named)


def test_which_stacks_go_through_is_said() -> None:
    up, down = stack(3, 128, 256), stack(3, 256, 128)
    assert objection(up, up, down) == ""
    assert "not FP4" in objection(up, StackedDense(torch.zeros(3, 128, 256)), down)
    assert "blocks of 64" in objection(up, up, stack(3, 256, 128, act_block=64))
    assert "blocks of 32, not all of one" in objection(up, up, stack(3, 256, 128, act_block=32))
    fine = stack(3, 128, 256, act_block=32)
    assert objection(fine, fine, stack(3, 256, 128, act_block=32)) == ""
    assert "256 values to 64" in objection(stack(3, 64, 256), up, down)
    assert "96 values to 256" in objection(up, up, stack(3, 256, 96))
    assert "they are 1025" in objection(stack(1025, 128, 128), up, down)
    shifted = torch.zeros(3 * 128 * 128 + 1, dtype=U8)[1:].view(3, 128, 128)
    assert "16 bytes" in objection(StackedFp4(shifted, up.scale), up, down)
    sick = stack(3, 256, 128)
    sick.scale[1, 5, 2] = 255
    assert "NaN" in objection(up, up, sick)


@pytest.mark.parametrize(("apart", "fits"), [(24, True), (25, False)])
def test_scales_of_a_row_may_be_so_far_apart(apart: int, fits: bool) -> None:
    w = stack(2, 128, 256)
    w.scale[1, 7, 3] = 120 - apart
    assert (objection(w, w, stack(2, 256, 128)) == "") == fits


def test_groups_of_zeros_may_have_any_scale() -> None:
    """As those that quantising gives them."""
    values = torch.randn(2, 128, 256)
    values[1, 7, 32:64] = 0
    w = StackedFp4(*fp4_quantise(values))
    assert w.scale[1, 7, 1] < 10
    assert objection(w, w, stack(2, 256, 128)) == ""
    w.data[1, 7, 20] = 0x10
    assert "2^24" in objection(w, w, stack(2, 256, 128))


def test_the_down_product_leaves_no_more_than_it_may() -> None:
    for rows, columns in ((1, 4096), (2048, 4096), (8192, 1024), (50_000, 256)):
        assert given.columns_at_once(4096, rows * 6 * BF16.itemsize) == columns
    assert given.columns_at_once(4096, 8192 * 6 * F32.itemsize) == 512


class Noting:
    """Stands for a toolbox: (entry, grid) of each launch."""

    def __init__(self) -> None:
        self.form = form_of("sm_90")
        self.launched: list[tuple[str, tuple[int, int]]] = []

    def load(self, kernel: Kernel, threads: int, ring_bytes: int = 0) -> Any:
        assert threads == 256
        return lambda grid, *arguments: self.launched.append((kernel.entry, grid))

    def quantise(self, x: Tensor, block: int) -> tuple[Tensor, Tensor]:
        return x.to(U8), x[:, : x.shape[1] // block].float()


def test_the_grid_holds_all_tiles_that_there_can_be() -> None:
    up, down, tools = stack(200, 128, 384), stack(200, 384, 128), Noting()
    x, ids = torch.zeros(100, 384, dtype=BF16), torch.arange(6).expand(100, 6)
    fast = GivenExperts(tools)  # type: ignore[arg-type]
    y = fast.experts(x, ids, torch.rand(100, 6), up, up, down, 10.0, BF16)
    assert (y.shape, y.dtype) == ((100, 384), F32)
    assert tools.launched == [
        ("group", (200, 1)),
        ("given_gate_up", (1, 600 // 64 + 200)),
        ("given_down", (2, 600 // 64 + 200)),
        ("sum_columns", (1, 100)),
    ]


def test_tiles_of_warp_groups_are_wider() -> None:
    up, down, tools = stack(200, 128, 384), stack(200, 384, 128), Noting()
    x, ids = torch.zeros(100, 384, dtype=BF16), torch.arange(6).expand(100, 6)
    fast = fitted(GivenExperts(tools), up, up, down)  # type: ignore[arg-type]
    assert isinstance(fast, GroupExperts)
    fast.experts(x, ids, torch.rand(100, 6), up, up, down, 10.0, BF16)
    assert tools.launched == [
        ("group", (200, 1)),
        ("lay", (5, 1)),
        ("group_gate_up", (1, 600 // 128 + 200)),
        ("group_down", (2, 600 // 128 + 200)),
        ("sum_columns", (1, 100)),
    ]


@pytest.mark.parametrize("kind", [GivenExperts, GroupExperts])
def test_no_rows_launch_nothing(kind: type[GivenExperts]) -> None:
    up, down, tools = stack(3, 128, 256), stack(3, 256, 128), Noting()
    none = torch.zeros(0, 256), torch.zeros(0, 6, dtype=torch.int64), torch.zeros(0, 6)
    fast = kind(tools)  # type: ignore[arg-type]
    assert fast.experts(*none, up, up, down, 10.0, F32).shape == (0, 256)
    assert tools.launched == []
