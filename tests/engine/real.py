"""The engine on a real, tiny model, watched step by step; and the same model driven by hand.

The model is the golden checkpoint, which has every kind of layer, with the official numerics of the
device. Memory starts as noise: state that was never written must not matter.
"""

import itertools
import json
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.settings import Settings
from relight.base.types import FinishReason, Request, SamplingParams, TokenDelta
from relight.cache.layout import PAGE_TOKENS, layout
from relight.cache.prefix import GIVEN, MADE
from relight.engine import sequence
from relight.engine.assemble import assemble, choose_numerics
from relight.engine.fast import chosen_kernels, give_kernels
from relight.engine.plan import Draw, StepPlan
from relight.engine.runner import Runner
from relight.engine.sampler import Sampled, draw_tokens
from relight.engine.steps import InTurn
from relight.kernels.device import upload
from relight.model.network import load
from tests.model.harness import GOLDEN, Driver, same_bits

PAGE = PAGE_TOKENS
CONTEXT = 4608
VOCAB = 320
NONE: frozenset[int] = frozenset()


def write_checkpoint(folder: Path, model: str = "v4") -> Path:
    """The golden checkpoint, made for a longer context than its own."""
    source = GOLDEN / model / "checkpoint"
    for path in source.iterdir():
        if path.name != "config.json":
            (folder / path.name).symlink_to(path)
    config = json.loads((source / "config.json").read_text())
    config.get("text_config", config)["max_position_embeddings"] = CONTEXT
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def words(seed: int | str, count: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(4, VOCAB) for _ in range(count)]


def sampled(max_tokens: int, seed: int = 7, **more: object) -> SamplingParams:
    """A sampled token hangs on more of the logits than the largest one."""
    return SamplingParams(seed=seed, max_tokens=max_tokens, **more)  # type: ignore[arg-type]


@dataclass
class Answer:
    """`logits`: the row that each token was drawn from. `cached`: what every delta said."""

    tokens: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    cached: int = 0
    finish: FinishReason | None = None
    error: str | None = None


def assert_equal(found: Answer, wanted: Answer) -> None:
    """In every token, and in every bit of the logits that they were drawn from."""
    assert found.tokens == wanted.tokens
    assert same_bits(torch.stack(found.logits), torch.stack(wanted.logits))


def assert_begins(whole: Answer, found: Answer) -> None:
    """What was `found` of an answer until it was cut off is how the `whole` begins."""
    count = len(found.tokens)
    assert found.tokens == whole.tokens[:count]
    for ours, theirs in zip(found.logits, whole.logits[:count], strict=True):
        assert same_bits(ours, theirs)


class RealEngine:
    """A loop with real memory and a real model. After each step the books must balance."""

    def __init__(
        self,
        checkpoint: Path,
        device: str,
        *,
        pages: int = 24,
        records: int = 12,
        slots: int = 4,
        **settings: object,
    ) -> None:
        config = open_model(checkpoint).config
        spec = layout(config, choose_numerics("auto", torch.device(device)))
        loop, self.info = assemble(
            Settings(
                model=str(checkpoint),
                device=device,
                num_slots=slots,
                cache_bytes=(pages + 1) * spec.page.bytes,
                record_bytes=max(records, slots) * spec.record.bytes,
                step_target=0,  # no clock decides what a step holds
                overlap="off",
                graphs="off",  # where they are tried, the test records them
                **settings,  # type: ignore[arg-type]
            ),
            lambda done, total: None,
        )
        assert self.info.num_pages == min(pages, slots * CONTEXT // PAGE)
        self.loop = loop
        self.scheduler = loop._scheduler
        self.index = self.scheduler.index
        assert isinstance(loop._steps, InTurn)
        assert isinstance(loop._steps._runner, Runner)
        self.runner = loop._steps._runner
        pool = self.runner.pool
        self._memory = (
            (pool.pages, self.index.pool._free),
            (pool.records, self.index.records._free),
            (pool.slots, self.scheduler._free_slots),
        )
        self._noise = [torch.empty_like(blocks.bytes) for blocks, _ in self._memory]
        for (blocks, _), noise in zip(self._memory, self._noise, strict=True):
            blocks.bytes.copy_(noise.random_(0, 255))
        self.answers: dict[str, Answer] = {}
        self.requests: dict[str, Request] = {}
        self.sequences: dict[str, sequence.Sequence] = {}
        self.plans: list[StepPlan] = []
        self.mistake: AssertionError | None = None
        self._ids = itertools.count()
        self._launch, self.runner.launch = self.runner.launch, self._watch  # type: ignore
        self._draw, self.runner._draw = self.runner._draw, self._tap  # type: ignore
        self._draw_replayed = self.runner._draw_replayed
        self.runner._draw_replayed = self._tap_replayed  # type: ignore

    # -- what the runner sees

    def _watch(self, plan: StepPlan) -> Sampled | None:
        """Whatever the step will write can be found by nobody yet, and is held by one."""
        self.plans.append(plan)
        try:
            by_slot = {s.slot: s for s in self.scheduler.running}
            for rows in (*plan.made, *plan.given):
                last = rows.start + len(rows.tokens) - 1
                for page in by_slot[rows.slot].pages[rows.start // PAGE : last // PAGE + 1]:
                    assert self.index.pool.is_writable(page), f"page {page} is shared"
            taken = {move.record for move in plan.takes}
            assert taken.isdisjoint(self.index.records._indexed)
        except AssertionError as error:  # not a fault of the device, which a loop survives
            self.mistake = error
            raise
        return self._launch(plan)

    def _tap(self, draws: Sequence[Draw], logits: Tensor) -> Sampled:
        self._note(draws, logits)
        return self._draw(draws, logits)

    def _tap_replayed(self, draws: Sequence[Draw], rows: Sequence[int]) -> Sampled:
        assert self.runner.graphs is not None
        self._note(draws, self.runner.graphs.logits[list(rows)])
        return self._draw_replayed(draws, rows)

    def _note(self, draws: Sequence[Draw], logits: Tensor) -> None:
        by_slot = {s.slot: s.request.id for s in self.scheduler.running}
        for draw, row in zip(draws, logits, strict=True):
            self.answers[by_slot[draw.slot]].logits.append(row.clone().cpu())

    # -- what a client does

    def add(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 2,
        seed: int = 7,
        salt: str = "",
        hints: Sequence[int] = (),
        **sampling: object,
    ) -> str:
        request = Request(
            id=f"r{next(self._ids)}",
            prompt=tuple(prompt),
            sampling=sampled(max_tokens, seed, **sampling),
            record_hints=tuple(hints),
            cache_salt=salt,
        )
        self.loop.add(request)
        self.requests[request.id] = request
        self.sequences[request.id] = self.scheduler.waiting[-1]
        self.answers[request.id] = Answer()
        return request.id

    def step(self) -> None:
        deltas = self.loop.step()
        if self.mistake:
            raise self.mistake
        self._collect(deltas)
        self.check()

    def abort(self, id: str) -> None:
        delta = self.loop.abort(id)
        if delta is not None:
            self._collect([delta])
        self.check()

    def run(self) -> None:
        self.until(lambda: self.loop.idle)

    def until(self, done: Callable[[], bool]) -> None:
        """Whatever nobody holds and nobody can find becomes noise after each step."""
        while not done():
            assert not self.loop.idle, "it never came to that"
            self.step()
            self.poison_free()

    def ask(self, prompt: Sequence[int], **options: object) -> Answer:
        """The answer to a request that has the engine to itself."""
        id = self.add(prompt, **options)  # type: ignore[arg-type]
        self.run()
        return self.answers[id]

    def _collect(self, deltas: Sequence[TokenDelta]) -> None:
        for delta in deltas:
            answer = self.answers[delta.id]
            assert answer.finish is None, "a delta came after the last"
            assert not answer.tokens or delta.num_cached == answer.cached
            answer.tokens += delta.tokens
            answer.cached, answer.finish = delta.num_cached, delta.finish
            answer.error = delta.error

    # -- memory

    def check(self) -> None:
        """Every page is free, held or cached; the held ones are those of who runs; what is indexed
        is computed."""
        self.index.check()
        pool, running = self.index.pool, self.scheduler.running
        held = {page for page in range(1, pool.total + 1) if pool.is_held(page)}
        assert held == {page for s in running for page in s.pages}
        assert pool.num_free + len(held) + pool.num_cached == pool.total
        for s in running:
            assert PAGE * len(s.path) <= s.computed
            if s.shares:
                assert len(s.path) == s.computed // PAGE

    def check_all_given_back(self) -> None:
        pool, records = self.index.pool, self.index.records
        assert pool.num_held == records.num_held == 0
        assert pool.num_free + pool.num_cached == pool.total

    def evict_pages(self, count: int = 10_000) -> None:
        for _ in range(count):
            if not self.index.evict():
                break
        self.poison_free()

    def evict_records(self, count: int = 10_000) -> None:
        for _ in range(count):
            if not self.index.records.evict():
                break
        self.poison_free()

    def poison_free(self) -> None:
        """Noise in all pages, records and slots that nobody holds and nobody can find."""
        for (blocks, free), noise in zip(self._memory, self._noise, strict=True):
            if free:
                at = upload(free, noise.device)
                blocks.bytes[at] = noise[at]


class ByHand:
    """The same model without scheduler, shared pages and records: one sequence from its start, the
    given rows of a run in one piece, the made ones `width` at a time."""

    def __init__(self, checkpoint: Path, device: str, *, context: int, width: int = 1) -> None:
        model = open_model(checkpoint)
        where = torch.device(device)
        self.width = width
        # By the kernels that the engine takes there: they are functions of their own.
        weights, _, _ = give_kernels(chosen_kernels("auto", where), load(model, where), where)
        self.driver = Driver(
            model.config,
            weights,
            choose_numerics("auto", where),
            num_slots=1,
            context=context,
            device=device,
        )
        self._known: dict[tuple[tuple[int, ...], int, frozenset[int]], Answer] = {}

    def answer(
        self,
        prompt: Sequence[int],
        max_tokens: int = 2,
        *,
        seed: int = 7,
        made: Collection[int] = NONE,
    ) -> Answer:
        """The answer to `prompt`, whose tokens at `made` have that role. Remembered."""
        key = (tuple(prompt), seed, frozenset(made))
        known = self._known.get(key)
        if known is None or len(known.tokens) < max_tokens:
            known = self._known[key] = self.compute(prompt, sampled(max_tokens, seed), key[2])
        return Answer(known.tokens[:max_tokens], known.logits[:max_tokens])

    def compute(
        self, prompt: Sequence[int], sampling: SamplingParams, made: Collection[int] = NONE
    ) -> Answer:
        """`answer`, not remembered. The slot keeps what was computed."""
        self.driver.set_length(0, 0)
        roles = [MADE if i in made else GIVEN for i in range(len(prompt))]
        for role, run in itertools.groupby(zip(roles, prompt, strict=True), lambda pair: pair[0]):
            tokens = [token for _, token in run]
            logits = self._made(tokens) if role == MADE else self.driver.given(0, tokens)
        return self._generate(logits, sampling)

    def go_on(self, tokens: Sequence[int], max_tokens: int = 2) -> Answer:
        """The answer to `tokens` that are given to the sequence that was computed last."""
        return self._generate(self.driver.given(0, tokens), sampled(max_tokens))

    def _generate(self, logits: Tensor, sampling: SamplingParams) -> Answer:
        answer = Answer()
        while True:
            answer.tokens.append(self.draw(logits[-1], sampling))
            answer.logits.append(logits[-1].cpu())
            if len(answer.tokens) == sampling.max_tokens:
                return answer
            logits = self._made(answer.tokens[-1:])

    def _made(self, tokens: Sequence[int]) -> Tensor:
        return self.driver.made(0, tokens, self.width)

    def draw(self, row: Tensor, sampling: SamplingParams, position: int | None = None) -> int:
        """The token at `position`, by default the next one, drawn from logits [V]."""
        draw = Draw(0, position or self.driver.length(0), sampling)
        return int(draw_tokens([draw], row.unsqueeze(0))[0])
