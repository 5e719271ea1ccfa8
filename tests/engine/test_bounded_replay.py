"""Bounded replay in the engine, on a real, tiny V4.1: named as approximate, off by default, bounded
behind a prefix that is found, and as true to a sequence's own tokens as anything else."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from relight.base.errors import BadSetting
from relight.base.official import V4_FLASH, V41_FLASH
from relight.base.settings import KNOBS, Settings
from relight.engine.bounded import replay_notes, replay_rows
from tests.engine.real import Answer, RealEngine, assert_equal, words, write_checkpoint

TEXT = words("bounded", 700)
BOUNDED = {"replay": "bounded"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), "v41")


@pytest.fixture(scope="module")
def cold(checkpoint: Path, device: str):  # type: ignore[no-untyped-def]
    """Answers of an engine that finds nothing."""
    engine = RealEngine(checkpoint, device, prefix_cache="off", **BOUNDED)

    def ask(prompt: Sequence[int], **options: object) -> Answer:
        return engine.ask(prompt, **options)

    return ask


def test_it_is_named_as_approximate_wherever_it_shows(checkpoint: Path) -> None:
    engine = RealEngine(checkpoint, "cpu", **BOUNDED)
    assert "replay bounded (approximate)" in engine.info.operator.split("; ")
    (note,) = [note for note in engine.info.notes if "replay" in note]
    assert note.startswith("replay bounded is approximate: of a prompt only the last 128 tokens")
    assert "approximate" in KNOBS["replay"].help
    assert "layers 21 to 39" in next(replay_notes(V41_FLASH, Settings(replay="bounded")))


def test_it_is_off_unless_asked_for(checkpoint: Path) -> None:
    engine = RealEngine(checkpoint, "cpu")
    assert "replay exact" in engine.info.operator.split("; ")
    assert not [note for note in engine.info.notes if "replay" in note]
    engine.ask(TEXT[:300])
    assert not any(rows.whole_from for plan in engine.plans for rows in plan.given)
    assert engine.loop.stats().bounded_tokens == 0


def test_a_model_without_a_decoder_refuses_it() -> None:
    with pytest.raises(BadSetting, match="the model is a V4, all of whose layers") as caught:
        replay_rows(V4_FLASH, Settings(replay="bounded"))
    assert caught.value.param == "replay"
    assert replay_rows(V4_FLASH, Settings()) == replay_rows(V41_FLASH, Settings()) == 0
    assert replay_rows(V41_FLASH, Settings(replay="bounded")) == 128


def test_short_prompts_are_exact_and_longer_ones_are_not(
    checkpoint: Path, device: str, cold
) -> None:
    exact = RealEngine(checkpoint, device)
    assert_equal(cold(TEXT[:128], max_tokens=6), exact.ask(TEXT[:128], max_tokens=6))
    longer = cold(TEXT[:300]).logits[0]
    assert not longer.equal(exact.ask(TEXT[:300]).logits[0])


@pytest.mark.parametrize(
    ("length", "cached"), [(255, 0), (256, 128), (300, 128), (383, 128), (384, 256)]
)
def test_a_warm_prompt_gives_the_bits_of_a_cold_one_and_reads_a_window_at_least(
    checkpoint: Path, device: str, cold, length: int, cached: int
) -> None:
    engine = RealEngine(checkpoint, device, **BOUNDED)
    wanted = cold(TEXT[:length], max_tokens=3)
    assert_equal(engine.ask(TEXT[:length], max_tokens=3), wanted)
    before = engine.loop.stats().bounded_tokens
    assert before == length - 128
    warm = engine.ask(TEXT[:length], max_tokens=3)
    assert warm.cached == cached
    assert_equal(warm, wanted)
    assert engine.loop.stats().bounded_tokens - before == length - cached - 128


def test_a_longer_prompt_goes_on_where_a_shorter_one_ended(
    checkpoint: Path, device: str, cold
) -> None:
    engine = RealEngine(checkpoint, device, **BOUNDED)
    engine.ask(TEXT[:300])
    for length, cached in ((330, 128), (500, 256), (501, 256), (629, 384)):
        found = engine.ask(TEXT[:length])
        assert found.cached == cached
        assert_equal(found, cold(TEXT[:length]))


def test_chunks_and_mates_change_no_bit(checkpoint: Path, device: str, cold) -> None:
    engine = RealEngine(checkpoint, device, max_step_tokens=100, prefix_cache="off", **BOUNDED)
    prompts = [TEXT[:300], TEXT[9:40], TEXT[30:450], TEXT[:129]]
    ids = [engine.add(prompt, max_tokens=5, seed=i) for i, prompt in enumerate(prompts)]
    engine.run()
    for i, (id, prompt) in enumerate(zip(ids, prompts, strict=True)):
        assert_equal(engine.answers[id], cold(prompt, max_tokens=5, seed=i))


@pytest.mark.parametrize(("length", "count"), [(250, 12), (256, 5), (330, 5)])
def test_a_sequence_that_lost_its_slot_goes_on_with_the_same_bits(
    checkpoint: Path, device: str, cold, length: int, count: int
) -> None:
    """Also where another has left a record in which its own decoder's rows are missing."""
    engine = RealEngine(checkpoint, device, **BOUNDED)
    engine.ask(TEXT[:650], hints=[128, 256, 384])
    engine.evict_pages(1)
    id = engine.add(TEXT[:length], max_tokens=count)
    sequence = engine.sequences[id]
    for made in (2, count - 1):
        engine.until(lambda made=made: sequence.num_made >= made)
        engine.scheduler._preempt(sequence)
    engine.run()
    assert sequence.num_preemptions == 2
    assert_equal(engine.answers[id], cold(TEXT[:length], max_tokens=count))


def test_guesses_change_no_text_of_it(checkpoint: Path, device: str, cold) -> None:
    engine = RealEngine(checkpoint, device, spec="dspark", spec_k=5, spec_threshold=0.0, **BOUNDED)
    for length in (60, 300):
        wanted = cold(TEXT[:length], max_tokens=9)
        assert engine.ask(TEXT[:length], max_tokens=9).tokens == wanted.tokens
    assert engine.loop.stats().spec_drafts
