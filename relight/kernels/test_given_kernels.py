"""Products of given rows on a device, at sizes of real layers: near their definitions, and a row
with the same bits in any cut of a prompt."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from relight.kernels.canary import relative_error
from relight.kernels.codec import DenseWeight, Weight, fp8_round
from relight.kernels.linear.given import ENOUGH_BLOCKS, GivenLinear, objection
from relight.kernels.testing import assert_bits_equal
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials import TO_BF16, TO_F32, fp8_weight, tokens

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

BF16, F32 = torch.bfloat16, torch.float32
ROWS = 2500
BY_GROUPS = {128: 1e-3, 32: 2e-5}
"""Of E4M3 by E4M3, which warp groups sum with some 14 bits; by bf16, with additions cut off."""
CUTS = (1, 2, 31, 32, 33, 64, 65, 127, 128, 129, 1000, 2048)


@dataclass(frozen=True)
class Case:
    kernel: Callable[[Tensor], Tensor]
    exact: Callable[[Tensor], Tensor]  # float64, of few rows
    x: Tensor
    tolerance: float


def packed(tools: Toolbox, outputs: int, inner: int, block: int) -> Case:
    fast, w = GivenLinear(tools), fp8_weight(outputs, inner, torch.device("cuda"), block)
    if not fast.takes(torch.empty(0), w, quantised=True):
        pytest.skip("not taken by this form")
    return Case(
        lambda x: fast.linear(x, w, F32),
        lambda x: fp8_round(x, block).double() @ exact(w).T,
        tokens(ROWS, inner, torch.device("cuda"), F32),
        BY_GROUPS[block] if tools.form.groups else TO_F32,
    )


def in_groups(tools: Toolbox, block: int) -> Case:
    fast, w = GivenLinear(tools), fp8_weight(8 * 1024, 4096, torch.device("cuda"), block)
    x = tokens(ROWS, 8 * 4096, torch.device("cuda"), BF16).view(ROWS, 8, 4096)
    if not fast.takes_groups(x, w, BF16):
        pytest.skip("not taken by this form")
    return Case(
        lambda x: fast.grouped(x, w, BF16),
        lambda x: torch.einsum(
            "ngk,grk->ngr", x.double(), exact(w).to(BF16).double().view(8, 1024, -1)
        ),
        x,
        TO_BF16,
    )


def dense(tools: Toolbox, outputs: int, inner: int) -> Case:
    fast = GivenLinear(tools)
    w = DenseWeight(torch.randn(outputs, inner, device="cuda").to(BF16))
    x = tokens(ROWS, inner, torch.device("cuda"), BF16)
    if not fast.takes(x, w, quantised=False):
        pytest.skip("not taken by this form")
    return Case(lambda x: fast.linear(x, w, F32), lambda x: x.double() @ exact(w).T, x, TO_F32)


def exact(w: Weight) -> Tensor:
    assert objection(w) == ""
    return w.decode().double()


CASES: dict[str, Callable[[Toolbox], Case]] = {
    "wq_b": lambda tools: packed(tools, 32_768, 1024, 128),
    "wo_b": lambda tools: packed(tools, 4096, 8192, 128),
    "wkv": lambda tools: packed(tools, 512, 4096, 128),
    "wkv by 32": lambda tools: packed(tools, 512, 5120, 32),
    "w2 by 32": lambda tools: packed(tools, 5120, 2304, 32),
    "wo_a": lambda tools: in_groups(tools, 128),
    "wo_a by 32": lambda tools: in_groups(tools, 32),
    "router": lambda tools: dense(tools, 256, 4096),
    "weights_proj": lambda tools: dense(tools, 64, 4096),
    "head": lambda tools: dense(tools, 129_280, 4096),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, device_tools: Toolbox) -> Case:
    torch.manual_seed(1)
    return CASES[request.param](device_tools)


def test_a_prompt_is_near_its_definition(case: Case) -> None:
    found = case.kernel(case.x)
    for some in (slice(0, 40), slice(1000, 1040), slice(ROWS - 40, ROWS)):
        assert relative_error(found[some], case.exact(case.x[some])) <= case.tolerance


def test_a_row_has_the_same_bits_in_any_cut_and_place(case: Case) -> None:
    whole = case.kernel(case.x)
    for count in CUTS:
        for begin in (0, 7, ROWS - count):
            some = slice(begin, begin + count)
            assert_bits_equal(case.kernel(case.x[some]), whole[some], f"rows {some}")
    order = torch.randperm(ROWS, device=case.x.device)
    assert_bits_equal(case.kernel(case.x[order]), whole[order], "another order")


def test_the_same_call_gives_the_same_bits(case: Case) -> None:
    first = case.kernel(case.x)
    for _ in range(5):
        assert_bits_equal(case.kernel(case.x), first)


def test_a_neighbour_of_nan_stays_healthy(case: Case) -> None:
    wanted = case.kernel(case.x)
    sick = torch.arange(ROWS, device=case.x.device) % 3 == 1
    for bad in (float("nan"), float("inf")):
        x = case.x.clone()
        x[sick, ..., 5] = bad
        found = case.kernel(x)
        assert_bits_equal(found[~sick], wanted[~sick])
        assert not found[sick].isfinite().flatten(1).all(1).any()


@pytest.mark.parametrize("block", [128, 32])
def test_tiles_of_all_sizes_give_the_same_bits(device_tools: Toolbox, block: int) -> None:
    """Which one is taken hangs on the number of blocks."""
    w = fp8_weight(512, 4096, torch.device("cuda"), block)
    x = tokens(300, 4096, torch.device("cuda"), F32)
    assert ENOUGH_BLOCKS > 8 * 5
    widest, wide, narrow = (
        GivenLinear(device_tools, enough).linear(x, w, F32) for enough in (1, 7, ENOUGH_BLOCKS)
    )
    assert_bits_equal(widest, narrow)
    assert_bits_equal(wide, narrow)


def test_more_results_than_32_bits_count(device_tools: Toolbox) -> None:
    """129,280 outputs of 17,000 rows are 2.2 * 10^9 elements: 8.8 GB."""
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of the device")
    head = dense(device_tools, 129_280, 4096)
    wide = head.x[:9].repeat(17_000 // 9 + 1, 1)
    found = head.kernel(wide)
    assert_bits_equal(found[-9:], head.kernel(head.x[:9]))
