"""Products of given rows, as far as they go without a device: which are taken, and what is
launched."""

import pytest
import torch

from relight.kernels.build import Kernel
from relight.kernels.codec import DenseWeight, Fp8Weight
from relight.kernels.cubins import Cubin
from relight.kernels.forms import form_of
from relight.kernels.linear.given import GivenLinear, objection, product
from relight.kernels.ptxas import Usage
from relight.kernels.tiles import narrow_tile, wide_tiles
from relight.kernels.toolbox import Toolbox

U8, BF16, F32 = torch.uint8, torch.bfloat16, torch.float32
KINDS = ((8, 1, 128), (8, 2, 128), (8, 2, 32), (16, 2, 128))


class Noting:
    """Stands for builder and launcher: notes each launch as (kernel, grid, arguments)."""

    def __init__(self, arch: str = "sm_90") -> None:
        self.arch = arch
        self.launched: list[tuple] = []
        self.built: Kernel | None = None

    def build(self, kernel: Kernel) -> Cubin:
        self.built = kernel
        return Cubin(b"", Usage())

    def load(self, cubin, entry, *, threads, ring_bytes=0, early=False):
        kernel = self.built
        return lambda grid, *arguments: self.launched.append((kernel, grid, arguments))


def tools(arch: str = "sm_90") -> tuple[Toolbox, Noting]:
    noting = Noting(arch)
    return Toolbox(noting, noting), noting  # type: ignore[arg-type]


def fp8(rows: int, columns: int, block: int = 128) -> Fp8Weight:
    scale = torch.full((-(-rows // block), -(-columns // block)), 120, dtype=U8)
    return Fp8Weight(torch.zeros(rows, columns, dtype=U8), scale, block)


def dense(rows: int, columns: int) -> DenseWeight:
    return DenseWeight(torch.zeros(rows, columns, dtype=BF16))


def test_tiles_cover_all_rows_and_outputs_once() -> None:
    """And many small ones are taken where few large ones would leave processors idle."""
    for rows, outputs, tile, count in (
        (1, 512, "64 x 32", 8),
        (33, 520, "64 x 32", 2 * 9),
        (64, 32_768, "64 x 32", 2 * 512),
        (65, 32_768, "128 x 64", 512),
        (1024, 512, "64 x 32", 8 * 32),
        (2048, 512, "128 x 64", 4 * 32),
        (8000, 1000, "128 x 64", 8 * 125),
    ):
        made, noting = tools()
        fast = GivenLinear(made, groups=False)
        y = fast.multiply(torch.zeros(rows, 128), None, fp8(outputs, 128), BF16)
        assert y.shape == (rows, outputs)
        assert y.dtype == BF16
        ((kernel, grid, arguments),) = noting.launched
        assert tile in kernel.name
        assert grid == (count, 1)
        assert arguments[5:] == (rows, outputs, 128, 128, outputs)


def test_warp_groups_multiply_where_a_device_has_them() -> None:
    for rows, w, tile, count in (
        (2, fp8(512, 128), "fp8 by 128 by groups in 64 x 32", 8),
        (8000, fp8(512, 128), "fp8 by 128 by groups in 64 x 128", 8 * 63),
        (8000, fp8(512, 128, 32), "fp8 by 32 x bf16 by groups in 256 x 128", 2 * 63),
        (4000, fp8(512, 128, 32), "fp8 by 32 x bf16 by groups in 128 x 128", 4 * 32),
        (8000, dense(512, 128), "bf16 by groups in 128 x 128", 4 * 63),
        (20_000, dense(72, 128), "bf16 by groups in 128 x 128", 157),
        (8000, dense(72, 128), "bf16 by groups in 64 x 32", 2 * 250),
    ):
        made, noting = tools()
        GivenLinear(made).linear(torch.zeros(rows, 128, dtype=BF16), w, BF16)
        kernel, grid, _ = noting.launched[-1]
        assert tile in kernel.name
        assert grid == (count, 1)
    made, noting = tools("sm_89")
    GivenLinear(made).linear(torch.zeros(2, 128), fp8(512, 128), BF16)
    assert "groups" not in noting.launched[-1][0].name


def test_groups_read_their_own_columns() -> None:
    made, noting = tools()
    x = torch.zeros(3, 8, 256, dtype=BF16)
    assert GivenLinear(made).grouped(x, fp8(1024, 256), BF16).shape == (3, 8, 128)
    ((_, _, arguments),) = noting.launched
    assert arguments[3] is None  # bf16 tokens have no scales
    assert arguments[5:] == (3, 1024, 256, 8 * 256, 128)


def test_no_rows_launch_nothing() -> None:
    made, noting = tools()
    fast = GivenLinear(made)
    assert fast.linear(torch.zeros(0, 256), fp8(512, 256), BF16).shape == (0, 512)
    assert fast.linear(torch.zeros(0, 256), fp8(512, 256, 32), BF16).shape == (0, 512)
    assert fast.grouped(torch.zeros(0, 2, 256, dtype=BF16), fp8(256, 256), BF16).shape == (
        0,
        2,
        128,
    )
    assert noting.launched == []


def test_tokens_come_as_weights_and_device_need_them() -> None:
    x = torch.zeros(2, 256, dtype=BF16)
    for arch, w, entries in (
        ("sm_75", fp8(128, 256), ["act_quant", "given_linear"]),
        ("sm_80", fp8(128, 256), ["act_round", "given_linear"]),
        ("sm_89", fp8(128, 256), ["act_quant", "given_linear"]),
        ("sm_89", fp8(128, 256, 32), ["act_round", "given_linear"]),
        ("sm_75", fp8(128, 256, 32), ["act_quant", "given_linear"]),
        ("sm_80", dense(128, 256), ["given_linear"]),
    ):
        made, noting = tools(arch)
        GivenLinear(made).linear(x, w, F32)
        assert [kernel.entry for kernel, *_ in noting.launched] == entries


def test_which_weights_go_through_is_said() -> None:
    for good in (fp8(64, 1536), fp8(8, 128, 32), dense(24, 192)):
        assert objection(good) == ""
    for bad, reason in (
        (fp8(64, 256, 64), "blocks are of 64"),
        (fp8(60, 256), "60 rows, not a multiple of 8"),
        (fp8(64, 192), "192 columns, not a multiple of 128"),
        (dense(64, 160), "160 columns, not a multiple of 64"),
        (DenseWeight(torch.zeros(16, 128)), "neither FP8 nor bf16"),
        (
            Fp8Weight(torch.zeros(8 * 128 + 1, dtype=U8)[1:].view(8, 128), fp8(8, 128).scale, 128),
            "16",
        ),
    ):
        assert reason in objection(bad)
    sick, large = fp8(64, 256), fp8(64, 256, 32)
    sick.data[3, 5] = 0xFF
    assert "NaN" in objection(sick)
    large.scale[1, 2] = 140
    assert "above 2^7" in objection(large)


def test_calls_that_are_not_for_the_kernels_are_left() -> None:
    new, old = GivenLinear(tools()[0]), GivenLinear(tools("sm_75")[0])
    x, w, fine, head = torch.zeros(1, 256), fp8(512, 256), fp8(512, 256, 32), dense(512, 256)
    for fast in (new, old):
        assert fast.takes(x, w, quantised=True)
        assert not fast.takes(x, w, quantised=False)
        assert not fast.takes(x, head, quantised=False)
        assert fast.takes(x, fine, quantised=True)
        assert fast.takes(x.to(BF16), head, quantised=False) == (fast is new)
        groups = x.to(BF16).view(1, 1, 256).expand(1, 2, 256)
        assert fast.takes_groups(groups, w, BF16) == (fast is new)
        assert not fast.takes_groups(groups, w, F32)
        assert not fast.takes_groups(groups.float(), w, BF16)
        assert not fast.takes_groups(groups, fp8(320, 256), BF16)


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90"])
def test_blocks_fit_into_the_shared_memory_of_their_device(arch: str) -> None:
    form = form_of(arch)
    for kind in KINDS if form.bf16 else ((8, 1, 128), (8, 1, 32)):
        tiles = [*wide_tiles(form, *kind), narrow_tile(*kind)]
        if form.groups:
            tiles += [*wide_tiles(form, *kind, groups=True), narrow_tile(*kind, groups=True)]
        for tile in tiles:
            for boundary_bf16 in (False, True):
                shared = product(form, tile, boundary_bf16).shared_bytes
                assert 0 < shared * tile.min_blocks <= form.shared_limit
            assert tile.stages(form) >= 2
