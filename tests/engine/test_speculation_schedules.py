"""Text is the same with guesses or without: on an engine whose memory is simulated, in random
schedules, whatever is guessed."""

import asyncio
import logging
import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from relight.base.types import Guessed
from relight.engine.client import LocalClient
from relight.engine.plan import Proposed, Result, StepPlan
from relight.engine.speculate import Speculation
from relight.engine.wire import Tokens
from tests.engine.conftest import VOCAB, AtLast, AtOnce, SimulatedEngine, text_alone
from tests.engine.schedules import disturb, random_prompt

PATTERNS: dict[str, Callable[[int, random.Random], bool]] = {
    "none": lambda position, rng: False,
    "all": lambda position, rng: True,
    "alternating": lambda position, rng: position % 2 == 0,
    "random": lambda position, rng: rng.random() < 0.7,
}


class Scripted:
    """Guesses what a request will make where its pattern says so, and another token elsewhere. It
    may have fewer guesses than it is asked for."""

    def __init__(self, pattern: str, rng: random.Random) -> None:
        self.engine: SimulatedEngine | None = None
        self._is_right = PATTERNS[pattern]
        self._rng = rng
        self._texts: dict[tuple[str, bytes], list[int]] = {}

    def guess(self, slot: int, position: int, count: int) -> Proposed:
        assert self.engine is not None
        scheduler = self.engine.scheduler
        holders = [*scheduler.running, *scheduler.leaving]
        found = next(s for s in holders if s.slot == slot)
        roles = bytes(found.roles[: found.num_prompt])
        key = found.request.id, roles
        if key not in self._texts:
            context = self.engine.limits.max_context
            text = text_alone(found.request.prompt, roles, found.request.sampling, context)
            self._texts[key] = [*found.request.prompt, *text]
        text = self._texts[key][position : position + count]
        text += [self._rng.randrange(VOCAB) for _ in range(count - len(text))]
        tokens = tuple(
            token if self._is_right(position + place, self._rng) else (token + 1) % VOCAB
            for place, token in enumerate(text)
        )
        return Proposed(tokens, tuple(self._rng.random() for _ in tokens))


def speculating(
    pattern: str,
    depth: int,
    threshold: float,
    rng: random.Random,
    *,
    adapts: bool = False,
    **options: object,
) -> SimulatedEngine:
    script = Scripted(pattern, rng)
    script.engine = SimulatedEngine(
        speculation=Speculation(depth, threshold, adapts=adapts),
        guess=script.guess,
        **options,  # type: ignore[arg-type]
    )
    return script.engine


def run_schedule(number: int, pattern: str, seen: Counter[str]) -> None:
    rng = random.Random(f"{number} {pattern}")
    depth = rng.randint(1, 15)
    tight = number % 2
    engine = speculating(
        pattern,
        depth,
        rng.choice([0.0, 0.2, 0.5, 1.0]),
        rng,
        adapts=number % 5 == 0,
        executor=rng.choice([None, AtOnce(), AtLast()]),
        num_pages=rng.randint(10, 14) if tight else 60,
        num_slots=rng.randint(1, 5),
        num_records=rng.choice([0, 1, 3, 12]),
        max_context=40,
        max_step_tokens=rng.choice([1, 5, 16, 64]),
        admit_output=rng.choice([1, 4, 40]),
        step_target_s=rng.choice([math.inf, 1.5]),
        reuse_generated=rng.random() < 0.5,
        prefix_cache=rng.random() < 0.7,
    )
    left = rng.randint(4, 10)
    while left or not engine.loop.idle:
        if left and rng.random() < 0.3:
            left -= 1
            engine.add(
                random_prompt(rng, engine),
                max_tokens=rng.randint(1, 24),
                stop=(3,) if rng.random() < 0.5 else (),
                seed=rng.randrange(3),
                hints=tuple(rng.randint(0, 40) for _ in range(rng.randint(0, 2))),
            )
        disturb(rng, engine)
        engine.step()
        for sequence in engine.scheduler.running:
            assert len(sequence.path) * 4 <= sequence.computed <= sequence.num_known
    engine.check_texts()
    assert len(engine.finishes) == len(engine.texts), "every request is answered"
    assert engine.pool.num_held == engine.records.num_held == 0
    assert engine.scheduler.speculation is not None
    seen.update(engine.finishes.values())
    seen["preempted"] += engine.scheduler.num_preemptions
    seen["cached"] += engine.scheduler.num_cached_tokens
    seen["drafted"] += sum(engine.scheduler.speculation.tally.drafted)
    seen["accepted"] += sum(engine.scheduler.speculation.tally.accepted)
    seen["depth"] = max(seen["depth"], len(engine.scheduler.speculation.tally.drafted))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_guess_changes_a_text_in_any_schedule(
    pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Any depth from 1 to 15 and any threshold, in turn and overlapped, with requests that give
    way, are cancelled or fail, and with prefixes that are found."""
    caplog.set_level(logging.CRITICAL)  # steps fail by intent
    seen: Counter[str] = Counter()
    for number in range(120):
        run_schedule(number, pattern, seen)
    wanted = {"stop", "length", "abort", "error", "preempted", "cached", "drafted"}
    assert wanted <= {name for name, count in seen.items() if count}
    assert seen["depth"] == 15
    if pattern == "none":
        assert seen["accepted"] == 0
    elif pattern == "all":  # but for what lies behind a stop token
        assert seen["accepted"] > 0.8 * seen["drafted"]
    else:
        assert 0 < seen["accepted"] < 0.8 * seen["drafted"]


@pytest.mark.parametrize("depth", range(1, 16))
def test_right_guesses_save_steps(depth: int) -> None:
    rng = random.Random(depth)
    engine = speculating("all", depth, 0.0, rng, max_context=200, num_pages=64)
    id = engine.add([1, 2, 3], max_tokens=97)
    engine.run()
    engine.check_texts()
    made = [rows for plan in engine.plans for rows in plan.made]
    assert sum(len(rows.tokens) for rows in made) == len(engine.texts[id]) - 1 == 96
    assert len(made) == -(-96 // (depth + 1))


def test_a_step_with_guesses_is_not_overtaken() -> None:
    """While it is in flight nothing is planned, so that all share the next one."""
    rng = random.Random(1)
    engine = speculating("random", 3, 0.0, rng, executor=AtLast(), num_slots=3)
    for number in range(3):
        engine.add([number], max_tokens=20, seed=number)
    while not engine.loop.idle:
        engine.step()
        flights = engine.scheduler._flights
        assert not any(flight.speculates for flight in list(flights)[:-1])
    engine.check_texts()
    assert max(len(plan.made) for plan in engine.plans) == 3


def test_what_hangs_on_tokens_before_it_is_not_guessed() -> None:
    """Penalties count the tokens that were made; prompts may be too long for it."""
    engine = speculating("all", 3, 0.0, random.Random(1), num_slots=3)
    speculation = engine.scheduler.speculation
    assert speculation is not None
    speculation.max_prompt = 4
    engine.add([1, 2, 3, 4, 5], max_tokens=9)
    engine.run()
    assert all(not rows.propose for plan in engine.plans for rows in (*plan.made, *plan.given))
    assert speculation.num_too_long == 1
    engine.add([1, 2, 3, 4], max_tokens=9)
    engine.run()
    assert speculation.num_too_long == 1
    assert sum(speculation.tally.accepted) > 0
    engine.check_texts()


def test_guesses_that_pages_cut_off_teach_nothing() -> None:
    """They were neither unlikely nor wrong: all that were tried are right, and known to be."""
    engine = speculating("all", 4, 0.0, random.Random(1), adapts=True, max_context=64, num_pages=8)
    speculation = engine.scheduler.speculation
    assert speculation is not None
    assert speculation._depths is not None
    for seed in range(12):
        engine.add([1, 2], max_tokens=29, seed=seed)
    proposed = []
    while not engine.loop.idle:
        engine.step()
        rows = [rows for rows in engine.plans[-1].made if rows.proposed]
        proposed += [one.proposed for one in rows]
    engine.check_texts()
    assert 0 < min(proposed) < max(proposed), "nothing was cut"
    shares = speculation._depths._all._shares[0]
    assert shares.counts[0] >= 8
    for drafted, right, count in zip(shares.drafted, shares.right, shares.counts, strict=True):
        assert drafted == right == (1.0 if count else 0.0)


def test_guesses_of_an_aborted_request_teach_nothing() -> None:
    """Nobody looked whether they were right: those that were looked at are."""
    engine = speculating("all", 3, 0.0, random.Random(1), adapts=True, executor=AtOnce())
    speculation = engine.scheduler.speculation
    assert speculation is not None
    assert speculation._depths is not None
    aborted = 0
    for seed in range(40):
        id = engine.add([1, 2], max_tokens=30, seed=seed)
        while id not in engine.finishes:
            engine.step()
            if seed % 2 and engine.plans[-1].made and engine.plans[-1].made[0].proposed:
                aborted += engine.loop._launched and id not in engine.finishes
                engine.abort(id)
    engine.run()
    tally, shares = speculation.tally, speculation._depths._all._shares[0]
    assert aborted
    assert tally.drafted == tally.accepted
    assert shares.drafted == shares.right


def test_guesses_are_counted_for_each_request() -> None:
    rng = random.Random(3)
    engine = speculating("random", 4, 0.0, rng, num_slots=3, max_context=100, num_pages=90)
    for number in range(3):
        engine.add([number], max_tokens=40, seed=number)
    told: dict[str, Guessed] = {}
    while not engine.loop.idle:
        told |= {delta.id: delta.guessed for delta in engine.step() if delta.guessed}
    engine.check_texts()
    speculation = engine.scheduler.speculation
    assert speculation is not None
    assert len(told) == 3
    assert sum(one.drafted for one in told.values()) == sum(speculation.tally.drafted)
    assert sum(sum(one.checks) for one in told.values()) == speculation.tally.drafts
    right = sum(i * times for one in told.values() for i, times in enumerate(one.checks))
    assert right == sum(speculation.tally.accepted) > 0


def test_a_set_number_is_asked_for_whatever_it_brings() -> None:
    engine = speculating("none", 3, 0.0, random.Random(1), max_context=200, num_pages=64)
    engine.add([1, 2], max_tokens=150)
    engine.run()
    assert all(rows.propose == 3 for plan in engine.plans[:-4] for rows in plan.made)
    (choice,) = engine.loop.stats().spec_choices
    assert (choice.sampling, choice.section, choice.requests) == ("all", "all", "all")
    assert (choice.depth, choice.threshold) == (3, 0.0)


@pytest.mark.parametrize("adapts", [True, False])
def test_choices_are_sent_where_they_change_and_known_at_any_time(adapts: bool) -> None:
    rng = random.Random(1)
    engine = speculating("all", 3, 0.0, rng, adapts=adapts, max_context=400, num_pages=400)
    client = LocalClient(engine.loop, None)  # type: ignore[arg-type]
    for seed in range(3):
        engine.add([seed], max_tokens=300)
    sent, changes, before = 0, 0, ()
    while not engine.loop.idle:
        (news,) = engine.loop.turn(())
        assert isinstance(news, Tokens)
        client._receive(news)
        known = engine.loop.stats()
        assert asyncio.run(client.stats()) == known
        sent += bool(news.stats.spec_choices)
        changes += known.spec_choices != before
        before = known.spec_choices
    assert before
    assert sent == changes < 20


def test_sections_are_those_of_the_last_marker() -> None:
    """The prompt's at first, then that of the answer."""
    sections = {20: "reasoning", 21: "content", 22: "tool"}
    engine = SimulatedEngine(
        speculation=Speculation(2, adapts=True, sections=sections),
        guess=lambda slot, position, count: Proposed((0,) * count, (1.0,) * count),
        max_context=400,
        num_pages=400,
    )
    ids = [engine.add(prompt, max_tokens=60) for prompt in ([20, 21, 5], [21, 20], [1, 2])]
    seen = set()
    while not engine.loop.idle:
        engine.step()
        for sequence in engine.scheduler.running:
            known = sequence.tokens[: sequence.num_known]
            last = next((token for token in reversed(known) if token in sections), 21)
            assert sequence.section == sections[last]
            seen.add(sequence.section)
    assert len(ids) == len(engine.finishes)
    assert seen == set(sections.values())
    engine.check_texts()


@pytest.mark.parametrize("pattern", ["none", "all"])
def test_an_engine_finds_out_whether_guesses_pay(pattern: str) -> None:
    """Steps take as long, whatever is guessed; but for right guesses they bring more."""
    rng = random.Random(pattern)
    engine = speculating(pattern, 5, 0.0, rng, adapts=True, max_context=1000, num_pages=260)
    launch, runner = engine.runner.execute, engine.runner

    def execute(plan: StepPlan) -> list[Result]:
        engine.now += 0.2 * sum(rows.proposed + (rows.propose > 0) for rows in plan.made)
        return launch(plan)

    runner.execute = execute  # type: ignore[method-assign]
    engine.add([1, 2], max_tokens=400)
    engine.run()
    late = [rows.propose for plan in engine.plans[40:-8] for rows in plan.made]
    assert late
    share = sum(propose > 0 for propose in late) / len(late)
    assert share < 0.1 if pattern == "none" else share > 0.8
    (choice,) = engine.loop.stats().spec_choices
    assert (choice.sampling, choice.section, choice.requests) == ("sampled", "content", "1")
    assert choice.depth == (0 if pattern == "none" else 5)
    engine.check_texts()


@pytest.mark.parametrize(("pattern", "kept"), [("none", 1), ("all", 6)])
def test_the_pace_counts_the_tokens_that_are_kept(pattern: str, kept: int) -> None:
    """Steps take a second each, and have six rows, whether guesses are right or wrong."""
    engine = speculating(pattern, 5, 0.0, random.Random(1), max_context=600, num_pages=160)
    engine.add([1, 2, 3], max_tokens=1 + 90 * kept)
    engine.run()
    assert engine.loop.stats().tokens_per_s == pytest.approx(kept, rel=0.05)
