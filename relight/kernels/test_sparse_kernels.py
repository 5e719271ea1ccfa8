"""Sparse attention and the indexer on a device, at official sizes, beyond what all trials share."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.formats import index_row
from relight.kernels import index, store
from relight.kernels.attend import Keys, attend, cuda
from relight.kernels.attend.step import StepAttend
from relight.kernels.canary import relative_error
from relight.kernels.index import Asked, reference
from relight.kernels.index import candidates as two_level
from relight.kernels.index.rows import RowIndex
from relight.kernels.quant import fp4_grid
from relight.kernels.testing import assert_bits_equal
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials_sparse import TO_BF16, TO_F32, filled, listed, rings

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

BF16, F32 = torch.bfloat16, torch.float32
DEVICE = torch.device("cuda")
SCALE = 512**-0.5


def shapes(tools: Toolbox) -> list[cuda.Shape]:
    """Of both generations, and V4's with the other boundary."""
    some = cuda.shapes(tools.form)
    other = F32 if some[0].dtype == BF16 else BF16
    return [*some, cuda.Shape(64, cuda.V4_ROW, cuda.V4_ROW, other)]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("width", [0, 64, 1024, 8192])
def test_lists_of_any_length_are_near_the_definition(
    device_tools: Toolbox, number: int, width: int
) -> None:
    """From a window alone to all the entries of a million tokens at ratio 128."""
    torch.manual_seed(number)
    shape, fast = shapes(device_tools)[number], StepAttend(device_tools)
    window, entries = rings(shape.window, DEVICE), filled(shape.entries, 9000, DEVICE)
    q = torch.randn(5, shape.heads, shape.dim, device=DEVICE).to(shape.dtype)
    near, sink = listed(q, 192, window.count), torch.randn(shape.heads, device=DEVICE)
    far = listed(q, width, entries.count) if width else None
    keys = Keys(window, near, entries if width else None, far)
    found = fast.attend(q, keys, sink, SCALE)
    tolerance = TO_BF16 if shape.dtype == BF16 else TO_F32
    assert relative_error(found, attend(q, keys, sink, SCALE, "step", shape.dtype)) <= tolerance
    for row in range(5):
        at = slice(row, row + 1)
        alone = fast.attend(q[at], keys.part(at), sink, SCALE)
        assert_bits_equal(alone, found[at], f"row {row} alone")
    longer = replace(keys, window_index=F.pad(near, (0, 640), value=-1))
    assert_bits_equal(fast.attend(q, longer, sink, SCALE), found, "blocks of no keys")


def test_where_keys_lie_changes_no_bit(device_tools: Toolbox) -> None:
    shape, fast = shapes(device_tools)[0], StepAttend(device_tools)
    window, order = filled(shape.window, 432, DEVICE), torch.randperm(432, device=DEVICE)
    moved = filled(shape.window, 432, DEVICE)
    store.copy(window, order, moved, torch.arange(432, device=DEVICE))
    q = torch.randn(3, shape.heads, shape.dim, device=DEVICE).to(shape.dtype)
    near, sink = listed(q, 192, 432), torch.randn(shape.heads, device=DEVICE)
    there = torch.where(near >= 0, order.argsort()[near.clamp(min=0)], -1)
    wanted = fast.attend(q, Keys(window, near), sink, SCALE)
    assert_bits_equal(fast.attend(q, Keys(moved, there), sink, SCALE), wanted)


def test_nan_in_rows_that_are_not_listed_never_spreads(device_tools: Toolbox) -> None:
    for shape in shapes(device_tools):
        fast, window = StepAttend(device_tools), filled(shape.window, 432, DEVICE)
        q = torch.randn(3, shape.heads, shape.dim, device=DEVICE).to(shape.dtype)
        near, sink = listed(q, 192, 216) * 2 + 1, torch.randn(shape.heads, device=DEVICE)
        near = near.clamp(min=-1)
        wanted = fast.attend(q, Keys(window, near), sink, SCALE)
        even = torch.arange(0, 432, 2, device=DEVICE)
        store.put(window, even, torch.full((216, shape.dim), float("nan"), device=DEVICE))
        assert_bits_equal(fast.attend(q, Keys(window, near), sink, SCALE), wanted)
        assert bool(wanted.isfinite().all())


def test_a_row_without_keys_is_zero(device_tools: Toolbox) -> None:
    shape, fast = shapes(device_tools)[0], StepAttend(device_tools)
    window, none = filled(shape.window, 64, DEVICE), torch.full((2, 64), -1, device=DEVICE)
    q = torch.randn(2, shape.heads, shape.dim, device=DEVICE).to(shape.dtype)
    found = fast.attend(q, Keys(window, none), torch.zeros(shape.heads, device=DEVICE), SCALE)
    assert_bits_equal(found, torch.zeros_like(found))


def asked(counts: tuple[int, ...], entries: int, heads: int = 64) -> dict:
    rows, owners = sum(counts), [s for s, count in enumerate(counts) for _ in range(count)]
    return {
        "q": fp4_grid(torch.randn(rows, heads, 128, device=DEVICE)),
        "weights": torch.randn(rows, heads, device=DEVICE),
        "keys": filled(index_row(128), 8192, DEVICE),
        "places": torch.randint(0, 8192, (len(counts), entries), device=DEVICE),
        "counts": counts,
        "sequence": torch.tensor(owners, device=DEVICE),
        "visible": torch.randint(1, entries + 1, (rows,), device=DEVICE),
    }


@pytest.mark.parametrize("entries", [1, 511, 512, 513, 1025, 32_768, 262_144])
def test_what_is_chosen_is_the_best_by_the_kernels_own_scores(
    device_tools: Toolbox, entries: int
) -> None:
    given, fast = asked((3, 1, 2), entries), RowIndex(device_tools)
    given["visible"][0] = entries
    scores = fast.scores(Asked(**given, family="step"))
    seen = torch.arange(entries, device=DEVICE) < given["visible"].unsqueeze(1)
    wanted = index.scores(Asked(**given, family="step"))
    error = relative_error(scores.masked_fill(~seen, 0), wanted.masked_fill(~seen, 0))
    assert error <= TO_F32
    best = reference.best(512, scores.masked_fill(~seen, float("-inf")))
    simple = reference.first(512, given["visible"])
    best = torch.where((given["visible"] > 512).unsqueeze(1), best, simple)
    assert torch.equal(fast.select(Asked(**given, family="step"), k=512), best)


def test_equal_scores_go_to_the_lowest_entry(device_tools: Toolbox) -> None:
    given = asked((1, 1, 1), 20_000)
    given["places"] %= 3
    given["weights"][1] *= 0.0
    given["visible"].fill_(20_000)
    found = RowIndex(device_tools).select(Asked(**given, family="step"), k=512)
    assert torch.equal(found, index.select(Asked(**given, family="step"), k=512))
    assert torch.equal(found[1], torch.arange(512, device=DEVICE))


def test_a_recorded_graph_follows_lengths_and_lists(device_tools: Toolbox) -> None:
    """What a step changes lies on the device: a recording of it goes on being right."""
    given, shape = asked((1, 2), 4000), shapes(device_tools)[0]
    choose, fast = RowIndex(device_tools), StepAttend(device_tools)
    window, entries = rings(shape.window, DEVICE), filled(shape.entries, 8192, DEVICE)
    q = torch.randn(3, shape.heads, shape.dim, device=DEVICE).to(shape.dtype)
    near, sink = listed(q, 192, window.count), torch.randn(shape.heads, device=DEVICE)
    owner = torch.tensor([0, 1, 1], device=DEVICE).unsqueeze(1)

    def step() -> Tensor:
        chosen = choose.select(Asked(**given, family="step"), k=512)
        far = torch.where(chosen >= 0, given["places"][owner, chosen.clamp(min=0)], -1)
        return fast.attend(q, Keys(window, near, entries, far), sink, SCALE)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found = step()
        for seen in (4000, 513, 512, 7):
            given["visible"].fill_(seen)
            near.copy_(near.roll(1, 0))
            wanted = step()
            graph.replay()
            stream.synchronize()
            assert_bits_equal(found, wanted, f"{seen} entries seen")


def test_two_levels_are_the_best_by_the_kernels_own_scores(device_tools: Toolbox) -> None:
    given, fast = asked((3, 1, 2), 40_000, heads=32), RowIndex(device_tools)
    given["visible"] = torch.tensor([40_000, 16_390, 16_384, 513, 512, 5], device=DEVICE)
    seen = torch.arange(40_000, device=DEVICE) < given["visible"].unsqueeze(1)
    scores = fast.scores(Asked(**given, family="step")).masked_fill(~seen, float("-inf"))
    best, blocks = fast.select_and_publish(
        Asked(**given, family="step"), k=512, size=8, blocks=2048
    )
    few = (given["visible"] <= 512).unsqueeze(1)
    assert torch.equal(best[~few.squeeze(1)], reference.best(512, scores)[~few.squeeze(1)])
    every = (given["visible"] + 7) // 8
    simple, worth = reference.first(2048, every), two_level.worth(scores, given["visible"], 8)
    wanted = torch.where((every > 2048).unsqueeze(1), reference.best(2048, worth), simple)
    assert torch.equal(blocks, wanted)
    listed = (blocks.unsqueeze(2) * 8 + torch.arange(8, device=DEVICE)).flatten(1)
    inside = torch.zeros(6, 40_001, dtype=torch.bool, device=DEVICE)
    inside.scatter_(1, torch.where(listed >= 0, listed, 40_000).clamp(max=40_000), True)
    wanted = reference.best(512, scores.masked_fill(~inside[:, :-1], float("-inf")))
    wanted = torch.where(few, reference.first(512, given["visible"]), wanted)
    found = fast.select_within(Asked(**given, family="step"), candidates=blocks, k=512, size=8)
    assert torch.equal(found, wanted)
