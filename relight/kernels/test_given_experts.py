"""Given rows through V4-Flash's routed experts on a device: near the definition, and a row with the
same bits in any cut, place and company, whatever the others choose."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from relight.kernels.canary import relative_error
from relight.kernels.experts import Experts, experts
from relight.kernels.experts.given import MOST_ROWS, GivenExperts, objection
from relight.kernels.experts.groups import fitted
from relight.kernels.testing import assert_bits_equal, waits
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials import EXPERTS_TOLERANCE, fp4_stack, tokens

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

CUDA = torch.device("cuda")
COUNT, WIDTH, INNER, SLOTS, LIMIT = 256, 4096, 2048, 6, 10.0
ROWS = 2500
CUTS = (1, 2, 15, 16, 17, 63, 64, 65, 129, 1000, 2048)


@dataclass(frozen=True)
class Call:
    stacks: Experts
    boundary: torch.dtype
    x: Tensor
    ids: Tensor
    weights: Tensor

    def run(self, rows: Tensor | slice = slice(None)) -> Tensor:
        assert self.stacks.given is not None
        return self._experts(self.stacks, rows)

    def definition(self) -> Tensor:
        return self._experts(replace(self.stacks, given=None), slice(None))

    def _experts(self, stacks: Experts, rows: Tensor | slice) -> Tensor:
        chosen = (self.x[rows], self.ids[rows], self.weights[rows])
        return experts(*chosen, stacks, LIMIT, "prefill", True, self.boundary)

    def of(self, rows: int, ids: Tensor) -> "Call":
        """The same experts with other rows."""
        x = tokens(rows, WIDTH, CUDA, self.boundary)
        return replace(self, x=x, ids=ids, weights=torch.rand(ids.shape, device=CUDA))


def drawn(rows: int) -> Tensor:
    return torch.rand(rows, COUNT, device=CUDA).topk(SLOTS).indices.sort(dim=1).values


@pytest.fixture(scope="module")
def call(device_tools: Toolbox) -> Call:
    if torch.cuda.mem_get_info()[0] < 8 * 2**30:
        pytest.skip("needs 8 GiB of the device")
    torch.manual_seed(1)
    gate, up = (fp4_stack(COUNT, INNER, WIDTH, CUDA) for _ in range(2))
    down = fp4_stack(COUNT, WIDTH, INNER, CUDA)
    assert objection(gate, up, down) == ""
    stacks = Experts(gate, up, down, given=fitted(GivenExperts(device_tools), gate, up, down))
    boundary = torch.bfloat16 if device_tools.form.bf16 else torch.float32
    nothing = torch.empty(0, device=CUDA)
    return Call(stacks, boundary, nothing, nothing, nothing).of(ROWS, drawn(ROWS))


def test_a_prompt_is_near_its_definition(call: Call) -> None:
    assert relative_error(call.run(), call.definition()) <= EXPERTS_TOLERANCE


def test_a_row_has_the_same_bits_in_any_cut_and_place(call: Call) -> None:
    whole = call.run()
    for count in CUTS:
        for begin in (0, 7, ROWS - count):
            some = slice(begin, begin + count)
            assert_bits_equal(call.run(some), whole[some], f"rows {some}")
    order = torch.randperm(ROWS, device=CUDA)
    assert_bits_equal(call.run(order), whole[order], "another order")
    for _ in range(3):
        assert_bits_equal(call.run(), whole, "once more")


def test_rows_may_choose_as_they_like(call: Call) -> None:
    """All the same six, or all one and of the others each its own."""
    same = torch.tensor([0, 1, 7, 100, 254, 255], device=CUDA).expand(ROWS, SLOTS).contiguous()
    own = torch.stack([torch.arange(ROWS, device=CUDA) % 200, torch.full_like(same[:, 0], 211)], 1)
    for ids in (same, own):
        other = call.of(ROWS, ids)
        found = other.run()
        assert relative_error(found, other.definition()) <= EXPERTS_TOLERANCE
        for row in (0, 1, 63, 64, ROWS - 1):
            assert_bits_equal(other.run(slice(row, row + 1))[0], found[row], f"row {row} alone")


def test_more_rows_than_a_pass_have_the_same_bits(call: Call) -> None:
    rows = MOST_ROWS + 70
    long = call.of(rows, drawn(rows))
    found = long.run()
    for some in (slice(0, 40), slice(MOST_ROWS - 40, MOST_ROWS + 40), slice(rows - 1, rows)):
        assert_bits_equal(long.run(some), found[some], f"rows {some}")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_neighbour_of_nan_stays_healthy(call: Call, bad: float) -> None:
    wanted = call.run()
    sick = torch.arange(ROWS, device=CUDA) % 3 == 1
    x = call.x.clone()
    x[sick, 5] = bad
    found = replace(call, x=x).run()
    assert_bits_equal(found[~sick], wanted[~sick])
    assert not found[sick].isfinite().any()


def test_every_output_is_written(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*arguments: Any, **named: Any) -> Tensor:
            x = make(*arguments, **named)
            return x.fill_(float("nan") if x.is_floating_point() else 127)

        return made

    wanted = call.run()
    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(Tensor, "new_empty", poisoned(Tensor.new_empty))
    assert_bits_equal(call.run(), wanted)


def test_nobody_waits_for_the_device(call: Call) -> None:
    call.run()
    with waits(allowed=False):
        call.run()
