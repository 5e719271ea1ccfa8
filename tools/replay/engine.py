"""An engine with the real scheduler and prefix index, and written answers in place of a model."""

from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from relight.base.types import EngineInfo, Request, TokenDelta
from relight.cache.blocks import BlockPool
from relight.cache.prefix import PrefixIndex, RecordPool
from relight.engine.admission import Limits
from relight.engine.client import LocalClient
from relight.engine.loop import Loop
from relight.engine.plan import Draw, StepPlan
from relight.engine.scheduler import Scheduler
from relight.engine.steps import InTurn

NUM_PAGES = 2048
NUM_RECORDS = 256
MAX_CONTEXT = 131_072

Answer = Callable[[Request], Sequence[int]]


class ScriptedRunner:
    """Draws the tokens of `answer(request)`, one after the other. Rows cost nothing."""

    def __init__(self, answer: Answer, scheduler: Scheduler) -> None:
        self._answer = answer
        self._scheduler = scheduler
        self._answers: dict[str, Sequence[int]] = {}

    def launch(self, plan: StepPlan) -> list[int]:
        return [self._token(draw) for draw in plan.draws]

    def read(self, launched: list[int]) -> list[int]:
        return launched

    def _token(self, draw: Draw) -> int:
        request = next(s.request for s in self._scheduler.running if s.slot == draw.slot)
        if request.id not in self._answers:
            self._answers[request.id] = self._answer(request)
        return self._answers[request.id][draw.made]


class ScriptedClient(LocalClient):
    """Answers are written, so no grammar is read."""

    def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        return super().generate(msgspec.structs.replace(request, constraint=None))


def scripted_engine(answer: Answer, vocab_size: int) -> LocalClient:
    limits = Limits(
        num_slots=8,
        max_context=MAX_CONTEXT,
        max_step_tokens=8192,
        admit_output=4096,
        max_queue=64,
        vocab_size=vocab_size,
    )
    index = PrefixIndex(BlockPool(NUM_PAGES + 1), RecordPool(NUM_RECORDS), "scripted")
    scheduler = Scheduler(limits, index)
    info = EngineInfo(
        model="scripted",
        max_context=MAX_CONTEXT,
        num_slots=limits.num_slots,
        num_pages=NUM_PAGES,
        operator="scripted",
    )
    return ScriptedClient(Loop(scheduler, InTurn(ScriptedRunner(answer, scheduler))), info)
