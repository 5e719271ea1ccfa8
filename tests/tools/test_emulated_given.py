"""Products of given rows, lane by lane on a processor, in each form: near their definitions, and a
row with the same bits alone and among others, in tiles of any size."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from relight.kernels.canary import relative_error
from relight.kernels.codec import DenseWeight, Fp8Weight, Weight
from relight.kernels.linear import grouped, linear
from relight.kernels.linear.given import ENOUGH_BLOCKS, GivenLinear, objection
from relight.kernels.testing import assert_bits_equal
from relight.kernels.tiles import Tile
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials import TO_BF16, TO_F32, random_bytes, tokens
from tools.emulate import emulated

CPU, F32, BF16 = torch.device("cpu"), torch.float32, torch.bfloat16
ROWS, OUTPUTS = 150, 136  # more than a wide tile of both, and no multiple of any

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


@pytest.fixture(scope="module", params=["sm_70", "sm_75", "sm_80", "sm_90"])
def tools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Toolbox:
    return emulated(request.param, tmp_path_factory.mktemp("given"))


def fp8(outputs: int, inner: int, block: int) -> Fp8Weight:
    blocks = (-(-outputs // block), inner // block)
    scale = torch.randint(112, 124, blocks, dtype=torch.uint8)
    w = Fp8Weight(random_bytes(outputs, inner, device=CPU), scale, block)
    assert objection(w) == ""
    return w


def products(
    tools: Toolbox, fast: GivenLinear, *, whole: bool = False
) -> dict[str, tuple[Callable, Callable, Tensor]]:
    """By kind: kernel, definition and tokens. `whole`: also what a later device has like SM80."""
    block = fp8(OUTPUTS, 640, 128)
    found = {
        "fp8": (
            lambda x: fast.linear(x, block, F32),
            lambda x: linear(x, block, "prefill", True, F32),
            tokens(ROWS, 640, CPU, F32),
        )
    }
    fine = fp8(OUTPUTS, 256, 32)
    whole = whole or not tools.form.converts_e4m3  # which changes nothing for these
    if whole:
        found["fp8 by 32"] = (
            lambda x: fast.linear(x, fine, F32),
            lambda x: linear(x, fine, "prefill", True, F32),
            tokens(ROWS, 256, CPU, F32),
        )
    if tools.form.bf16 and whole:
        group = fp8(256, 128, 128)
        dense = DenseWeight(torch.randn(OUTPUTS, 192).to(BF16))
        found["groups"] = (
            lambda x: fast.grouped(x, group, BF16),
            lambda x: grouped(x, group, "prefill", BF16),
            tokens(ROWS, 256, CPU, BF16).view(ROWS, 2, 128),
        )
        found["bf16"] = (
            lambda x: fast.linear(x, dense, F32),
            lambda x: linear(x, dense, "prefill", False, F32),
            tokens(ROWS, 192, CPU, BF16),
        )
    return found


@pytest.mark.parametrize("groups", [False, True])
def test_rows_are_near_their_definitions_and_alike_in_any_company(
    tools: Toolbox, groups: bool
) -> None:
    if groups and not tools.form.groups:
        pytest.skip("no warp groups")
    by_size = []
    for enough in (1, 3, ENOUGH_BLOCKS):  # blocks of the widest tile, of the next, of the least
        torch.manual_seed(2)
        by_size.append(products(tools, GivenLinear(tools, enough, groups=groups), whole=groups))
    for kind, (kernel, definition, x) in by_size[0].items():
        found = kernel(x)
        tolerance = TO_F32 if found.dtype == F32 else TO_BF16
        assert relative_error(found, definition(x)) <= tolerance, kind
        for other in by_size[1:]:
            assert_bits_equal(other[kind][0](x), found, f"{kind}: another tile")
        for some in (slice(3, 4), slice(130, 135)):
            assert_bits_equal(kernel(x[some]), found[some], f"{kind}: rows {some}")
        order = torch.randperm(ROWS)
        sick = x[order]
        sick[1::3].flatten(1)[:, 5] = float("nan")
        sick[2::9].flatten(1)[:, 7] = float("inf")
        healthy = torch.tensor([at for at in range(ROWS) if at % 3 != 1 and at % 9 != 2])
        beside = kernel(sick)
        elsewhere = found[order][healthy]
        assert_bits_equal(beside[healthy], elsewhere, f"{kind}: another place, beside NaN")
        assert beside[1::3].isnan().flatten(1).any(1).all()


def test_no_rows_give_no_rows(tools: Toolbox) -> None:
    for kernel, _, x in products(tools, GivenLinear(tools)).values():
        assert kernel(x[:0]).shape[0] == 0


class Turning(GivenLinear):
    """Two units between barriers."""

    def _tile(self, rows: int, w: Weight, x_bytes: int, groups: int) -> Tile:
        return replace(super()._tile(rows, w, x_bytes, groups), turn=2, most_stages=6)


@pytest.mark.parametrize("inner", [128, 640, 1024])
def test_units_between_barriers_change_no_bit(tmp_path: Path, inner: int) -> None:
    """Of an odd number of units, too, and of fewer than there are stages."""
    folders = [tmp_path / name for name in ("turning", "plain")]
    for folder in folders:
        folder.mkdir()
    turning, plain = (emulated("sm_90", folder) for folder in folders)
    x, w = tokens(70, inner, CPU, F32), fp8(64, inner, 128)
    found = Turning(turning).linear(x, w, F32)
    assert_bits_equal(found, GivenLinear(plain).linear(x, w, F32))
