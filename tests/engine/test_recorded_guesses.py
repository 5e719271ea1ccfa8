"""Recorded guesses of a draft: those that it makes eagerly, bit by bit, whoever asks with whom."""

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from relight.engine.guesses import RecordedGuesses
from relight.engine.plan import Draw, Rows
from relight.engine.proposer import DraftProposer, Guesses, propose
from relight.kernels.testing import assert_bits_equal, tells_waits, waits
from tests.engine.real import RealEngine, sampled, words, write_checkpoint
from tests.engine.tape import recorder_of

SLOTS = 4
SAMPLINGS = (
    {"temperature": 0.0},
    {},
    {"temperature": 0.6, "min_p": 0.02},
    {"top_p": 0.8},
    {"top_k": 9, "presence_penalty": 1.0},
)


@pytest.fixture(params=["v4_dspark", pytest.param("v41", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, tmp_path: Path, device: str) -> Iterator[RealEngine]:
    """One whose draft remembers prompts, of which one is shorter than a window."""
    checkpoint = write_checkpoint(tmp_path, request.param)
    made = RealEngine(
        checkpoint,
        device,
        pages=16,
        records=20,
        slots=SLOTS,
        spec="dspark",
        spec_k=3,
        spec_threshold=0.0,
        max_context=512,
    )
    for number, length in enumerate((3, 130, 40, 257)):
        made.add(words(number, length), max_tokens=40)
    made.until(lambda: all(len(answer.tokens) > 2 for answer in made.answers.values()))
    return made


def a_step(pick: random.Random) -> tuple[list[Rows], list[Draw], list[int]]:
    """Rows of some slots with guesses, of which those in front of a wrong one are right; some ask
    for guesses behind."""
    rows: list[Rows] = []
    draws: list[Draw] = []
    drawn: list[int] = []
    for slot in pick.sample(range(SLOTS), pick.randint(1, SLOTS)):
        proposed, right = pick.randint(0, 3), pick.randint(0, 3)
        guesses = [pick.randrange(320) for _ in range(proposed)]
        draws_here = [*guesses, pick.randrange(320)]
        for place in range(right, proposed + 1):
            draws_here[place] = pick.choice((-1, pick.randrange(320)))
        sampling = sampled(9, slot, **pick.choice(SAMPLINGS))
        rows.append(
            Rows(slot, 30, (5, *guesses), sample=True, proposed=proposed,
                 propose=pick.choice((0, 1, 3, 3)))
        )  # fmt: skip
        draws += [Draw(slot, 31 + place, sampling) for place in range(proposed + 1)]
        drawn += draws_here
    return rows, draws, drawn


@torch.inference_mode()
def test_any_guesses_are_those_that_are_made_eagerly(engine: RealEngine, device: str) -> None:
    runner, proposer = engine.runner, engine.runner.proposer
    assert isinstance(proposer, DraftProposer)
    recorded = RecordedGuesses(proposer, runner.lengths)
    source = recorder_of(device)
    for count in (1, 4):
        recorded.record(count, source)
    before, pick, asked = runner.pool.slots.bytes.clone(), random.Random(3), 0
    for _ in range(8):
        rows, draws, drawn = a_step(pick)
        tokens = torch.tensor(drawn, device=device)
        wanted = propose(proposer, rows, draws, tokens, runner.lengths)
        found = recorded.propose(rows, draws, tokens)
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            asked += 1
            assert_bits_equal(found.tokens, wanted.tokens)
            assert_bits_equal(found.confidence, wanted.confidence)
            assert found.asked == wanted.asked
    assert recorded.num_replays == asked > 3
    if tells_waits(device):
        with waits(allowed=False):
            recorded.propose(rows, draws, tokens)
            propose(proposer, rows, draws, tokens, runner.lengths)
    assert_bits_equal(runner.pool.slots.bytes, before, "rings")


@torch.inference_mode()
def test_what_no_recording_holds_is_left_to_the_draft(engine: RealEngine, device: str) -> None:
    proposer = engine.runner.proposer
    assert isinstance(proposer, DraftProposer)
    recorded = RecordedGuesses(proposer, engine.runner.lengths)
    recorded.record(1, recorder_of(device))
    asks = [Rows(slot, 30, (5,), sample=True, propose=2) for slot in range(2)]
    draws = [Draw(slot, 31, sampled(9)) for slot in range(2)]
    tokens = torch.tensor([7, 8], device=device)
    assert recorded.propose(asks, draws, tokens) is None
    assert isinstance(recorded.propose(asks[:1], draws[:1], tokens[:1]), Guesses)
    quiet = msgspec.structs.replace(asks[0], propose=0)
    assert recorded.propose([quiet], draws[:1], tokens[:1]) is None
    many = tokens[:1].expand(1000)
    assert recorded.propose(asks[:1], draws[:1], many) is None
    recorded.record(1000, recorder_of(device))  # as many as there are slots
    assert isinstance(recorded.propose(asks, draws, tokens), Guesses)
