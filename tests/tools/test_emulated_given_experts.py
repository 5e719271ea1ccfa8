"""The kernels of given rows through routed experts, lane by lane on a processor, in each form: near
the definition, and rows with the same bits alone, among others, in any place and cut."""

import shutil

import pytest
import torch
from torch import Tensor

from relight.kernels.canary import relative_error
from relight.kernels.codec import StackedFp4, fp8_round
from relight.kernels.experts import Experts, experts, given, groups
from relight.kernels.experts.given import GivenExperts
from relight.kernels.experts.groups import GroupExperts
from relight.kernels.testing import assert_bits_equal
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials import EXPERTS_TOLERANCE, fp4_stack, tokens
from tools.emulate import emulated

CPU, F32, BF16 = torch.device("cpu"), torch.float32, torch.bfloat16
COUNT, WIDTH, INNER, SLOTS, LIMIT = 5, 384, 128, 2, 10.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


@pytest.fixture(scope="module", params=["sm_70", "sm_75", "sm_80", "sm_90"])
def tools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Toolbox:
    return emulated(request.param, tmp_path_factory.mktemp("kernels"))


def stacks_of(act_block: int) -> Experts:
    torch.manual_seed(1)
    gate, up = (fp4_stack(COUNT, INNER, WIDTH, CPU, act_block) for _ in range(2))
    return Experts(gate, up, fp4_stack(COUNT, WIDTH, INNER, CPU, act_block))


@pytest.fixture(scope="module")
def stacks() -> Experts:
    return stacks_of(128)


class Call:
    """Rows of one call with what they chose."""

    def __init__(self, fast: GivenExperts, stacks: Experts, ids: Tensor) -> None:
        self.boundary = BF16 if fast.tools.form.bf16 else F32
        self.stacks, self.ids = stacks, ids
        self.x = tokens(len(ids), WIDTH, CPU, self.boundary)
        self.weights = torch.rand(ids.shape)
        self._fast = fast

    def run(self, rows: Tensor | slice = slice(None)) -> Tensor:
        s = self.stacks
        chosen = (self.x[rows], self.ids[rows], self.weights[rows])
        return self._fast.experts(*chosen, s.w1, s.w3, s.w2, LIMIT, self.boundary)

    def definition(self) -> Tensor:
        chosen = (self.x, self.ids, self.weights)
        return experts(*chosen, self.stacks, LIMIT, "prefill", True, self.boundary)


def uneven(rows: int) -> Tensor:
    """All rows choose expert 3, which fills a tile and begins another, a few each of the others,
    none expert 0: tiles of each width."""
    others = torch.tensor([1] * 3 + [2] * 20 + [4] * (rows - 23))
    ids = torch.stack([others, torch.full((rows,), 3)], dim=1)
    return ids.sort(dim=1).values


@pytest.fixture(params=[GivenExperts, GroupExperts], ids=["", "groups"])
def fast(tools: Toolbox, request: pytest.FixtureRequest) -> GivenExperts:
    if request.param is GroupExperts and not tools.form.groups:
        pytest.skip("no warp groups")
    kind: type[GivenExperts] = request.param
    return kind(tools)


@pytest.fixture
def call(fast: GivenExperts, stacks: Experts) -> Call:
    torch.manual_seed(2)
    return Call(fast, stacks, uneven(70))


def test_rows_are_near_the_definition_and_keep_their_bits(call: Call) -> None:
    found = call.run()
    assert relative_error(found, call.definition()) <= EXPERTS_TOLERANCE
    for row in (0, 22, 69):
        assert_bits_equal(call.run(slice(row, row + 1))[0], found[row], f"row {row} alone")
    for order in (torch.randperm(70), torch.randperm(70)[:40]):
        assert_bits_equal(call.run(order), found[order], "in another order")


def test_tokens_may_have_a_scale_for_each_32_values(fast: GivenExperts) -> None:
    torch.manual_seed(2)
    call = Call(fast, stacks_of(32), uneven(70))
    found = call.run()
    assert relative_error(found, call.definition()) <= EXPERTS_TOLERANCE
    order = torch.randperm(70)[:20]
    assert_bits_equal(call.run(order), found[order], "in another order")
    call.x[1::3, 5] = float("nan")
    sick = torch.arange(70) % 3 == 1
    beside = call.run()
    assert_bits_equal(beside[~sick], found[~sick])
    assert not beside[sick].isfinite().any()


def test_where_a_pass_is_cut_changes_nothing(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = call.run()
    monkeypatch.setattr(given, "MOST_ROWS", 33)
    monkeypatch.setattr(given, "DOWN_BYTES", 1)
    assert_bits_equal(call.run(), wanted)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_in_its_row(call: Call, bad: float) -> None:
    wanted = call.run()
    sick = torch.arange(70) % 3 == 1
    call.x[sick, 5] = bad
    found = call.run()
    assert_bits_equal(found[~sick], wanted[~sick])
    assert not found[sick].isfinite().any()


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 130])
def test_all_rows_may_choose_one_expert(fast: GivenExperts, stacks: Experts, rows: int) -> None:
    torch.manual_seed(3)
    call = Call(fast, stacks, torch.full((rows, 1), COUNT - 1))
    found = call.run()
    assert relative_error(found, call.definition()) <= EXPERTS_TOLERANCE
    assert_bits_equal(call.run(slice(rows - 1, rows)), found[-1:])


def test_no_rows_give_no_rows(fast: GivenExperts, stacks: Experts) -> None:
    assert Call(fast, stacks, torch.zeros(0, SLOTS, dtype=torch.int64)).run().shape == (0, WIDTH)


def test_pairs_are_listed_by_expert_in_their_order(tools: Toolbox) -> None:
    torch.manual_seed(4)
    ids = torch.randint(0, 70, (450, 3))
    ids[:, 0][ids[:, 0] == 7] = 8
    ids[:, 1] = 9
    pairs = given.Pairs(tools, ids, 70)
    assert_bits_equal(pairs.order.long(), ids.flatten().argsort(stable=True))
    wanted, first = [], 0
    for expert, count in enumerate(ids.flatten().bincount(minlength=70).tolist()):
        for at in range(0, count, given.TILE_PAIRS):
            wanted.append([expert, first + at, min(given.TILE_PAIRS, count - at)])
        first += count
    assert pairs.num_tiles.item() == len(wanted) <= pairs.most_tiles
    assert pairs.tiles[: len(wanted)].tolist() == wanted


def product(fast: GivenExperts, w: StackedFp4, x: Tensor, ids: Tensor) -> Tensor:
    """The down product of pairs [n], to float32."""
    pairs = given.Pairs(fast.tools, ids.unsqueeze(1), len(w.data), fast.TILE_PAIRS)
    codes, scales = fast.tools.quantise(x[pairs.order.long()], w.act_block)
    hidden: tuple[Tensor, ...] = (codes, scales)
    if isinstance(fast, GroupExperts):
        hidden = (fast.lay(codes, scales, w.act_block),)
    found = torch.full((len(x), w.data.shape[1]), float("nan"))
    fast.down(hidden, pairs, w, F32, found)
    return found


def exact(w: StackedFp4, x: Tensor, ids: Tensor) -> Tensor:
    rounded = fp8_round(x, w.act_block).double()
    return torch.stack([w.expert(int(e)).decode().double() @ rounded[i] for i, e in enumerate(ids)])


@pytest.mark.parametrize("act_block", given.ACT_BLOCKS)
def test_weights_are_exact_as_long_as_scales_of_a_row_are_not_too_far_apart(
    fast: GivenExperts, act_block: int
) -> None:
    """Also where tokens are such that only the small ones count, and beside groups of zeros."""
    torch.manual_seed(5)
    w = fp4_stack(2, 256, 256, CPU, act_block)
    w.scale[:] = 120
    w.scale[:, :, 3:] = 120 - given.SPREAD
    w.scale[0, :, 5], w.data[0, :, 16 * 5 : 16 * 6] = 1, 0
    assert given.objection(w, w, w) == ""
    x = tokens(20, 256, CPU, F32)
    x[::2, :96] = 0
    ids = torch.arange(20) % 2
    found, wanted = product(fast, w, x, ids), exact(w, x, ids)
    for rows in (slice(0, None, 2), slice(1, None, 2)):
        assert relative_error(found[rows], wanted[rows]) <= 2e-6


def test_weights_of_warp_groups_are_exact_up_to_their_largest_scale(tools: Toolbox) -> None:
    """All sixteen values times all scales; what is larger is for the other kernels."""
    if not tools.form.groups:
        pytest.skip("no warp groups")
    torch.manual_seed(6)
    w = fp4_stack(2, 256, 512, CPU)
    w.scale[:] = groups.MOST_SCALE - 8 * torch.arange(16)
    plain = GivenExperts(tools)
    fast = groups.fitted(plain, w, w, w)
    assert isinstance(fast, GroupExperts)
    ids = torch.arange(20) % 2
    for part in range(16):
        x = torch.zeros(20, 512)
        x[:, 32 * part : 32 * part + 32] = tokens(20, 32, CPU, F32)
        assert relative_error(product(fast, w, x, ids), exact(w, x, ids)) <= 2e-6
    w.scale[0, 7, 3] = groups.MOST_SCALE + 1
    assert groups.fitted(plain, w, w, w) is plain
