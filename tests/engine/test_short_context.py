"""Where no row sees more entries than would be selected nobody selects, recorded or not, with the
bits of a selection. The candidate source of V4.1 selects all the same."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.numerics import OFFICIAL
from relight.base.official import V4_FLASH, V41_FLASH
from relight.cache.pool import Pool
from relight.engine.graphs import SHORT, Shape
from relight.engine.plan import Draw, PageWrite, Rows, SetLength, StepPlan
from relight.engine.runner import Runner
from relight.kernels import index
from relight.kernels.testing import assert_bits_equal
from relight.model import attention, csa2
from relight.model.network import load, network
from tests.engine.real import sampled, words
from tests.engine.tape import record_all, recorder_of
from tests.model.harness import GOLDEN

TOPK = 512
PAGES = {"v4": 17, "v41": 9}
EDGES = {"v4": (2048,), "v41": (512, 1024)}
"""Tokens of which 512 entries are made: four, one or two make one."""
LENGTHS = {name: (*edges, PAGES[name] * 128) for name, edges in EDGES.items()}
READ = {"v4": Counter[str](), "v41": Counter({"select_and_publish": 1})}
"""What the prompt takes."""
SELECTS = ("select", "select_and_publish", "select_within")


def runner(name: str, device: str, topk: int = TOPK) -> Runner:
    """Of slot 0, with caches full of what once was there."""
    model = open_model(GOLDEN / name / "checkpoint")
    config = replace(model.config, index_topk=topk)
    if config.candidates is not None:
        blocks = replace(config.candidates, topk_blocks=-(-topk // config.candidates.block_size))
        config = replace(config, candidates=blocks)
    where = torch.device(device)
    pool = Pool(config, OFFICIAL, where, num_pages=PAGES[name] + 1, num_slots=1, num_records=1)
    for blocks_ in (pool.pages, pool.slots):
        generator = torch.Generator().manual_seed(5)
        noise = torch.randint(0, 100, blocks_.bytes.shape, generator=generator, dtype=torch.uint8)
        blocks_.bytes.copy_(noise)
    whole = network(config, load(model, where), OFFICIAL)
    return Runner(whole, pool, max_context=LENGTHS[name][-1])


def made(runner: Runner, start: int, count: int) -> Tensor:
    """Logits of so many made rows from `start` on, one a step. What is remembered as tokens must be
    some, so a few are read."""
    pages = PageWrite(0, 0, tuple(range(1, runner.pool.pages.count)))
    given = Rows(0, 0, tuple(words(1, 40)))
    runner.execute(StepPlan(0, lengths=(SetLength(0, 0),), pages=(pages,), given=(given,)))
    runner.execute(StepPlan(0, lengths=(SetLength(0, start),)))
    logits: list[Tensor] = []
    drawn_from, replayed = runner._draw, runner._draw_replayed

    def draw(draws: Any, rows: Tensor) -> Any:
        logits.append(rows.clone())
        return drawn_from(draws, rows)

    def draw_replayed(draws: Any, rows: Any) -> Any:
        assert runner.graphs is not None
        logits.append(runner.graphs.logits[list(rows)].clone())
        return replayed(draws, rows)

    runner._draw, runner._draw_replayed = draw, draw_replayed  # type: ignore[method-assign]
    for position, token in zip(range(start, start + count), words(start, count), strict=True):
        rows = Rows(0, position, (token,), sample=True)
        runner.execute(StepPlan(1, (rows,), draws=(Draw(0, position + 1, sampled(9)),)))
    runner._draw, runner._draw_replayed = drawn_from, replayed  # type: ignore[method-assign]
    return torch.cat(logits)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each way of selecting was taken."""
    counts: Counter[str] = Counter()
    for name in SELECTS:
        whole = getattr(index, name)

        def select(*args: Any, placed: bool, name: str = name, whole: Any = whole) -> Any:
            counts[name] += 1
            return whole(*args, placed=placed)

        monkeypatch.setattr(index, name, select)
    return counts


def test_the_edges_are_those_of_the_official_models() -> None:
    assert V4_FLASH.index_topk == V41_FLASH.index_topk == TOPK
    assert {layer.ratio for layer in V4_FLASH.layers if layer.attention == "csa"} == {4}
    assert {layer.ratio for layer in V41_FLASH.layers} == {0, 1, 2}
    assert SHORT == 4 * TOPK


@pytest.mark.parametrize("name", EDGES)
def test_nothing_is_selected_up_to_the_edge_but_by_the_candidate_source(
    name: str, asked: Counter[str]
) -> None:
    one = runner(name, "cpu")
    found = {}
    for edge in EDGES[name]:
        for start in (edge - 1, edge + 4):
            asked.clear()
            made(one, start, 1)
            found[start + 1] = dict(asked - READ[name])
    if name == "v4":
        assert found == {2048: {}, 2053: {"select": 2}}
    else:
        assert found == {
            512: {"select_and_publish": 1},
            517: {"select_and_publish": 1, "select_within": 1},
            1024: {"select_and_publish": 1, "select_within": 1},
            1029: {"select": 1, "select_and_publish": 1, "select_within": 1},
        }


@pytest.mark.parametrize("name", EDGES)
def test_what_is_not_selected_has_the_bits_of_a_selection(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From below each edge to above it."""
    short, long = runner(name, device), runner(name, device)
    for edge in EDGES[name]:
        wanted = made(short, edge - 3, 8)
        with monkeypatch.context() as patch:
            select_always(patch)
            found = made(long, edge - 3, 8)
        assert_bits_equal(found, wanted, f"around {edge}")
    assert_bits_equal(long.pool.slots.bytes, short.pool.slots.bytes)
    assert_bits_equal(long.pool.pages.bytes[1:], short.pool.pages.bytes[1:])


def select_always(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(csa2.Csa2, "_sees_all", lambda self, entries: False)
    patch.setattr(attention.Attention, "_sees_all", lambda self, entries: False)


@pytest.mark.parametrize("name", EDGES)
def test_recorded_steps_go_over_the_edge_with_the_bits_of_eager_ones(
    name: str, device: str
) -> None:
    """A recording up to the edge selects nothing, the next one for any row that sees more."""
    eager, recorded = runner(name, device), runner(name, device)
    shapes = [Shape(1, context) for context in LENGTHS[name]]
    record_all(recorded, shapes, recorder_of(device))
    for blocks, others in ((recorded.pool.pages, eager.pool.pages),
                           (recorded.pool.slots, eager.pool.slots)):  # fmt: skip
        blocks.bytes.copy_(others.bytes)
    for edge in EDGES[name]:
        wanted = made(eager, edge - 3, 8)
        assert_bits_equal(made(recorded, edge - 3, 8), wanted, f"around {edge}")
    assert recorded.graphs is not None
    assert recorded.graphs.num_replays == 8 * len(EDGES[name])
    assert_bits_equal(recorded.pool.slots.bytes, eager.pool.slots.bytes)
    assert_bits_equal(recorded.pool.pages.bytes[1:], eager.pool.pages.bytes[1:])
