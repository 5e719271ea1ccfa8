"""What kernels do along with other work, on a device: the bits of a launch of its own."""

import pytest
import torch
from torch import Tensor

from relight.base.formats import index_row, kv_row
from relight.kernels import index
from relight.kernels.attend import Keys, Turn
from relight.kernels.attend.step import StepAttend
from relight.kernels.experts import in_order
from relight.kernels.hyper import Mix, Unspread, cuda
from relight.kernels.hyper.rows import RowHyper
from relight.kernels.index import Asked
from relight.kernels.index.rows import RowIndex
from relight.kernels.quant import fp4_grid
from relight.kernels.rope import frequencies
from relight.kernels.testing import assert_bits_equal
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials_small import EPS, randoms
from relight.kernels.trials_sparse import filled, listed
from relight.kernels.vectors import RowVectors

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
WIDTH = 4096


def boundary_of(tools: Toolbox) -> torch.dtype:
    return torch.bfloat16 if tools.form.bf16 else torch.float32


@pytest.mark.parametrize("rows", [1, 2, 3, 6, 8, 16])
def test_results_of_attention_turned_back(device_tools: Toolbox, rows: int) -> None:
    keys = filled(kv_row(512, 64), 900, DEVICE)
    q = torch.randn(rows, 64, 512, device=DEVICE).to(boundary_of(device_tools))
    given = Keys(keys, listed(q, 128, 900), keys, listed(q, 512, 900))
    positions = torch.randint(0, 1_000_000, (rows,), device=DEVICE)
    turn = frequencies(1e4, 64, None).to(DEVICE)
    vectors, fast = RowVectors(device_tools), StepAttend(device_tools)
    back = Turn(positions, turn, lambda y: vectors.rotate(y, positions, turn, inverse=True))
    sink = torch.randn(64, device=DEVICE)
    plain = fast.attend(q, given, sink, 512**-0.5)
    assert_bits_equal(fast.attend(q, given, sink, 512**-0.5, back), back.apart(plain))


@pytest.mark.parametrize("rows", [1, 6, 40])
def test_chosen_entries_as_places(device_tools: Toolbox, rows: int) -> None:
    count, k = 2100, 512
    asked = Asked(
        fp4_grid(torch.randn(rows, 64, 128, device=DEVICE)),
        torch.randn(rows, 64, device=DEVICE),
        filled(index_row(128), 3000, DEVICE),
        torch.randint(0, 3000, (rows, count), device=DEVICE),
        (1,) * rows,
        torch.arange(rows, device=DEVICE),
        torch.randint(0, count + 1, (rows,), device=DEVICE),
        "step",
    )
    fast = RowIndex(device_tools)
    entries = index.select(asked, k, fast)
    wanted = asked.places.gather(1, entries.clamp(min=0)).masked_fill(entries < 0, -1)
    assert torch.equal(index.select(asked, k, fast, placed=True), wanted)


def some_streams(tools: Toolbox, rows: int) -> tuple[Tensor, Tensor, Tensor, Mix]:
    """Streams, out, slots of experts and a mix."""
    boundary = boundary_of(tools)
    streams = randoms(rows, 4, WIDTH, device=DEVICE, dtype=boundary)
    out = randoms(rows, WIDTH, device=DEVICE, dtype=boundary)
    sizes = ((rows, 4), (rows, 4), (rows, 4, 4))
    mix = Mix(*(torch.rand(size, device=DEVICE) for size in sizes))
    return streams, out, torch.randn(rows, 6, WIDTH, device=DEVICE), mix


@pytest.mark.parametrize("rows", [1, 6, 16, 65])
def test_mixes_that_blocks_end_together(
    device_tools: Toolbox, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not device_tools.form.clusters:
        pytest.skip("no clusters")
    fast = RowHyper(device_tools)
    for width, block in ((4096, 128), (5120, 32)):
        streams = randoms(rows, 4, width, device=DEVICE, dtype=boundary_of(device_tools))
        shapes = ((24, 4 * width), (24,), (3,))
        weights = [torch.randn(shape, device=DEVICE) for shape in shapes]
        norm, found = torch.rand(width, device=DEVICE), []
        for peers in (True, False):
            if not peers:
                monkeypatch.setattr(cuda, "peer_threads", lambda form, width: 0)
            given = (streams, *weights, None, norm)
            how = {"iterations": 20, "eps": EPS, "norm_eps": EPS, "act_block": block}
            _, mix, x = fast.mix_and_read(*given, **how)
            found.append((x, mix.pre, mix.post, mix.comb, *device_tools.quantise(x, block)))
        monkeypatch.undo()
        for together, alone in zip(*found, strict=True):
            assert_bits_equal(together, alone)


@pytest.mark.parametrize("rows", [1, 6, 300])
def test_slots_of_experts_summed_as_they_are_spread(device_tools: Toolbox, rows: int) -> None:
    streams, out, routed, mix = some_streams(device_tools, rows)
    fast = RowHyper(device_tools)
    total = (in_order(routed) + out.float()).to(out.dtype)
    wanted = fast.expand(total, streams, mix)
    assert_bits_equal(fast.expand(out, streams, mix, routed), wanted)


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 6, 8, 17])
def test_streams_spread_as_they_are_read(device_tools: Toolbox, rows: int, slots: bool) -> None:
    """And a mix that is finished later."""
    streams, out, routed, mix = some_streams(device_tools, rows)
    parts = routed if slots else None
    fn = torch.randn(24, 4 * WIDTH, device=DEVICE) / WIDTH**0.5
    given = (fn, torch.randn(24, device=DEVICE), torch.rand(3, device=DEVICE), None)
    norm, how = torch.rand(WIDTH, device=DEVICE), {"iterations": 20, "eps": EPS, "norm_eps": EPS}
    fast = RowHyper(device_tools)
    spread = fast.expand(out, streams, mix, parts)
    _, wanted, wanted_x = fast.mix_and_read(spread, *given, norm, **how)
    late = Unspread(out, parts, streams, mix)
    whole, found, x = fast.mix_and_read(late, *given, norm, **how, late=True)
    found.finish()
    assert_bits_equal(whole, spread)
    assert_bits_equal(x, wanted_x)
    for name in ("pre", "post", "comb"):
        assert_bits_equal(getattr(found, name), getattr(wanted, name), name)
