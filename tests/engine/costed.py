"""An engine at full scale whose model is a formula of time: tokens are hashes, and a step takes as
long as a cost model says, by a clock that only it moves."""

from collections.abc import Callable
from zlib import crc32

from relight.base.types import Request, SamplingParams
from relight.cache.blocks import BlockPool
from relight.cache.prefix import PrefixIndex, RecordPool
from relight.engine.admission import Limits
from relight.engine.cost import Load, StepCost
from relight.engine.loop import Loop
from relight.engine.plan import Draw, StepPlan
from relight.engine.scheduler import Scheduler
from relight.engine.steps import InTurn

PAGE = 128
VOCAB = 1000
TRUTH = StepCost(step_s=0.020, made_s=1.35e-4, given_s=1.35e-4, pair_s=5.7e-10)
"""Measured for the full model: 20 ms a step, 0.135 ms a row, 0.57 ns for each row read by one."""


def drawn(draw: Draw) -> int:
    return hash((draw.sampling.seed, draw.position)) % VOCAB


class CostedEngine:
    """`gaps`: the longest time between two tokens of each request. `chunks`: (seconds, rows) of
    each step that computed given rows of a request."""

    def __init__(
        self,
        *,
        num_tokens: int = 1_078_120,
        num_slots: int = 32,
        admit_output: int = 4096,
        step_target_s: float = 0.1,
        max_step_tokens: int = 8192,
        truth: StepCost = TRUTH,
        disturbance: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.truth = truth
        self.disturbance = disturbance
        self.now = 0.0
        self.pool = BlockPool(num_tokens // PAGE + 1)
        index = PrefixIndex(self.pool, RecordPool(4 * num_slots), "costed")
        limits = Limits(
            num_slots=num_slots,
            max_context=2**20,
            max_step_tokens=max_step_tokens,
            admit_output=admit_output,
            max_queue=1000,
            vocab_size=VOCAB,
            step_target_s=step_target_s,
        )
        self.scheduler = Scheduler(limits, index)
        self.loop = Loop(self.scheduler, InTurn(self), clock=lambda: self.now)
        self.texts: dict[str, list[int]] = {}
        self.finishes: dict[str, str] = {}
        self.gaps: dict[str, float] = {}
        self.chunks: dict[str, list[tuple[float, int]]] = {}
        self._last_s: dict[str, float] = {}

    def add(
        self,
        id: str,
        length: int,
        max_tokens: int,
        *,
        stop: tuple[int, ...] = (),
        hints: tuple[int, ...] = (),
    ) -> Request:
        seed = crc32(id.encode())
        prompt = tuple(hash((seed, i)) % VOCAB for i in range(length))
        sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop, seed=seed)
        request = Request(id=id, prompt=prompt, sampling=sampling, record_hints=hints)
        self.loop.add(request)
        self.texts[id] = []
        return request

    def launch(self, plan: StepPlan) -> list[int]:
        seconds = self.truth.seconds(Load.of(plan)) * self.disturbance()
        self.now += seconds
        by_slot = {s.slot: s.request.id for s in self.scheduler.running}
        for rows in plan.given:
            self.chunks.setdefault(by_slot[rows.slot], []).append((seconds, len(rows.tokens)))
        return [drawn(draw) for draw in plan.draws]

    def read(self, launched: list[int]) -> list[int]:
        return launched

    def step(self) -> None:
        for delta in self.loop.step():
            if delta.tokens:
                gap = self.now - self._last_s.get(delta.id, self.now)
                self.gaps[delta.id] = max(gap, self.gaps.get(delta.id, 0.0))
                self._last_s[delta.id] = self.now
            self.texts[delta.id] += delta.tokens
            if delta.finish:
                self.finishes[delta.id] = delta.finish

    def run(self) -> None:
        while not self.loop.idle:
            self.step()


def text_alone(request: Request) -> list[int]:
    sampling, text = request.sampling, []
    while len(text) < sampling.max_tokens:
        position = len(request.prompt) + len(text)
        text.append(drawn(Draw(0, position, sampling)))
        if text[-1] in sampling.stop_token_ids:
            break
    return text
