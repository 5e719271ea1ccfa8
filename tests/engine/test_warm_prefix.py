"""A warm prefix gives the bits of a cold run, on the real model: tokens at temperature 1, and every
row of logits that they were drawn from."""

from pathlib import Path

import pytest
import torch

from tests.engine.real import (
    PAGE,
    ByHand,
    RealEngine,
    assert_begins,
    assert_equal,
    sampled,
    words,
    write_checkpoint,
)
from tests.model.harness import same_bits

TEXT = words("text", 4097)


@pytest.fixture(scope="module", params=["v4", "v41"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), request.param)


@pytest.fixture(scope="module")
def by_hand(checkpoint: Path, device: str) -> ByHand:
    return ByHand(checkpoint, device, context=768)


@pytest.fixture
def engine(checkpoint: Path, device: str) -> RealEngine:
    return RealEngine(checkpoint, device)


# -- the same prompt, and others that begin like it


@pytest.mark.parametrize(("length", "cached"), [(255, 128), (256, 128), (257, 256)])
def test_the_same_prompt_twice_and_a_longer_one_give_the_bits_of_cold_runs(
    engine: RealEngine, by_hand: ByHand, length: int, cached: int
) -> None:
    """One token must run, so a prompt that ends at a boundary is reused up to the one before, and
    whole by a longer one."""
    prompt = TEXT[:length]
    cold, warm = engine.ask(prompt), engine.ask(prompt)
    assert (cold.cached, warm.cached) == (0, cached)
    assert_equal(cold, by_hand.answer(prompt))
    assert_equal(warm, cold)
    longer = engine.ask(TEXT[:300])
    assert longer.cached == length // PAGE * PAGE
    assert_equal(longer, by_hand.answer(TEXT[:300]))
    assert engine.ask(TEXT[:140], salt="other").cached == 0


@pytest.mark.slow
def test_4096_and_4097_tokens_twice_give_the_bits_of_cold_runs(
    checkpoint: Path, device: str
) -> None:
    engine = RealEngine(checkpoint, device, pages=72)
    cold = {length: engine.ask(TEXT[:length], salt=str(length)) for length in (4096, 4097)}
    for length, salt, cached in ((4096, 4096, 3968), (4097, 4097, 4096), (4097, 4096, 4096)):
        warm = engine.ask(TEXT[:length], salt=str(salt))
        assert (cold[length].cached, warm.cached) == (0, cached)
        assert_equal(warm, cold[length])


def test_a_shorter_prompt_is_reused_where_there_is_a_record(
    engine: RealEngine, by_hand: ByHand
) -> None:
    """Without a record the pages alone are of no use, until it has left one there itself."""
    wanted = by_hand.answer(TEXT[:200])
    engine.ask(TEXT[:300])
    for cached in (0, 128):
        shorter = engine.ask(TEXT[:200])
        assert shorter.cached == cached
        assert_equal(shorter, wanted)
    engine.ask(TEXT[:300], salt="hinted", hints=[140])
    hinted = engine.ask(TEXT[:200], salt="hinted")
    assert hinted.cached == 128
    assert_equal(hinted, wanted)


@pytest.mark.parametrize(
    ("at", "cached"),
    [(0, 0), (3, 0), (127, 0), (128, 128), (129, 128), (200, 128), (255, 128), (256, 256)],
)
def test_a_prompt_that_leaves_another_is_reused_up_to_there(
    trunk: RealEngine, by_hand: ByHand, at: int, cached: int
) -> None:
    """In the first words, inside a page, at its edges."""
    branch = [*TEXT[:at], TEXT[at] ^ 1, *words(f"branch {at}", 20)]
    found = trunk.ask(branch)
    assert found.cached == cached
    assert_equal(found, by_hand.answer(branch))
    back = trunk.ask(TEXT[:300])
    assert back.cached == 256
    assert_equal(back, by_hand.answer(TEXT[:300]))


@pytest.fixture(scope="module")
def trunk(checkpoint: Path, device: str) -> RealEngine:
    """An engine that knows 300 tokens, with records at 128 and 256."""
    engine = RealEngine(checkpoint, device)
    engine.ask(TEXT[:300], hints=[128])
    return engine


def test_the_second_prompt_that_leaves_a_text_makes_it_reusable_there(
    engine: RealEngine, by_hand: ByHand
) -> None:
    prompts = [TEXT[:140] + words(f"tail {i}", 120) for i in range(3)]
    for prompt, cached in zip(prompts, (0, 0, 128), strict=True):
        found = engine.ask(prompt)
        assert found.cached == cached
        assert_equal(found, by_hand.answer(prompt))


# -- after something was lost


def test_after_eviction_of_pages_the_rest_is_reused(engine: RealEngine, by_hand: ByHand) -> None:
    """A page takes its record with it; the page before it still has its own."""
    prompt, wanted = TEXT[:300], by_hand.answer(TEXT[:300])
    for evicted, cached in ((0, 256), (1, 128), (2, 0)):
        engine.ask(prompt, hints=[128])
        engine.evict_pages(evicted)
        found = engine.ask(prompt)
        assert found.cached == cached
        assert_equal(found, wanted)


def test_after_eviction_of_records_pages_are_reused_up_to_those_that_are_left(
    engine: RealEngine, by_hand: ByHand
) -> None:
    """The record that was used least recently goes first; pages without any are of no use."""
    prompt, wanted = TEXT[:300], by_hand.answer(TEXT[:300])
    engine.ask(prompt, hints=[128])
    engine.ask(prompt[:129])  # uses the record at 128, so that at 256 is now the older one
    for evicted, cached in ((1, 128), (1, 256), (2, 0)):
        engine.evict_records(evicted)
        assert engine.index.pool.num_cached == 2
        found = engine.ask(prompt)
        assert found.cached == cached
        assert_equal(found, wanted)


@pytest.mark.parametrize("made", [0, 2, 5])
def test_after_a_cancelled_request_what_it_committed_is_reused(
    checkpoint: Path, device: str, by_hand: ByHand, made: int
) -> None:
    """It is cancelled while its prompt is read, and while it answers, before and after the page
    in which its prompt ends is full."""
    engine = RealEngine(checkpoint, device, max_step_tokens=100)
    prompt, wanted = TEXT[:253], by_hand.answer(TEXT[:253], 5)
    id = engine.add(prompt, max_tokens=40)
    found = engine.sequences[id]
    engine.until(lambda: found.computed >= 200 and found.num_made >= made)
    engine.abort(id)
    assert_begins(wanted, engine.answers[id])
    engine.check_all_given_back()
    warm = engine.ask(prompt, max_tokens=5)
    assert warm.cached == 128
    assert_equal(warm, wanted)


# -- while others hold the pages


def test_pages_that_another_request_holds_are_shared(engine: RealEngine, by_hand: ByHand) -> None:
    prompt = TEXT[:257]
    first = engine.add(prompt, max_tokens=6)
    engine.until(lambda: bool(engine.answers[first].tokens))
    second = engine.add(prompt)
    longer = engine.add(TEXT[:300], seed=8)
    engine.step()
    pages = [engine.sequences[id].pages[:2] for id in (first, second, longer)]
    assert pages[0] == pages[1] == pages[2]
    engine.run()
    assert engine.answers[second].cached == engine.answers[longer].cached == 256
    assert_equal(engine.answers[first], by_hand.answer(prompt, 6))
    assert_equal(engine.answers[second], by_hand.answer(prompt))
    assert_equal(engine.answers[longer], by_hand.answer(TEXT[:300], seed=8))


def test_equal_prompts_that_are_read_at_once_end_up_in_the_same_pages(
    checkpoint: Path, device: str, by_hand: ByHand
) -> None:
    engine = RealEngine(checkpoint, device, max_step_tokens=180)
    prompt = TEXT[:257]
    ids = [engine.add(prompt, max_tokens=3, seed=seed) for seed in (7, 8)]
    engine.until(lambda: all(engine.answers[id].tokens for id in ids))
    first, second = (engine.sequences[id].pages for id in ids)
    assert first[:2] == second[:2]
    engine.run()
    for id, seed in zip(ids, (7, 8), strict=True):
        assert_equal(engine.answers[id], by_hand.answer(prompt, 3, seed=seed))


# -- what is not committed cannot be found


def test_pages_and_records_appear_when_their_last_token_is_committed(
    checkpoint: Path, device: str
) -> None:
    engine = RealEngine(checkpoint, device, max_step_tokens=100)
    id = engine.add(TEXT[:380], max_tokens=100)
    found = engine.sequences[id]
    while found.computed < 386:
        engine.step()
        pages, records = engine.index._by_page, engine.index.records._indexed
        assert len(pages) == found.computed // PAGE
        boundaries = sorted(PAGE * (found.path.index(entry) + 1) for entry in records.values())
        # The made boundary has a provisional record, which is indexed when the request ends.
        assert boundaries == ([256] if found.computed >= 256 else [])
        assert found.record_boundary == (384 if found.computed >= 384 else 0)
    engine.abort(id)
    records = engine.index.records._indexed
    assert [entry.marked for entry in records.values()] == [False, True]


@pytest.mark.parametrize(("point", "cached"), [("take_record", 0), ("_draw", 256)])
def test_nothing_of_a_failed_step_is_reused(
    engine: RealEngine,
    by_hand: ByHand,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    cached: int,
) -> None:
    """The first step reads up to 256 and takes a record there; the second draws."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("the device failed")

    prompt = TEXT[:257]
    owner = engine.runner if point == "_draw" else engine.runner.pool
    with monkeypatch.context() as patch:
        patch.setattr(owner, point, fail)
        for _ in range(2):
            assert engine.ask(prompt).finish == "error"
    engine.check_all_given_back()
    found = engine.ask(prompt)
    assert found.cached == cached
    assert_equal(found, by_hand.answer(prompt))


# -- conversations


TURNS, TURN = 60, 11


@pytest.mark.slow
def test_sixty_growing_turns_of_given_text_equal_one_text_read_in_one_piece(
    engine: RealEngine, by_hand: ByHand
) -> None:
    ends = range(TURN, TURN * TURNS + 1, TURN)
    by_hand.driver.set_length(0, 0)
    rows = by_hand.driver.given(0, TEXT[: ends[-1]])
    before = 0
    for end in ends:
        answer = engine.ask(TEXT[:end], max_tokens=1)
        assert answer.cached == before // PAGE * PAGE
        assert same_bits(answer.logits[0], rows[end - 1].cpu())
        assert answer.tokens[0] == by_hand.draw(rows[end - 1], sampled(1), end)
        before = end


@pytest.mark.parametrize("made", [20, 17])
def test_generated_turns_equal_cold_runs_where_they_are_not_reused(
    checkpoint: Path, device: str, by_hand: ByHand, made: int
) -> None:
    engine = RealEngine(checkpoint, device, reuse_generated="off")
    prompt = TEXT[:240]
    for turn in range(3):
        answer = engine.ask(prompt, max_tokens=made if turn == 0 else 2)
        assert answer.cached == (0, 128, 256)[turn]
        assert_equal(answer, by_hand.answer(prompt, len(answer.tokens)))
        prompt = prompt + answer.tokens + words(f"turn {turn}", 30)


@pytest.mark.parametrize("made", [20, 17])
def test_generated_turns_go_on_in_the_same_sequence(
    engine: RealEngine, by_hand: ByHand, made: int
) -> None:
    """By default: up to its last boundary the answer keeps the state in which it was made, row by
    row; the tokens after that came in a request.

    17 tokens after 240 end one token past a boundary. That token was drawn and never computed, so
    the second turn is exactly the first sequence going on.
    """
    prompt = TEXT[:240]
    answer = engine.ask(prompt, max_tokens=made)
    assert_equal(answer, by_hand.answer(prompt, made))
    second = prompt + answer.tokens + words("second", 30)
    found = engine.ask(second)
    assert found.cached == 256
    assert_equal(found, by_hand.answer(second, made=range(240, 256)))
    if made == 17:
        by_hand.compute(prompt, sampled(made))
        assert_equal(found, by_hand.go_on(second[256:]))
        # Roles matter, or this would prove nothing: read as given, the made rows have other bits.
        by_hand.driver.set_length(0, 0)
        read = by_hand.driver.given(0, second[:256])[240:].cpu()
        assert not same_bits(torch.stack(answer.logits[1:]), read)

    third = second + found.tokens + words("third", 90)
    again = engine.ask(third)
    assert again.cached == 256
    assert_equal(again, by_hand.answer(third, made=range(240, 256)))
