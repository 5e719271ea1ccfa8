"""The real sampler under random schedules: penalties, bias, bans and log probabilities are those of
a request alone, whoever runs beside it and however often it loses its slot."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import pytest
import torch
from torch import Tensor

from relight.base.types import FinishReason, Request, SamplingParams, TokenDelta
from relight.cache.prefix import MADE
from relight.engine.plan import Drawn, Proposed, StepPlan
from relight.engine.sampler import Sampler, read
from relight.engine.speculate import Speculation
from tests.engine.conftest import (
    REWIND,
    VOCAB,
    WINDOW,
    AtLast,
    AtOnce,
    SimulatedEngine,
    SimulatedRunner,
    row_value,
    weighted_sum,
)
from tests.engine.sampling import alone

SCHEDULES = 15  # for each of the six kinds below


def logits_of(value: int) -> Tensor:
    draw = random.Random(value)
    return torch.tensor([draw.gauss(0, 2) for _ in range(VOCAB)])


def is_sick(sampling: SamplingParams, value: int) -> bool:
    """Whether a row gives logits that are no numbers; some rows of some requests do."""
    return sampling.seed == 0 and value % 16 == 0


class SamplingRunner(SimulatedRunner):
    """Rows are hashes, logits are drawn from the hash of a row, tokens come from the sampler."""

    def __init__(self, engine: SimulatedEngine) -> None:
        speculation = engine.scheduler.speculation
        super().__init__(
            engine.pool,
            engine.limits.num_slots,
            engine.records.total,
            max(REWIND, speculation.most + 1) if speculation else REWIND,
            self._guess,
        )
        self.engine = engine
        self.rng = random.Random("guesses")
        self.texts: dict[tuple[str, bytes], list[int]] = {}
        self.sampler = Sampler(engine.limits.num_slots, VOCAB, torch.device("cpu"))

    def _drawn(self, plan: StepPlan, values: Sequence[int]) -> list[Drawn]:
        self.sampler.set_counts(plan.counts)
        if not plan.draws:
            return []
        logits = torch.stack(list(map(logits_of, values)))
        for row, (draw, value) in enumerate(zip(plan.draws, values, strict=True)):
            if is_sick(draw.sampling, value):
                logits[row, value % VOCAB] = math.nan
        sampled = self.sampler.draw(plan.draws, logits)
        for draw, token in zip(plan.draws, sampled.tokens.tolist(), strict=True):
            self.last[draw.slot] = max(token, 0)
        return read(sampled)

    def _guess(self, slot: int, position: int, count: int) -> Proposed:
        """Two of three are right, as far as there are tokens."""
        scheduler = self.engine.scheduler
        found = next(s for s in (*scheduler.running, *scheduler.leaving) if s.slot == slot)
        prompt, roles = found.request.prompt, found.roles[: found.num_prompt]
        key = found.request.id, bytes(roles)
        if key not in self.texts:
            context = self.engine.limits.max_context
            self.texts[key], _, _ = answer_alone(prompt, roles, found.request.sampling, context)
        text = self.texts[key]
        tokens = [
            token if self.rng.random() < 2 / 3 else (token + 1) % VOCAB
            for token in [*prompt, *text][position : position + count]
        ]
        tokens += [5] * (count - len(tokens))
        return Proposed(tuple(tokens), (1.0,) * count)


def answer_alone(
    prompt: Sequence[int], roles: Sequence[int], sampling: SamplingParams, context: int
) -> tuple[list[int], list[Tensor], FinishReason]:
    """Tokens, the logits that each was drawn from, and how it ends."""
    tokens, rows = list(prompt), list[int]()
    made, drawn_from = list[int](), list[Tensor]()
    while True:
        for position in range(len(rows), len(tokens)):
            role = roles[position] if position < len(prompt) else MADE
            window = rows[max(0, position - WINDOW) :]
            rows.append(row_value(tokens[position], role, window, weighted_sum(rows)))
        if is_sick(sampling, rows[-1]):
            return made, drawn_from, "error"
        logits = logits_of(rows[-1])
        made.append(alone(logits, sampling, made, position=len(tokens)))
        drawn_from.append(logits)
        tokens.append(made[-1])
        if made[-1] in sampling.stop_token_ids and len(made) > len(sampling.forced):
            return made, drawn_from, "stop"
        if len(made) >= sampling.max_tokens or len(tokens) >= context:
            return made, drawn_from, "length"


def random_sampling(rng: random.Random) -> SamplingParams:
    def sometimes(value: float, off: float) -> float:
        return value if rng.random() < 0.4 else off

    max_tokens = rng.randint(1, 20)
    return SamplingParams(
        temperature=rng.choice([0.0, 0.7, 1.0]),
        top_k=rng.choice([0, 0, 5]),
        seed=rng.randrange(5),
        choice=rng.randrange(2),
        max_tokens=max_tokens,
        stop_token_ids=rng.choice([(), (3,), (3, 7, 11)]),
        frequency_penalty=sometimes(rng.uniform(-2, 2), 0.0),
        presence_penalty=sometimes(rng.uniform(-2, 2), 0.0),
        repetition_penalty=sometimes(rng.uniform(0.5, 2), 1.0),
        logit_bias=((rng.randrange(VOCAB), 3.0),) if rng.random() < 0.3 else (),
        min_tokens=rng.randint(0, max_tokens) if rng.random() < 0.4 else 0,
        logprobs=rng.choice([None, None, 0, 4]),
        think_budget=rng.randint(0, max_tokens) if rng.random() < 0.4 else None,
        think_close=5,
        forced=tuple(rng.choices(range(VOCAB), k=rng.randint(0, max_tokens)))
        if rng.random() < 0.2
        else (),
    )


class Watched:
    """An engine with the real sampler, and what it told of each request."""

    def __init__(
        self,
        make_engine: type[SimulatedEngine],
        rng: random.Random,
        *,
        tight: bool = False,
        executor: Executor | None = None,
        depth: int = 0,
    ) -> None:
        self.engine = make_engine(
            num_pages=rng.randint(10, 14) if tight else 60,
            num_slots=rng.randint(2, 5),
            num_records=rng.choice([0, 3, 12]),
            max_context=40,
            max_step_tokens=rng.choice([5, 16]),
            admit_output=rng.choice([1, 4]) if tight else 40,
            executor=executor,
            speculation=Speculation(depth) if depth else None,
        )
        self.runner = self.engine.runner = SamplingRunner(self.engine)
        self.deltas: dict[str, list[TokenDelta]] = {}

    def add(self, prompt: Sequence[int], sampling: SamplingParams) -> None:
        engine, id = self.engine, f"s{len(self.deltas)}"
        request = Request(id=id, prompt=tuple(prompt), sampling=sampling)
        engine.loop.add(request)
        engine.requests[id], engine.texts[id] = request, []
        engine.sequences[id] = next(s for s in engine.scheduler.waiting if s.request is request)
        self.deltas[id] = []

    def step(self) -> None:
        for delta in self.engine.step():
            self.deltas[delta.id].append(delta)

    def run(self) -> None:
        while not self.engine.loop.idle:
            self.step()

    def check(self, id: str) -> None:
        engine, request = self.engine, self.engine.requests[id]
        roles = engine.sequences[id].roles[: len(request.prompt)]
        made, drawn_from, finish = answer_alone(
            request.prompt, roles, request.sampling, engine.limits.max_context
        )
        assert engine.texts[id] == made
        assert engine.finishes[id] == finish
        errors = [delta.error for delta in self.deltas[id] if delta.error]
        assert len(errors) == (finish == "error")
        assert all("not finite" in error for error in errors)
        told = [entry for delta in self.deltas[id] for entry in delta.logprobs]
        count = request.sampling.logprobs
        if count is None:
            assert told == []
            return
        assert len(told) == len(made)
        for entry, token, logits in zip(told, made, drawn_from, strict=True):
            wanted = torch.log_softmax(logits.double(), 0)
            best = wanted.topk(count)
            assert entry.own == pytest.approx(wanted[token].item(), abs=1e-5)
            assert [id for id, _ in entry.top] == best.indices.tolist()
            found = [value for _, value in entry.top]
            assert found == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("executor", [None, AtOnce, AtLast], ids=["in turn", "at once", "at last"])
@pytest.mark.parametrize("tight", [True, False])
@pytest.mark.parametrize("depth", [0, 6])
def test_no_schedule_changes_what_is_drawn(
    make_engine: type[SimulatedEngine],
    depth: int,
    tight: bool,
    executor: Callable[[], Executor] | None,
) -> None:
    """In turn, and where a step is planned before the tokens of the one before are known; with
    guesses or without."""
    rng = random.Random(f"sampling {tight}")
    seen: Counter[str] = Counter()
    for _ in range(SCHEDULES):
        steps = executor() if executor else None
        watched = Watched(make_engine, rng, tight=tight, executor=steps, depth=depth)
        engine, left = watched.engine, rng.randint(4, 8)
        while left or not engine.loop.idle:
            if left and rng.random() < 0.4:
                left -= 1
                prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))]
                watched.add(prompt, random_sampling(rng))
            watched.step()
        for id in engine.texts:
            watched.check(id)
            sampling = engine.requests[id].sampling
            if engine.sequences[id].num_preemptions and sampling.counted:
                seen["preempted while counted"] += 1
        seen.update(engine.finishes.values())
        seen["counts set again"] += any(c.tokens for plan in engine.plans for c in plan.counts)
        assert engine.pool.num_held == engine.records.num_held == 0
        if engine.scheduler.speculation is not None:
            seen["accepted with a budget"] += sum(
                sum(s.checks[1:]) > 0 and s.request.sampling.think_budget is not None
                for s in engine.sequences.values()
            )
            seen["accepted"] += sum(engine.scheduler.speculation.tally.accepted)
    wanted = {"stop", "length", "error", *(["accepted", "accepted with a budget"] if depth else [])}
    wanted |= {"preempted while counted", "counts set again"} if tight else set()
    assert wanted <= {name for name, count in seen.items() if count}


@pytest.mark.parametrize("budget", range(7))
def test_a_budget_knows_whether_thinking_was_closed_by_guesses(
    make_engine: type[SimulatedEngine], budget: int
) -> None:
    """Right ones and wrong ones, just before the budget ends and long before."""
    watched = Watched(make_engine, random.Random(budget), depth=6)
    for seed in range(1, 9):
        sampling = SamplingParams(
            max_tokens=10, seed=seed, think_budget=budget, think_close=5, logit_bias=((5, 2.0),)
        )
        watched.add([seed], sampling)
    watched.run()
    for id in watched.engine.texts:
        watched.check(id)
    assert sum(sum(s.checks[1:]) for s in watched.engine.sequences.values()) > 0


def test_plans_without_penalties_set_no_counts(make_engine: type[SimulatedEngine]) -> None:
    watched = Watched(make_engine, random.Random(1))
    for seed in range(3):
        watched.add([1, 2, 3 + seed], SamplingParams(max_tokens=5, seed=seed, logprobs=2))
    watched.run()
    assert not any(plan.counts for plan in watched.engine.plans)


def test_what_a_sequence_without_a_token_wrote_is_not_found_again(
    make_engine: type[SimulatedEngine],
) -> None:
    """Nobody knows which of its rows are no numbers; pages that others hold stay."""
    watched = Watched(make_engine, random.Random(2))
    engine, runner = watched.engine, watched.runner
    prompt = list(range(1, 14))
    watched.add(prompt, SamplingParams(max_tokens=6, seed=1))
    watched.run()
    cached = engine.pool.num_cached
    assert cached >= 3
    draw = runner.sampler.draw
    runner.sampler.draw = lambda draws, logits: draw(draws, logits * math.nan)  # type: ignore
    watched.add([*prompt, 5, 6, 7], SamplingParams(max_tokens=6, seed=1))
    watched.run()
    assert engine.finishes == {"s0": "length", "s1": "error"}
    root = engine.index.root("")
    assert not engine.index.match(root, engine.sequences["s1"].tokens, 12).entries
    runner.sampler.draw = draw  # type: ignore
    watched.add(prompt, SamplingParams(max_tokens=6, seed=1))
    watched.run()
    assert engine.sequences["s2"].num_cached == 0
    assert engine.texts["s2"] == engine.texts["s0"]
