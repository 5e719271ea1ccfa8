"""Answers with grammars under random schedules: their tokens are those that a matcher in a plain
loop allows, whoever runs beside them, in turn, overlapped or guessed ahead, preempted or not."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from relight.base.errors import BadRequest
from relight.base.types import Constraint, FinishReason, Request, SamplingParams
from relight.cache.prefix import MADE
from relight.engine.guides import Guides
from relight.engine.plan import Draw, Proposed, Result, StepPlan
from relight.engine.sampler import Sampler
from relight.engine.speculate import Speculation
from relight.text.grammar import Grammar, Matcher, Vocabulary
from relight.text.tokenizer import Tokenizer
from tests.engine.conftest import (
    REWIND,
    WINDOW,
    AtLast,
    AtOnce,
    Guess,
    SimulatedEngine,
    SimulatedRunner,
    row_value,
    weighted_sum,
)
from tests.engine.sampling import alone

TINY = Tokenizer.load(Path(__file__).parent.parent / "golden" / "text")
SIZE = TINY.vocab_size
MARK = TINY.special
WORDS = Vocabulary(TINY)
CONTEXT = 48
SCHEDULES = 10  # for each of the six kinds below

DIGITS = 'start: /[0-9]{2,9}/ ("-" /[a-f]+/)?'
MARKED = f'start: "ab" <[{MARK.dsml}]> /[0-9]{{2}}/ | /x{{9}}/'
compiled = cache(WORDS.compile)


def logits_of(value: int) -> Tensor:
    """Markers come often enough to be met."""
    logits = 2 * torch.randn(SIZE, generator=torch.Generator().manual_seed(value))
    logits[[MARK.dsml, MARK.think_close, TINY.encode_text("<")[0]]] += 3
    return logits


class SamplingRunner(SimulatedRunner):
    """Rows are hashes, logits are drawn from the hash of a row, tokens come from the sampler."""

    def __init__(self, engine: SimulatedEngine, rewind: int, guess: Guess | None) -> None:
        slots = engine.limits.num_slots
        super().__init__(engine.pool, slots, engine.records.total, rewind, guess)
        self.sampler = Sampler(slots, SIZE, torch.device("cpu"))
        self.last_tokens = torch.zeros(slots, dtype=torch.int64)

    def execute(self, plan: StepPlan) -> list[Result]:
        self.sampler.set_counts(plan.counts)
        return super().execute(plan)

    def _draw(self, draw: Draw, value: int) -> int:
        """By itself, as a row does not depend on the rows beside it."""
        logits = logits_of(value).unsqueeze(0)
        (token,) = self.sampler.draw([draw], logits, self.last_tokens).tokens.tolist()
        self.last[draw.slot] = self.last_tokens[draw.slot] = max(token, 0)
        return int(token)


def may_follow(
    made: Sequence[int], constraint: Constraint, grammar: Grammar, stops: Sequence[int]
) -> tuple[bytes | None, bool]:
    """The mask after `made`, None for any token, and whether it leaves ends only."""
    matcher, text = grammar.start(), b""
    inside = constraint.after is None
    for token in made:
        if inside and token == MARK.eos:
            return None, False
        if inside:
            matcher.consume(token)
            continue
        inside = token == constraint.after and (not constraint.opens_tag or text.endswith(b"<"))
        is_marker = token in (MARK.dsml, MARK.think_open, MARK.think_close)
        text = b"" if is_marker else TINY.token_bytes(token)
    if not inside:
        banned = constraint.banned
        return (WORDS.mask_without(banned) if banned else None), False
    mask = bytearray(matcher.mask())
    ends = {*stops, MARK.eos}
    if matcher.is_whole:
        for token in ends:
            mask[token // 8] |= 1 << token % 8
    return bytes(mask), bytes(mask) == WORDS.mask_of(ends)


def answer_alone(
    request: Request, roles: Sequence[int], context: int
) -> tuple[list[int], FinishReason]:
    sampling, constraint = request.sampling, request.constraint
    tokens, rows, made = list(request.prompt), list[int](), list[int]()
    while True:
        for position in range(len(rows), len(tokens)):
            role = roles[position] if position < len(request.prompt) else MADE
            window = rows[max(0, position - WINDOW) :]
            rows.append(row_value(tokens[position], role, window, weighted_sum(rows)))
        logits, drawn = logits_of(rows[-1]), sampling
        if constraint is not None:
            grammar = compiled(constraint.grammar)
            free = made[len(sampling.forced) :]
            mask, closing = may_follow(free, constraint, grammar, sampling.stop_token_ids)
            if mask is not None and len(made) >= len(sampling.forced):
                allowed = [bool(mask[t // 8] >> t % 8 & 1) for t in range(SIZE)]
                logits = logits.masked_fill(~torch.tensor(allowed), float("-inf"))
            if closing and len(made) >= len(sampling.forced):
                drawn = msgspec.structs.replace(sampling, min_tokens=0)
        made.append(alone(logits, drawn, made, position=len(tokens)))
        tokens.append(made[-1])
        if made[-1] in sampling.stop_token_ids and len(made) > len(sampling.forced):
            return made, "stop"
        if len(made) >= sampling.max_tokens or len(tokens) >= context:
            return made, "length"


def random_request(rng: random.Random, id: str) -> Request:
    max_tokens = rng.randint(1, 24)
    sampling = SamplingParams(
        temperature=rng.choice([0.0, 1.0]),
        top_k=rng.choice([0, 0, 5]),
        seed=rng.randrange(5),
        choice=rng.randrange(2),
        max_tokens=max_tokens,
        stop_token_ids=rng.choice([(MARK.eos,), (MARK.eos, 20), ()]),
        presence_penalty=rng.choice([0.0, 1.0]),
        min_tokens=rng.randint(0, max_tokens) if rng.random() < 0.4 else 0,
        forced=tuple(rng.randrange(20) for _ in range(rng.choice([0, 0, 0, 1, 3]))),
    )
    constraint = rng.choice(
        [
            None,
            Constraint(grammar=DIGITS),
            Constraint(grammar=MARKED),
            Constraint(grammar=DIGITS, after=MARK.think_close, banned=(MARK.eos, MARK.dsml)),
            Constraint(grammar=MARKED, after=MARK.dsml, opens_tag=True),
        ]
    )
    if rng.random() < 0.5 and (constraint is None or constraint.after == MARK.think_close):
        budget = {"think_budget": rng.randint(0, max_tokens), "think_close": MARK.think_close}
        sampling = msgspec.structs.replace(sampling, **budget)
    prompt = tuple(rng.randrange(20) for _ in range(rng.randint(1, 12)))
    return Request(id=id, prompt=prompt, sampling=sampling, constraint=constraint)


class Slow(Executor):
    """A thread that works when it likes: here, when it is asked the third time."""

    class Late(Future):  # type: ignore[type-arg]
        def __init__(self, run: Callable[[], Any]) -> None:
            super().__init__()
            self.run, self.asked = run, 0

        def done(self) -> bool:
            self.asked += 1
            if self.asked >= 3 and not super().done():
                try:
                    self.set_result(self.run())
                except Exception as error:
                    self.set_exception(error)
            return super().done()

    def submit(self, run: Callable[..., Any], /, *args: Any) -> "Future[Any]":  # type: ignore
        return self.Late(lambda: run(*args))


class Guided:
    def __init__(
        self,
        make_engine: type[SimulatedEngine],
        executor: Executor | None,
        context: int = CONTEXT,
        **limits: Any,
    ) -> None:
        self.engine = make_engine(executor=executor, max_context=context, **limits)
        speculation = self.engine.scheduler.speculation
        rewind = max(REWIND, speculation.most + 1) if speculation else REWIND
        self.engine.runner = SamplingRunner(self.engine, rewind, self.guess)
        self._texts: dict[tuple[str, bytes], list[int]] = {}
        self.num_guided = 0  # guesses for answers with grammars

    def guess(self, slot: int, position: int, count: int) -> Proposed:
        """Mostly right, and sometimes a marker."""
        scheduler = self.engine.scheduler
        found = next(s for s in (*scheduler.running, *scheduler.leaving) if s.slot == slot)
        roles = bytes(found.roles[: found.num_prompt])
        self.num_guided += found.guide is not None
        key = found.request.id, roles
        if key not in self._texts:
            made, _ = answer_alone(found.request, roles, self.engine.limits.max_context)
            self._texts[key] = [*found.request.prompt, *made]
        rng = random.Random(f"{key} {position}")
        text = self._texts[key][position : position + count]
        text = [t if rng.random() < 0.8 else rng.choice([MARK.dsml, 5]) for t in text]
        return Proposed(tuple(text), (1.0,) * len(text))

    def add(self, request: Request) -> None:
        engine = self.engine
        engine.loop.add(request)
        engine.requests[request.id], engine.texts[request.id] = request, []
        engine.sequences[request.id] = next(
            s for s in engine.scheduler.waiting if s.request is request
        )

    def run(self) -> None:
        while not self.engine.loop.idle:
            self.engine.step()

    def check(self) -> None:
        engine = self.engine
        for id, request in engine.requests.items():
            roles = engine.sequences[id].roles[: len(request.prompt)]
            made, finish = answer_alone(request, roles, engine.limits.max_context)
            assert engine.texts[id] == made
            assert engine.finishes[id] == finish


def guides(executor: Executor) -> Guides:
    return Guides(lambda: TINY, SIZE, executor)


@pytest.mark.parametrize("executor", [None, AtOnce, AtLast], ids=["in turn", "at once", "at last"])
@pytest.mark.parametrize("tight", [True, False])
def test_no_schedule_changes_what_a_grammar_lets_through(
    make_engine: type[SimulatedEngine], tight: bool, executor: Callable[[], Executor] | None
) -> None:
    rng = random.Random(f"guides {tight}")
    seen: Counter[str] = Counter()
    for number in range(SCHEDULES):
        guided = Guided(
            make_engine,
            executor() if executor else None,
            num_pages=rng.randint(12, 13) if tight else 80,
            num_slots=5 if tight else rng.randint(2, 5),
            num_records=rng.choice([0, 3, 12]),
            admit_output=1 if tight else 40,
            speculation=Speculation(rng.randint(1, 5)) if number % 3 else None,
        )
        engine, left = guided.engine, rng.randint(4, 8)
        engine.loop._guides = guides(Slow() if number % 2 else AtOnce())
        while left or not engine.loop.idle:
            if left and rng.random() < 0.4:
                left -= 1
                guided.add(random_request(rng, f"s{left}"))
            engine.step()
        guided.check()
        seen.update(engine.finishes.values())
        if engine.scheduler.speculation:
            seen["guessed beside a grammar"] += guided.num_guided
            seen["guessed right inside"] += sum(
                sum(s.checks[1:])
                for s in engine.sequences.values()
                if s.request.constraint is not None and s.request.constraint.after is None
            )
            seen["guessed right with a budget"] += sum(
                sum(s.checks[1:])
                for s in engine.sequences.values()
                if s.request.constraint and s.request.sampling.think_budget is not None
            )
            seen["guessed right"] += sum(engine.scheduler.speculation.tally.accepted)
        for sequence in engine.sequences.values():
            constraint = sequence.request.constraint
            if constraint is not None:
                seen["preempted"] += sequence.num_preemptions > 0
                seen["begun later"] += constraint.after in engine.texts[sequence.request.id][:-2]
    wanted = ("stop", "length", "begun later", "guessed right", "guessed beside a grammar")
    wanted += ("guessed right inside", "guessed right with a budget")
    assert all(seen[kind] for kind in wanted), seen
    assert seen["preempted"] or not tight, seen


def calm(id: str, grammar: str | None, max_tokens: int = 12) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, seed=1, stop_token_ids=(MARK.eos,))
    constraint = None if grammar is None else Constraint(grammar=grammar)
    return Request(id=id, prompt=(1, 2, 3), sampling=sampling, constraint=constraint)


def steps_with(guided: Guided, id: str) -> list[int]:
    """The numbers of the steps in which a request has a draw; the slots are those of one run."""
    slots = {"a": 0, "b": 1}
    return [p.step for p in guided.engine.plans for d in p.draws if d.slot == slots[id]]


def test_beside_a_free_answer_one_with_a_grammar_takes_part_in_every_second_step(
    make_engine: type[SimulatedEngine],
) -> None:
    guided = Guided(make_engine, AtLast())
    guided.engine.loop._guides = guides(AtOnce())
    guided.add(calm("a", None, 30))
    guided.add(calm("b", "start: /[0-9]{30}/", 8))
    guided.run()
    guided.check()
    assert steps_with(guided, "a") == list(range(30))
    own = steps_with(guided, "b")
    assert [b - a for a, b in pairwise(own)] == [2] * 7


def test_answers_with_grammars_share_their_steps(make_engine: type[SimulatedEngine]) -> None:
    """Also if one came a step later."""
    guided = Guided(make_engine, AtLast())
    guided.engine.loop._guides = guides(AtOnce())
    guided.add(calm("a", "start: /[0-9]{30}/", 12))
    guided.engine.step()
    guided.add(calm("b", "start: /[a-f]{30}/", 8))
    guided.run()
    guided.check()
    assert len(guided.engine.plans) <= 14


def test_before_its_grammar_begins_an_answer_takes_part_in_every_step(
    make_engine: type[SimulatedEngine],
) -> None:
    guided = Guided(make_engine, AtLast())
    guided.engine.loop._guides = guides(AtOnce())
    constraint = Constraint(grammar=DIGITS, after=MARK.think_close, banned=(MARK.think_close,))
    guided.add(msgspec.structs.replace(calm("a", None, 20), constraint=constraint))
    guided.run()
    assert steps_with(guided, "a") == list(range(20))
    assert MARK.think_close not in guided.engine.texts["a"]


def test_a_grammar_that_takes_long_holds_nobody_up(make_engine: type[SimulatedEngine]) -> None:
    """It is compiled by a thread that never comes to an end here; the request can be aborted."""

    class Never(Executor):
        def submit(self, run: Callable[..., Any], /, *args: Any) -> "Future[Any]":  # type: ignore
            return Future()

    guided = Guided(make_engine, AtOnce(), num_slots=1)
    guided.engine.loop._guides = guides(Never())
    guided.add(calm("slow", DIGITS))
    for number in range(3):
        guided.add(calm(f"free {number}", None))
    while len(guided.engine.finishes) < 3:
        guided.engine.step()
    assert not guided.engine.loop.idle
    guided.engine.abort("slow")
    assert guided.engine.loop.idle
    assert guided.engine.finishes["slow"] == "abort"


@pytest.mark.parametrize("executor", [None, AtOnce, AtLast], ids=["in turn", "at once", "at last"])
def test_a_grammar_that_cannot_go_on_ends_its_request_only(
    make_engine: type[SimulatedEngine], executor: Callable[[], Executor] | None
) -> None:
    """One does not compile, which is found at the door of a server; the other turns out to be too
    complex in the middle."""
    guided = Guided(make_engine, executor() if executor else None)
    guided.engine.loop._guides = guides(AtOnce())
    guided.add(calm("wrong", "start: %%%"))
    guided.add(calm("complex", "start: /(.{1,2000}b){1,2000}/", 40))
    guided.add(calm("free", None, 40))
    errors = {}
    while not guided.engine.loop.idle:
        errors |= {delta.id: delta.error for delta in guided.engine.step() if delta.error}
    assert "cannot be compiled" in errors["wrong"]
    assert guided.engine.finishes["free"] == "length"
    made, _ = answer_alone(guided.engine.requests["free"], [0] * 3, CONTEXT)
    assert guided.engine.texts["free"] == made
    assert guided.engine.pool.num_held == 0


def test_guesses_are_tried_as_far_as_a_grammar_allows_them() -> None:
    """Not the token with which it begins, nor one that ends the answer; behind its end, all."""
    one, two, letter = (TINY.encode_text(text)[0] for text in "12a")
    late = Constraint(grammar=DIGITS, after=7, banned=(9,))
    guide = guides(AtOnce()).guide(msgspec.structs.replace(calm("a", None), constraint=late))
    assert guide.guesses((1, 2)) == guide.allowed((1, 2)) == (1, 2)
    assert guide.guesses((1, 7, 2, 7)) == (1,)
    assert guide.mask_behind(1) == guide.mask(0)
    guide.learn(7)
    for guesses, count in (
        ((letter, one), 0),
        ((one, letter, one), 1),
        ((one, MARK.eos), 1),
        ((one, two, MARK.eos), 2),
        ((two,), 1),
        ((), 0),
    ):
        before = guide.mask(0)
        guide.go_on(guesses)
        assert guide.allowed(guide.guesses(guesses)) == guesses[:count]
        assert guide.mask(0) == before
    ahead = two, one, two
    guide.go_on(ahead)
    told = [guide.mask_behind(count) for count in range(4)]
    for count, token in enumerate(ahead):
        assert guide.mask(0) == told[count]
        guide.learn(token)
        guide.go_on()
    assert guide.mask(0) == told[3]
    guide.learn(MARK.eos)
    guide.go_on((7, 2))
    assert guide.allowed(guide.guesses((7, 2))) == (7, 2)


@pytest.mark.parametrize("more", range(5))
def test_what_guesses_use_up_of_a_matcher_is_not_the_answers(
    make_engine: type[SimulatedEngine], monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """Here it may make one mask a token and a few more, and then gives up for good: behind a guess
    or behind the answer's own token. From then on nothing is guessed."""
    number, tired = 12, dict[int, int]()
    (one,) = TINY.encode_text("1")

    class Ones(Guided):
        def guess(self, slot: int, position: int, count: int) -> Proposed:
            return Proposed((one,) * count, (1.0,) * count)

    class Tired(Matcher):
        left = number + 1 + more

        def mask(self) -> bytes:
            self.left -= 1
            if self.left < 0:
                tired[id(self)] = len(guided.engine.plans)
                raise BadRequest("too complex")
            return super().mask()

    monkeypatch.setattr(
        Grammar, "start", lambda self: Tired(self._matcher.deep_copy(), self._mask_bytes)
    )
    guided = Ones(make_engine, None, speculation=Speculation(3))
    guided.engine.loop._guides = guides(AtOnce())
    guided.add(calm("a", "start: /[0-9]{30}/", number))
    guided.run()
    guided.check()
    assert guided.engine.finishes["a"] == "length"
    (last,) = tired.values()
    asked = [any(rows.propose for rows in (*p.made, *p.given)) for p in guided.engine.plans]
    assert any(asked[:last])
    assert not any(asked[last:])
