"""An engine whose runner has the memory of a real one and a hash in place of the network."""

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from relight.base.errors import RelightError
from relight.base.types import FinishReason, Request, SamplingParams, TokenDelta
from relight.cache.blocks import NULL_PAGE, BlockPool
from relight.cache.prefix import GIVEN, MADE, PrefixIndex, RecordPool
from relight.engine import sequence
from relight.engine.admission import Limits
from relight.engine.loop import Loop
from relight.engine.onethread import OneThread
from relight.engine.plan import (
    LAST_SAMPLED,
    Draw,
    Drawn,
    Proposed,
    RecordMove,
    Result,
    Rows,
    Scored,
    StepPlan,
)
from relight.engine.scheduler import Scheduler
from relight.engine.speculate import Speculation
from relight.engine.steps import InTurn, Overlapped

PAGE = 4
REWIND = 2
WINDOW = PAGE
VOCAB = 23
INTERVAL = 5 * PAGE

Guess = Callable[[int, int, int], Proposed]
"""Guesses for a slot, from a position on, so many."""


class SimulatedRunner:
    """Rows are integers. A row is a hash of its token, its role, the window before it (read from
    the slot's ring) and all rows before it (read through the page table): a wrong page, a missing
    record or a row computed in the wrong role gives another text, or trips an assertion.

    With bounded replay a row that goes as far is hashed once more, with those before it that did;
    of others a record holds whatever was in the ring."""

    def __init__(
        self,
        pool: BlockPool,
        num_slots: int,
        num_records: int,
        rewind: int = REWIND,
        guess: Guess | None = None,
        replay_rows: int = 0,
    ) -> None:
        self.pool = pool
        self.replay_rows = replay_rows
        self.rewind = rewind
        self.guess = guess
        self.pages = [[0] * PAGE for _ in range(pool.total + 1)]
        self.rings = [[(-1, 0)] * (WINDOW + rewind) for _ in range(num_slots)]
        self.records: list[list[tuple[int, int]]] = [[] for _ in range(num_records)]
        self.late_rings = [list(ring) for ring in self.rings]
        self.late_records = [list(rows) for rows in self.records]
        self.tables: list[list[int]] = [[] for _ in range(num_slots)]
        self.lengths = [0] * num_slots
        self.last = [0] * num_slots
        self.faults: list[str] = []
        """Where the next step shall fail: "start", "rows" or "end"."""

    def execute(self, plan: StepPlan) -> list[Result]:
        self._fail("start")
        for change in plan.lengths:
            self.lengths[change.slot] = change.length
        for write in plan.pages:
            assert NULL_PAGE not in write.pages
            self.tables[write.slot][write.first :] = write.pages
        for move in plan.restores:
            self._restore(move)
        hidden = {rows.slot: self._run(rows, MADE) for rows in plan.made}
        hidden |= {rows.slot: self._run(rows, GIVEN) for rows in plan.given}
        assert len(hidden) == len(plan.made) + len(plan.given), "a sequence has rows twice"
        values = [value for rows in (*plan.made, *plan.given) for value in hidden[rows.slot]]
        results: list[Result] = [*self._drawn(plan, values)]
        results += self._guesses(plan, results)
        for move in plan.takes:
            self._take(move)
        self._fail("end")
        return results

    def _drawn(self, plan: StepPlan, values: Sequence[int]) -> Sequence[Drawn]:
        return [self._draw(draw, value) for draw, value in zip(plan.draws, values, strict=True)]

    def _guesses(self, plan: StepPlan, drawn: Sequence[Result]) -> list[Proposed]:
        """Behind the draw of each sequence that counts."""
        guesses, draws = [], iter(zip(plan.draws, drawn, strict=True))
        for rows in (*plan.made, *plan.given):
            found = list(itertools.islice(draws, rows.proposed + 1 if rows.sample else 0))
            for place, (draw, _) in enumerate(found):
                assert draw.slot == rows.slot
                assert draw.position == self.lengths[rows.slot] - rows.proposed + place
            right = 0
            while right < rows.proposed:
                result = found[right][1]
                token = result.token if isinstance(result, Scored) else result
                if token != rows.tokens[right - rows.proposed]:
                    break
                right += 1
            if rows.propose:
                assert self.guess is not None, "nobody guesses here"
                guesses.append(self.guess(rows.slot, found[right][0].position + 1, rows.propose))
        assert next(draws, None) is None
        return guesses

    def _fail(self, point: str) -> None:
        if point in self.faults:
            self.faults.remove(point)
            raise RuntimeError("the device failed")

    def _run(self, rows: Rows, role: int) -> list[int]:
        """What is drawn from: the last row, and those before guesses."""
        slot, values = rows.slot, []
        assert rows.start == self.lengths[slot]
        assert role == GIVEN or len(rows.tokens) <= self.rewind
        for position, token in enumerate(rows.tokens, start=rows.start):
            token = self.last[slot] if token == LAST_SAMPLED else token
            value = row_value(token, role, self._window(slot, position), self._long(slot, position))
            self._store(slot, position, value)
            values.append(self._decode(rows, position, value) if self.replay_rows else value)
        self.lengths[slot] = rows.start + len(rows.tokens)
        self._fail("rows")
        return values[-1 - rows.proposed :] if rows.sample else []

    def _decode(self, rows: Rows, position: int, value: int) -> int:
        if position < rows.whole_from:
            return -1
        ring = self.late_rings[rows.slot]
        late = late_value(value, window(ring, position, rows.whole_from))
        ring[position % len(ring)] = (position, late)
        return late

    def _window(self, slot: int, position: int) -> list[int]:
        return window(self.rings[slot], position)

    def _long(self, slot: int, position: int) -> int:
        rows = [row for page in self.tables[slot] for row in self.pages[page]]
        return weighted_sum(rows[:position])

    def _store(self, slot: int, position: int, value: int) -> None:
        page = self.tables[slot][position // PAGE]
        assert self.pool.is_writable(page), f"page {page} is shared"
        self.pages[page][position % PAGE] = value
        self.rings[slot][position % (WINDOW + self.rewind)] = (position, value)

    def _restore(self, move: RecordMove) -> None:
        assert self.lengths[move.slot] == move.boundary
        rows = self.records[move.record]
        assert [position for position, _ in rows] == list(
            range(move.boundary - WINDOW, move.boundary)
        )
        for place, row in enumerate(rows, move.boundary - WINDOW):
            self.rings[move.slot][place % (WINDOW + self.rewind)] = row
        for place, row in enumerate(self.late_records[move.record], move.boundary - WINDOW):
            self.late_rings[move.slot][place % (WINDOW + self.rewind)] = row

    def _take(self, move: RecordMove) -> None:
        assert move.boundary % PAGE == 0
        assert 0 <= self.lengths[move.slot] - move.boundary <= self.rewind
        values = self._window(move.slot, move.boundary)
        first = move.boundary - WINDOW
        self.records[move.record] = [(first + i, value) for i, value in enumerate(values)]
        late = self.late_rings[move.slot]
        self.late_records[move.record] = [
            late[place % len(late)] for place in range(first, move.boundary)
        ]

    def _draw(self, draw: Draw, value: int) -> int:
        token = drawn_token(value, draw.sampling, draw.position)
        self.last[draw.slot] = token
        return token


def window(ring: Sequence[tuple[int, int]], position: int, since: int = 0) -> list[int]:
    """The rows before a position that it sees."""
    values = []
    for before in range(max(since, position - WINDOW, 0), position):
        found, value = ring[before % len(ring)]
        assert found == before, f"row {before} is not in the ring"
        values.append(value)
    return values


def late_value(value: int, late: Sequence[int]) -> int:
    return hash((value, *late)) & 0xFFFFFFFF


def weighted_sum(rows: Sequence[int]) -> int:
    return sum(row * (number // PAGE + 1) for number, row in enumerate(rows))


def row_value(token: int, role: int, window: Sequence[int], long: int) -> int:
    return hash((token, role, *window, long)) & 0xFFFFFFFF


def drawn_token(value: int, sampling: SamplingParams, position: int) -> int:
    return hash((value, sampling.seed, position)) % VOCAB


def whole_from(roles: Sequence[int], position: int, replay_rows: int) -> int:
    """Of a given row in a prompt: from where on rows of its run go through all layers."""
    end = next((i for i in range(position, len(roles)) if roles[i] == MADE), len(roles))
    return max(0, end - replay_rows)


def text_alone(
    prompt: Sequence[int],
    roles: Sequence[int],
    sampling: SamplingParams,
    context: int,
    replay_rows: int = 0,
) -> list[int]:
    """What a request makes with an engine to itself that has no pages and no rings."""
    tokens: list[int] = list(prompt)
    rows: list[int] = []
    late: dict[int, int] = {}
    while True:
        for position in range(len(rows), len(tokens)):
            role = roles[position] if position < len(prompt) else MADE
            seen = rows[max(0, position - WINDOW) :]
            rows.append(row_value(tokens[position], role, seen, weighted_sum(rows)))
            given = role == GIVEN
            since = whole_from(roles, position, replay_rows) if given and replay_rows else 0
            if replay_rows and position >= since:
                first = max(since, position - WINDOW, 0)
                last = [late[before] for before in range(first, position)]
                late[position] = late_value(rows[-1], last)
        value = late[len(tokens) - 1] if replay_rows else rows[-1]
        tokens.append(drawn_token(value, sampling, len(tokens)))
        made = len(tokens) - len(prompt)
        ended = tokens[-1] in sampling.stop_token_ids or made >= sampling.max_tokens
        if ended or len(tokens) >= context:
            return tokens[len(prompt) :]


class AtOnce(Executor):
    """The fastest device: a step has run before anything else happens."""

    def submit(self, run: Callable[..., Any], /, *args: Any) -> "Future[Any]":  # type: ignore
        future: Future[Any] = Future()
        try:
            future.set_result(run(*args))
        except BaseException as error:
            future.set_exception(error)
        return future


class AtLast(Executor):
    """The slowest device: a step runs when somebody waits for it."""

    class Late(Future):  # type: ignore[type-arg]
        def __init__(self, run: Callable[[], Any]) -> None:
            super().__init__()
            self.run = run

        def result(self, timeout: float | None = None) -> Any:
            return self.run()

    def submit(self, run: Callable[..., Any], /, *args: Any) -> "Future[Any]":  # type: ignore
        return self.Late(lambda: run(*args))


class SimulatedEngine:
    """Scheduler, loop and simulated runner, checked after each step. Steps run in turn, or overlap
    by an executor."""

    def __init__(
        self,
        *,
        executor: Executor | OneThread | None = None,
        num_pages: int = 64,
        num_slots: int = 4,
        num_records: int = 16,
        max_context: int = 64,
        max_step_tokens: int = 16,
        admit_output: int = 8,
        max_queue: int = 100,
        reuse_generated: bool = True,
        prefix_cache: bool = True,
        step_target_s: float = math.inf,
        speculation: Speculation | None = None,
        guess: Guess | None = None,
        replay_rows: int = 0,
    ) -> None:
        self.limits = Limits(
            num_slots=num_slots,
            max_context=max_context,
            max_step_tokens=max_step_tokens,
            admit_output=admit_output,
            max_queue=max_queue,
            vocab_size=VOCAB,
            prefix_cache=prefix_cache,
            record_interval=INTERVAL,
            made_rows=REWIND,
            step_target_s=step_target_s,
            replay_rows=replay_rows,
        )
        self.pool = BlockPool(num_pages + 1)
        self.records = RecordPool(num_records)
        self.index = PrefixIndex(
            self.pool,
            self.records,
            "simulated",
            page_tokens=PAGE,
            reuse_generated=reuse_generated,
        )
        self.scheduler = Scheduler(self.limits, self.index, speculation)
        rewind = max(REWIND, speculation.most + 1) if speculation else REWIND
        self.runner = SimulatedRunner(self.pool, num_slots, num_records, rewind, guess, replay_rows)
        self.now = 0.0
        steps = Overlapped(self, executor) if executor else InTurn(self)
        self.loop = Loop(self.scheduler, steps, clock=lambda: self.now)
        self.plans: list[StepPlan] = []
        self.mistake: AssertionError | None = None
        self.requests: dict[str, Request] = {}
        self.sequences: dict[str, sequence.Sequence] = {}
        self.texts: dict[str, list[int]] = {}
        self.finishes: dict[str, FinishReason] = {}
        self._ids = itertools.count()

    def add(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 8,
        stop: tuple[int, ...] = (),
        seed: int = 0,
        hints: tuple[int, ...] = (),
        salt: str = "",
        priority: int = 0,
        client: str = "",
    ) -> str:
        sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop, seed=seed)
        request = Request(
            id=f"r{next(self._ids)}",
            prompt=tuple(prompt),
            sampling=sampling,
            record_hints=hints,
            cache_salt=salt,
            priority=priority,
            client=client,
        )
        self.loop.add(request)
        self.requests[request.id] = request
        self.sequences[request.id] = self.scheduler.waiting[-1]
        self.texts[request.id] = []
        return request.id

    def launch(self, plan: StepPlan) -> list[Result]:
        """What the loop takes for a runner."""
        self.plans.append(plan)
        given = sum(len(rows.tokens) for rows in plan.given)
        assert given <= self.limits.max_step_tokens
        self.now += 1.0 + given / 10
        try:
            return self.runner.execute(plan)
        except AssertionError as error:  # not a fault of the device, which a loop survives
            self.mistake = error
            raise

    def read(self, launched: list[Result]) -> list[Result]:
        return launched

    def step(self) -> list[TokenDelta]:
        deltas = self.loop.step()
        if self.mistake:
            raise self.mistake
        self.collect(deltas)
        self.check()
        return deltas

    def abort(self, id: str) -> None:
        delta = self.loop.abort(id)
        if delta is not None:
            self.collect([delta])
        self.check()

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if self.loop.idle:
                return
            self.step()
        raise AssertionError("requests are left")

    def collect(self, deltas: Sequence[TokenDelta]) -> None:
        for delta in deltas:
            assert delta.id not in self.finishes, "a delta came after the last"
            self.texts[delta.id] += delta.tokens
            if delta.finish:
                self.finishes[delta.id] = delta.finish

    def check(self) -> None:
        """Every page, record and slot is somewhere, once."""
        self.index.check()
        pool, running = self.pool, self.scheduler.running
        assert pool.num_free + pool.num_held + pool.num_cached == pool.total
        holders = [*running, *self.scheduler.leaving]
        held = {page for s in holders for page in s.pages}
        assert {page for page in range(1, pool.total + 1) if pool.is_held(page)} == held
        writable = [page for s in holders for page in s.pages if pool.is_writable(page)]
        assert len(writable) == len(set(writable))
        in_flight = [work for flight in self.scheduler._flights for work in flight.work]
        records = {work.take.move.record for work in in_flight if work.take}
        records |= {s.record for s in holders if s.record is not None}
        assert self.records.num_held == len(records)
        assert all(s.in_flight == sum(w.sequence is s for w in in_flight) for s in holders)
        slots = [s.slot for s in holders]
        assert len(set(slots)) == len(slots) <= self.limits.num_slots
        assert all(s.slot < 0 and not s.pages for s in self.scheduler.waiting)
        ages = [s.arrival for s in running]
        assert ages == sorted(ages)

    def expected(self, id: str) -> list[int]:
        """The text of a request alone, its reused tokens in the roles in which they were found."""
        request, found = self.requests[id], self.sequences[id]
        roles = found.roles[: found.num_prompt]
        assert MADE not in roles[found.num_cached :]
        limits = self.limits
        return text_alone(
            request.prompt, roles, request.sampling, limits.max_context, limits.replay_rows
        )

    def check_texts(self) -> None:
        for id, text in self.texts.items():
            whole = self.expected(id)
            if self.finishes[id] in ("stop", "length"):
                assert text == whole
            else:
                assert text == whole[: len(text)]

    def refusal(self, prompt: Sequence[int], max_tokens: int = 8) -> RelightError:
        with pytest.raises(RelightError) as info:
            self.add(prompt, max_tokens=max_tokens)
        return info.value


@pytest.fixture(scope="session")
def trials_seen() -> dict[Any, Any]:
    return {}


@pytest.fixture(autouse=True)
def kernels_are_tried_once(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, trials_seen: dict[Any, Any]
) -> None:
    """On a device each engine would try all kernels, which takes seconds: each process does so."""
    if "gpu" not in request.keywords:
        return
    from relight.engine import fast

    check = fast.check

    def once(selection: Any, trials: Any) -> Any:
        if selection not in trials_seen:
            trials_seen[selection] = check(selection, trials)
        return trials_seen[selection]

    monkeypatch.setattr(fast, "check", once)


@pytest.fixture
def make_engine() -> Callable[..., SimulatedEngine]:
    return SimulatedEngine
