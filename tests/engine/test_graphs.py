"""Recorded steps: the same bits as eager ones in every company, nothing of the host in them, and
what happens where they cannot be."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from relight.base.checkpoint import open_model
from relight.base.config import ModelConfig
from relight.base.errors import BadSetting, CannotFit
from relight.base.numerics import OFFICIAL
from relight.base.official import V4_FLASH, V41_FLASH
from relight.base.settings import Settings
from relight.cache.pool import Pool
from relight.engine.draws import KINDS, RecordedDraws
from relight.engine.graphs import MOST_ROWS, Shape, shapes
from relight.engine.plan import Draw, PageWrite, Rows, SetLength, StepPlan
from relight.engine.recording import PATIENCE_S, choose_recorder, record_steps
from relight.engine.runner import Runner
from relight.kernels.record import Recorder, is_out_of_memory
from relight.kernels.row_ops import Ops, RowOps
from relight.kernels.streams import side_stream
from relight.kernels.testing import assert_bits_equal
from relight.model.network import load, network
from tests.engine.real import RealEngine, assert_equal, sampled, words, write_checkpoint
from tests.engine.tape import Operations, Tape, record_all, recorder_of
from tests.model.harness import GOLDEN

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SLOTS = 4
SHAPES = [Shape(rows, context) for rows in (1, 2, 4) for context in (256, 512)]
PROMPTS = [words(number, length) for number, length in enumerate((3, 127, 254, 40))]
"""Over the end of a page, and from one length of context to the next."""


@pytest.fixture(params=["v4", pytest.param("v41", marks=pytest.mark.slow)])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, request.param)


def engine(checkpoint: Path, device: str, recorded: Sequence[Shape] = ()) -> RealEngine:
    found = RealEngine(checkpoint, device, pages=16, slots=SLOTS, max_context=512)
    if recorded:
        record_all(found.runner, recorded, recorder_of(device))
    return found


def test_text_is_the_same_recorded_or_not_alone_or_among_others(
    device: str, checkpoint: Path
) -> None:
    """In every bit of the logits."""
    eager = engine(checkpoint, device)
    alone = [eager.ask(prompt, max_tokens=3 + i, seed=i) for i, prompt in enumerate(PROMPTS)]
    assert eager.runner.graphs is None

    recorded = engine(checkpoint, device, SHAPES)
    ids = [recorded.add(prompt, max_tokens=3 + i, seed=i) for i, prompt in enumerate(PROMPTS)]
    recorded.run()
    for id, wanted in zip(ids, alone, strict=True):
        assert_equal(recorded.answers[id], wanted)
    again = [recorded.ask(prompt, max_tokens=3 + i, seed=i) for i, prompt in enumerate(PROMPTS)]
    for found, wanted in zip(again, alone, strict=True):
        assert_equal(found, wanted)
    made = [plan for plan in recorded.plans if plan.made]
    assert {len(plan.made) for plan in made} >= {1, 3, 4}, "of all widths, one is filled up"
    assert recorded.runner.graphs is not None
    assert recorded.runner.graphs.num_replays == len(made)


def test_what_no_recording_holds_runs_eagerly(device: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path)
    eager = engine(checkpoint, device)
    wanted = [eager.ask(prompt, max_tokens=6) for prompt in PROMPTS]
    some = engine(checkpoint, device, [Shape(2, 256)])
    ids = [some.add(prompt, max_tokens=6) for prompt in PROMPTS]
    some.run()
    for id, answer in zip(ids, wanted, strict=True):
        assert_equal(some.answers[id], answer)
    assert some.runner.graphs is not None
    some.ask(PROMPTS[0], max_tokens=6)
    assert 0 < some.runner.graphs.num_replays < sum(bool(plan.made) for plan in some.plans)


def test_what_was_read_approximately_goes_on_in_recorded_steps(device: str, tmp_path: Path) -> None:
    """Beside what was read exactly, since it is short."""
    checkpoint = write_checkpoint(tmp_path, "v41")
    sizes = {"pages": 16, "slots": SLOTS, "max_context": 512, "replay": "bounded"}
    eager, recorded = (RealEngine(checkpoint, device, **sizes) for _ in range(2))  # type: ignore
    wanted = [eager.ask(prompt, max_tokens=3) for prompt in PROMPTS]
    record_all(recorded.runner, [Shape(rows, 512) for rows in (1, 4)], recorder_of(device))
    ids = [recorded.add(prompt, max_tokens=3) for prompt in PROMPTS]
    recorded.run()
    for id, answer in zip(ids, wanted, strict=True):
        assert_equal(recorded.answers[id], answer)
    made = [plan for plan in recorded.plans if plan.made]
    assert any(rows.whole_from for plan in recorded.plans for rows in plan.given)
    assert recorded.runner.graphs is not None
    assert recorded.runner.graphs.num_replays == len(made)


def test_guesses_are_checked_in_recorded_steps(device: str, tmp_path: Path) -> None:
    """Several rows of a sequence, of which some are then forgotten; and the draft keeps its rows
    inside of the recording."""
    checkpoint = write_checkpoint(tmp_path, "v4_dspark")
    sizes = {"pages": 16, "slots": SLOTS, "records": 20, "max_context": 512}
    plain = RealEngine(checkpoint, device, **sizes)  # type: ignore[arg-type]
    wanted = [plain.ask(prompt, max_tokens=9, seed=i) for i, prompt in enumerate(PROMPTS)]
    guessing = {"spec": "dspark", "spec_k": 3, "spec_threshold": 0.0}
    found = RealEngine(checkpoint, device, **sizes, **guessing)  # type: ignore[arg-type]
    record_all(found.runner, [Shape(rows, 512) for rows in (1, 4, 8, 16)], recorder_of(device))
    ids = [found.add(prompt, max_tokens=9, seed=i) for i, prompt in enumerate(PROMPTS)]
    found.run()
    for id, answer in zip(ids, wanted, strict=True):
        assert found.answers[id].tokens == answer.tokens
    assert found.loop.stats().spec_drafts > 0
    assert found.runner.graphs is not None
    assert found.runner.guesses is not None
    asked = [any(rows.propose for rows in (*plan.made, *plan.given)) for plan in found.plans]
    assert found.runner.guesses.num_replays == sum(asked) > 3
    assert found.runner.graphs.num_replays == sum(bool(plan.made) for plan in found.plans)


def bare_runner(device: str, model_name: str = "v4", *, beside: bool = False) -> Runner:
    """`beside`: the shared expert, where the device can."""
    model = open_model(GOLDEN / model_name / "checkpoint")
    where = torch.device(device)
    pool = Pool(model.config, OFFICIAL, where, num_pages=9, num_slots=SLOTS, num_records=1)
    for blocks in (pool.pages, pool.slots):
        generator = torch.Generator().manual_seed(5)
        noise = torch.randint(0, 100, blocks.bytes.shape, generator=generator, dtype=torch.uint8)
        blocks.bytes.copy_(noise)
    side = side_stream(where) if beside else None
    ops = Ops(step=RowOps(streams={"shared": side} if side else {}))
    weights = replace(load(model, where), ops=ops)
    return Runner(network(model.config, weights, OFFICIAL), pool, max_context=256)


def begin(runner: Runner) -> None:
    """Two sequences, of 130 and 30 given tokens."""
    runner.execute(
        StepPlan(
            0,
            lengths=(SetLength(1, 0), SetLength(2, 0)),
            pages=(PageWrite(1, 0, (3, 4)), PageWrite(2, 0, (5, 6))),
            given=(Rows(1, 0, tuple(words(1, 130))), Rows(2, 0, tuple(words(2, 30)))),
        )
    )


WIDE = StepPlan(
    1,
    made=(Rows(1, 130, (7, 8, 9, 10), sample=True, proposed=2), Rows(2, 30, (11,)),
          Rows(3, 0, (12, 13), sample=True)),
    draws=tuple(Draw(slot, position, sampled(1))
                for slot, position in ((1, 132), (1, 133), (1, 134), (3, 2))),
    lengths=(SetLength(3, 0),),
    pages=(PageWrite(3, 0, (7, 8)),),
)  # fmt: skip
"""Several rows of a sequence, with guesses; rows that nothing is drawn from; seven of them."""


@pytest.mark.parametrize("model_name", ["v4", "v41"])
def test_rows_of_padding_leave_nothing(device: str, model_name: str) -> None:
    """Neither in pages nor in rings; the page of nobody may hold anything."""
    eager, recorded = bare_runner(device, model_name), bare_runner(device, model_name, beside=True)
    record_all(recorded, [Shape(16, 256)], recorder_of(device))
    for blocks, others in ((recorded.pool.pages, eager.pool.pages),
                           (recorded.pool.slots, eager.pool.slots)):  # fmt: skip
        blocks.bytes.copy_(others.bytes)
    logits = []
    drawn_from = eager._draw

    def draw(draws, rows):
        logits.append(rows)
        return drawn_from(draws, rows)

    begin(eager)
    begin(recorded)
    eager._draw = draw  # type: ignore[method-assign]
    assert recorded.execute(WIDE) == eager.execute(WIDE)
    assert recorded.graphs is not None
    assert recorded.graphs.num_replays == 1
    assert_bits_equal(recorded.graphs.logits[[1, 2, 3, 6]], logits[0])
    assert_bits_equal(recorded.lengths, eager.lengths)
    assert_bits_equal(recorded.pool.slots.bytes, eager.pool.slots.bytes)
    assert_bits_equal(recorded.pool.pages.bytes[1:], eager.pool.pages.bytes[1:])


def test_a_step_that_looks_at_a_value_is_noticed(tmp_path: Path) -> None:
    """By the recorder that stands for a device's."""
    x = torch.ones(3)
    for look in (lambda: bool(x.any()), lambda: int(x[0]), lambda: torch.tensor([1.0]) + x):
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            Tape().record(look)


def test_the_tape_keeps_numbers_of_the_host_as_they_were() -> None:
    x, out, number = torch.ones(3), torch.zeros(3), [2.0]
    replay = Tape().record(lambda: out.copy_(x * number[0]))
    x[:], number[0] = 5.0, 100.0
    replay()
    assert out.tolist() == [10.0, 10.0, 10.0]


@pytest.mark.parametrize(
    ("model_name", "how", "most"),
    [("v4", {}, 2), ("v4", {"top_p": 0.9, "logprobs": 3}, 3), ("v4_dspark", {}, 5)],
)
def test_a_recorded_step_leaves_few_copies_to_the_host(
    tmp_path: Path, model_name: str, how: dict[str, object], most: int
) -> None:
    """Inputs of the step, of its draws and of its guesses, and what was drawn. What is brought to
    the host is not counted."""
    checkpoint = write_checkpoint(tmp_path, model_name)
    spec = {"spec": "dspark", "spec_k": 3, "spec_threshold": 0.0} if "dspark" in model_name else {}
    found = RealEngine(
        checkpoint, "cpu", pages=16, slots=SLOTS, records=20, max_context=512, **spec
    )
    record_all(found.runner, [Shape(rows, 512) for rows in (4, 16)], Tape())
    found.runner._draw_replayed = found._draw_replayed  # type: ignore[method-assign]
    for number in range(SLOTS):
        found.add(words(number, 20 + number), max_tokens=9, **how)
    launch, counts = found._launch, []

    def count(plan: StepPlan) -> object:
        with Operations() as operations:
            launched = launch(plan)
        if not (plan.given or plan.counts or plan.pages or plan.lengths):
            counts.append(operations.count)
        return launched

    found._launch = count  # type: ignore[assignment]
    found.run()
    assert counts
    assert max(counts) <= most


# -- which, and where they cannot be


def test_few_shapes_hold_every_usual_step() -> None:
    assert shapes(1, 1, 1024) == [Shape(1, 1024)]
    assert shapes(32, 1, 2048) == [Shape(2**n, 2048) for n in range(6)]
    assert {s.rows for s in shapes(1, 6, 4096)} == {1, 2, 4, 6}
    assert {s.rows for s in shapes(32, 6, 4096)} == {1, 2, 4, 6, 8, 16, 32, MOST_ROWS}
    assert [s.context for s in shapes(1, 1, 100_000)] == [2048, 8192, 32768, 100_000]
    for slots in (1, 3, 7, 32, 33):
        for verify in (1, 4, 6):
            widths = {s.rows for s in shapes(slots, verify, 5000)}
            assert all(
                any(count <= width <= 2 * count for width in widths)
                for count in range(1, min(slots * verify, MOST_ROWS) + 1)
            )
            assert max(widths) <= MOST_ROWS


@pytest.mark.parametrize(
    ("changes", "config", "device", "reason"),
    [
        ({}, V4_FLASH, CPU, "steps on cpu cannot be recorded, only those on cuda"),
        ({"engram": "mmap"}, V41_FLASH, CUDA, "engram is mmap: rows of n-gram tables"),
    ],
)
def test_what_cannot_be_recorded_is_refused_where_it_was_asked_for(
    changes: dict[str, str], config: ModelConfig, device: torch.device, reason: str
) -> None:
    with pytest.raises(BadSetting, match=f"graphs is on, and {reason}.*; set graphs to auto or"):
        choose_recorder(Settings(graphs="on", **changes), config, device)  # type: ignore
    found, notes = choose_recorder(Settings(**changes), config, device)  # type: ignore
    assert found is None
    assert bool(notes) == (device == CUDA), "on a processor there is nothing to say"
    assert choose_recorder(Settings(graphs="off"), config, device) == (None, ())


NARROW = StepPlan(
    1,
    made=(Rows(1, 130, (7,), sample=True), Rows(2, 30, (11,), sample=True)),
    draws=(Draw(1, 131, sampled(1)), Draw(2, 31, sampled(1))),
)
WANTED = [Shape(1, 256), Shape(2, 256), Shape(4, 256)]
EACH = 2 + len(KINDS)
"""Recordings of a width: the step, its draws and their scores."""


def test_what_is_recorded_is_told_with_its_memory(caplog: pytest.LogCaptureFixture) -> None:
    runner = bare_runner("cpu")
    with caplog.at_level(logging.INFO):
        found = record_steps(runner, Tape(each=1200 // EACH), WANTED, insist=False)
    assert (found.count, found.nbytes) == (3, 3600)
    assert found.notes == ("3 steps are recorded: of 1, 2, 4 rows, of up to 256 tokens",)
    assert "recorded steps of 2 rows: 2 of 3 recordings, 2,400 bytes" in caplog.text


def test_where_memory_ends_it_is_named_and_the_others_serve() -> None:
    runner = bare_runner("cpu")
    found = record_steps(runner, Tape(each=1200 // EACH, room=2 * EACH), WANTED, insist=False)
    assert found.count == 2
    assert "steps of 4 rows and more" in found.notes[1]
    assert "did not fit (1,099,511,625,376 bytes were free)" in found.notes[1]
    with pytest.raises(CannotFit, match=r"4 rows of up to 256.*graphs to auto.*lower cache_bytes"):
        record_steps(bare_runner("cpu"), Tape(room=2 * EACH), WANTED, insist=True)


def test_recordings_leave_half_of_the_memory_and_end_in_time() -> None:
    tape = Tape(free=5000, each=2400 // EACH)
    found = record_steps(bare_runner("cpu"), tape, WANTED, insist=False)
    assert (found.count, found.nbytes) == (2, 4800)
    assert "take 4,800 of 5,000 bytes that are free beside any step" in found.notes[1]

    clock = iter((0.0, 0.0, PATIENCE_S + 1))
    slow = record_steps(bare_runner("cpu"), Tape(), WANTED, insist=False, clock=lambda: next(clock))
    assert slow.count == 1
    assert "recording took 31 s" in slow.notes[1]


@pytest.mark.parametrize(("scratch", "count"), [(0, 3), (5000, 2), (9999, 1), (10_000, 0)])
def test_recordings_leave_what_the_largest_step_takes(scratch: int, count: int) -> None:
    """Else a prompt that was read at start would not fit any more."""
    tape = Tape(free=10_000, each=2400 // EACH)
    runner = bare_runner("cpu")
    found = record_steps(runner, tape, WANTED, insist=False, scratch=scratch)
    assert found.count == count


def test_a_step_that_cannot_be_recorded_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = bare_runner("cpu")
    forward = runner.model.forward

    def looks(segment, states, taps):
        bool(segment.positions.any())
        return forward(segment, states, taps)

    monkeypatch.setattr(runner.model, "forward", looks)
    found = record_steps(runner, Tape(), WANTED, insist=False)
    assert found.count == 0
    assert "1 rows of up to 256 tokens cannot be recorded (RuntimeError: oper" in found.notes[0]
    with pytest.raises(BadSetting, match=r"graphs is on, and a step of 1 rows.*auto or off"):
        record_steps(runner, Tape(), WANTED, insist=True)
    begin(runner)


def test_draws_that_cannot_be_recorded_leave_the_steps_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And are told once."""
    refused: list[int] = []

    def refuses(self: RecordedDraws, count: int, source: Recorder) -> None:
        refused.append(count)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(RecordedDraws, "record", refuses)
    runner, eager = bare_runner("cpu"), bare_runner("cpu")
    found = record_steps(runner, Tape(), WANTED, insist=False)
    assert (found.count, refused) == (3, [1])
    [note] = found.notes[1:]
    assert "draws and guesses are not all recorded and run eagerly: what comes behind a" in note
    for one in (runner, eager):
        begin(one)
    assert runner.execute(NARROW) == eager.execute(NARROW)
    assert runner.graphs is not None
    assert runner.graphs.num_replays == 1
    with pytest.raises(BadSetting, match=r"graphs is on, and what comes behind a step of 1 rows"):
        record_steps(bare_runner("cpu"), Tape(), WANTED, insist=True)


def test_memory_that_ends_inside_of_a_recording_is_seen_behind_its_end() -> None:
    with pytest.raises(RuntimeError, match="capture failed") as caught:  # noqa: PT012
        try:
            raise torch.OutOfMemoryError("first")
        finally:
            raise RuntimeError("capture failed")
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError())
