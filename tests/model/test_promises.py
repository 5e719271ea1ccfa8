"""The promises on text: the bits of a row depend on its own past and roles only. Compares bits.

Runs on the tiny golden checkpoints, which have every kind of layer, under official numerics.
"""

import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.numerics import OFFICIAL
from relight.cache.layout import PAGE_TOKENS, REWIND_ROWS
from relight.model.network import load
from tests.model.harness import GOLDEN, Driver, differing, same_bits

LENGTH = 300


def tokens(seed: int, count: int) -> list[int]:
    return [random.Random(seed).randrange(4, 320) for _ in range(count)]


PROMPT = tokens(1, LENGTH)


@pytest.fixture(scope="module", params=["v4", "v41"])
def driver(request: pytest.FixtureRequest, device: str) -> Driver:
    model = open_model(GOLDEN / request.param / "checkpoint")
    weights = load(model, torch.device(device))
    return Driver(
        model.config, weights, OFFICIAL, num_slots=5, context=5 * PAGE_TOKENS, device=device
    )


@pytest.fixture(scope="module")
def alone(driver: Driver) -> Tensor:
    """Logits of the prompt in one piece, in slot 0, which keeps its state."""
    driver.set_length(0, 0)
    return driver.given(0, PROMPT)


CUTS = {
    "one by one at the start": list(range(1, 20)),
    "by 17": list(range(17, LENGTH, 17)),
    "by 128": [128, 256],
    "one by one around a page": list(range(124, 134)),
    "random": sorted(random.Random(7).sample(range(1, LENGTH), 9)),
}


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_any_cut_of_a_prompt_into_chunks_gives_the_same_bits(
    driver: Driver, alone: Tensor, cuts: list[int]
) -> None:
    driver.set_length(1, 0)
    assert same_bits(driver.given(1, PROMPT, cuts), alone)
    assert not differing(driver.readable(1), driver.readable(0))


def test_batch_mates_and_their_order_never_change_a_given_row(
    driver: Driver, alone: Tensor
) -> None:
    mates = {2: tokens(2, 77), 3: tokens(3, 260), 4: tokens(4, 3)}
    for order in ([1, 2, 3, 4], [4, 3, 2, 1], [3, 1]):
        for slot in order:
            driver.set_length(slot, 0)
        work = {slot: PROMPT if slot == 1 else mates[slot] for slot in order}
        assert same_bits(driver.step(given=work)[1], alone)
        assert not differing(driver.readable(1), driver.readable(0))


@pytest.fixture(scope="module")
def stepped(driver: Driver) -> Tensor:
    """Logits of 48 made rows after 120 given ones, one a step, in slot 0."""
    driver.set_length(0, 0)
    driver.given(0, PROMPT[:120])
    return driver.made(0, PROMPT[120:168])


@pytest.mark.parametrize("width", range(2, REWIND_ROWS + 1))
def test_any_width_of_a_step_gives_the_same_bits(
    driver: Driver, stepped: Tensor, width: int
) -> None:
    driver.set_length(1, 0)
    driver.given(1, PROMPT[:120])
    assert same_bits(driver.made(1, PROMPT[120:168], width), stepped)
    assert not differing(driver.readable(1), driver.readable(0))


def test_step_mates_never_change_a_made_row(driver: Driver, stepped: Tensor) -> None:
    lengths = {1: 120, 2: 5, 3: 255, 4: 0}
    for slot, length in lengths.items():
        driver.set_length(slot, 0)
        if slot != 4:
            driver.given(slot, PROMPT[:length])
    rows = []
    for i in range(48):
        made = {3: tokens(i, 1 + i % 3), 1: [PROMPT[120 + i]], 2: tokens(90 + i, 1)}
        given = {4: tokens(50 + i, 1 + i % 7)}
        rows.append(driver.step(made=made, given=given)[1])
    assert same_bits(torch.cat(rows), stepped)


def test_a_neighbour_of_nan_changes_nothing(driver: Driver, alone: Tensor) -> None:
    driver.set_length(1, 0)
    driver.set_length(2, 0)
    embed = driver.runner.model.weights.embed
    kept = embed[9].clone()
    try:
        embed[9] = float("nan")
        prompt = [t if t != 9 else 10 for t in PROMPT]
        clean = driver.step(given={1: prompt})[1]
        driver.set_length(1, 0)
        mixed = driver.step(given={2: [9] * 70, 1: prompt})
        assert mixed[2].isnan().any()
        assert same_bits(mixed[1], clean)
    finally:
        embed[9] = kept


def test_the_number_of_threads_changes_nothing(
    driver: Driver, alone: Tensor, stepped: Tensor
) -> None:
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            driver.set_length(1, 0)
            assert same_bits(driver.given(1, PROMPT), alone)
            driver.set_length(1, 0)
            driver.given(1, PROMPT[:120])
            assert same_bits(driver.made(1, PROMPT[120:168], 5), stepped)
    finally:
        torch.set_num_threads(before)


def test_the_two_roles_are_two_families(driver: Driver, alone: Tensor, stepped: Tensor) -> None:
    """If they agreed, the tests of roles would prove nothing; values stay close."""
    assert not same_bits(stepped, alone[120:168])


@pytest.mark.parametrize("first", [0, 64, 128, 192])
def test_a_rewind_of_up_to_sixteen_rows_is_setting_a_length(
    driver: Driver, device: str, first: int
) -> None:
    """From every position mod 256, of an accelerator, whose eager steps are slow, from every third:
    the readable bytes are those of never having written."""
    stride = 1 if device == "cpu" else 3
    driver.set_length(1, 0)
    if first:
        driver.given(1, PROMPT[:first])
    for i in range(0, 64, stride):
        before, length = driver.readable(1), driver.length(1)
        rejected = 1 + i % REWIND_ROWS
        driver.made(1, tokens(i, rejected), width=rejected)
        driver.set_length(1, length)
        assert not differing(driver.readable(1), before), f"{rejected} rows back to {length}"
        driver.made(1, tokens(i + 64, stride), stride)


@pytest.mark.parametrize("length", [0, 1, 3, 5, 127, 128, 130, 255, 257])
def test_after_a_rewind_all_later_logits_are_equal(driver: Driver, length: int) -> None:
    """None rejected, few and many, then 40 rows that read what was written before."""
    later = tokens(12, 40)
    driver.set_length(0, 0)
    if length:
        driver.given(0, PROMPT[:length])
    expected = driver.made(0, later, 8)
    for rejected in (0, 1, 2, 7, 15, REWIND_ROWS):
        driver.set_length(1, 0)
        if length:
            driver.given(1, PROMPT[:length])
        if rejected:
            driver.made(1, tokens(rejected, rejected), rejected)
        driver.set_length(1, length)
        assert same_bits(driver.made(1, later, 8), expected)


@pytest.mark.parametrize("boundary", [128, 256])
@pytest.mark.parametrize("ahead", [0, 1, 5, 16])
def test_a_record_goes_on_at_a_boundary_as_if_nothing_had_happened(
    driver: Driver, boundary: int, ahead: int
) -> None:
    """The record is taken up to 16 rows past its boundary, and restored to another slot."""
    driver.set_length(0, 0)
    driver.given(0, PROMPT[:boundary])
    before = driver.readable(0)
    if ahead:
        driver.made(0, tokens(1, ahead), ahead)
    driver.pool.take_record(0, 2, boundary)
    driver.set_length(0, boundary)
    table = driver.runner.page_table
    kept = table[1].clone()
    try:
        table[1] = table[0]
        driver.pool.slots.bytes[1].random_(0, 255)
        driver.pool.restore_record(1, 2, boundary)
        driver.set_length(1, boundary)
        assert not differing(driver.readable(1), before)
        rest = PROMPT[boundary : boundary + 30]
        restored = driver.given(1, rest)
        driver.set_length(0, boundary)
        assert same_bits(restored, driver.given(0, rest))
    finally:
        table[1] = kept


def test_slots_share_no_state(driver: Driver, alone: Tensor) -> None:
    """Interleaved chunks of two sequences give what each gives alone."""
    other = tokens(21, LENGTH)
    driver.set_length(1, 0)
    ours = driver.given(1, other)
    driver.set_length(2, 0)
    driver.set_length(3, 0)
    rows: dict[int, list[Tensor]] = {2: [], 3: []}
    for a, b in pairwise([0, 5, 130, 131, 260, LENGTH]):
        rows[2].append(driver.given(2, PROMPT[a:b]))
        rows[3].append(driver.given(3, other[a:b]))
    assert same_bits(torch.cat(rows[2]), alone)
    assert same_bits(torch.cat(rows[3]), ours)
