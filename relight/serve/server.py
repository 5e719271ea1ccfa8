"""What all routes share: engines, names, limits, who may enter. Knows no body and no route."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from relight.base.errors import BadRequest, ModelNotFound, Overloaded, RelightError, Unavailable
from relight.engine.client import EngineState
from relight.serve.decode import shown
from relight.serve.exchange import Exchange
from relight.serve.hosts import Hosts
from relight.serve.journal import Mode
from relight.serve.keys import Keys
from relight.serve.metrics import Metrics
from relight.serve.queue import Queue
from relight.serve.terms import on_terms
from relight.session import Job, Session

log = logging.getLogger(__name__)

_STATES: tuple[EngineState, ...] = ("busy", "idle", "stuck", "loading", "draining", "dead")
READY: frozenset[EngineState] = frozenset({"idle", "busy"})
MAX_IGNORED_SHOWN = 20
NO_KEYS = Keys(())
ANY_HOST = Hosts()


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """`names` are what clients may call the model, the first its own; `max_open` bounds the
    sequences that wait or run. Times are in seconds; `keep_alive_s` 0 sends no comments,
    `timeout_s` 0 gives a request up never, and `silent_s` 0 waits for clients for ever."""

    names: tuple[str, ...]
    body_limit: int = 64 * 2**20
    max_open: int = 1000
    timeout_s: float = 0.0
    strict_fields: bool = False
    keep_alive_s: float = 8.0
    silent_s: float = 60.0
    drain_s: float = 30.0
    keys: Keys = NO_KEYS
    hosts: Hosts = ANY_HOST
    root_path: str = ""
    cors_origins: tuple[str, ...] = ()
    log_requests: Mode = "off"
    reasoning_copy: bool = False


@dataclass(slots=True)
class Server:
    """`sessions` are alike, one for each engine, and so are `queues`, if there are any. `draining`
    refuses what is new; setting `stopping` ends what runs."""

    sessions: Sequence[Session]
    options: ServeOptions
    metrics: Metrics
    wall_clock: Callable[[], float] = time.time
    queues: Sequence[Queue] = ()
    draining: bool = False
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    open: dict[int, int] = field(init=False, default_factory=dict)
    started: int = field(init=False)

    def __post_init__(self) -> None:
        self.started = int(self.wall_clock())

    @property
    def num_open(self) -> int:
        return sum(self.open.values())

    def state(self) -> EngineState:
        """The best state that an engine is in: one that answers is enough."""
        if self.draining:
            return "draining"
        states = {session.client.state() for session in self.sessions}
        return next(state for state in _STATES if state in states)

    def ready(self) -> Session:
        """The engine with the fewest requests. Raises `Unavailable`."""
        ready = [i for i, session in enumerate(self.sessions) if session.client.state() in READY]
        if self.draining or not ready:
            raise Unavailable(f"the server is {self.state()}; send the request again later")
        return self.sessions[min(ready, key=lambda i: self.open.get(i, 0))]

    @contextmanager
    def admit(self, num_sequences: int = 1) -> Iterator[Session]:
        """Holds room for so many sequences. Raises `Unavailable` and `Overloaded`."""
        with self.counted():
            session = self.ready()
            engine = self.sessions.index(session)
            if num_sequences > self.options.max_open:
                raise BadRequest(
                    f"the request asks for {num_sequences} answers and the most at once is "
                    f"{self.options.max_open} (--num-slots and --max-queue together); ask for less",
                    param="n",
                )
            if self.num_open + num_sequences > self.options.max_open:
                retry_s = self.queues[engine].retry_s if self.queues else 1
                raise Overloaded(
                    f"{self.num_open} sequences wait or run and the most is "
                    f"{self.options.max_open} (--max-queue); send the request again in {retry_s} s",
                    retry_after_s=retry_s,
                )
        self.open[engine] = self.open.get(engine, 0) + num_sequences
        try:
            yield session
        finally:
            self.open[engine] -= num_sequences

    def on_terms(self, exchange: Exchange, jobs: Sequence[Job]) -> list[Job]:
        """The jobs with what the headers of their request say, noted for the log. Raises
        `BadRequest`."""
        jobs = on_terms(jobs, exchange.header, exchange.peer, self.options.timeout_s)
        exchange.jobs = jobs
        return jobs

    @asynccontextmanager
    async def queued(self, session: Session, jobs: Sequence[Job]) -> AsyncIterator[None]:
        """Counts the jobs in the queue until they have begun or ended. Raises `Overloaded`."""
        engine = self.sessions.index(session)
        queue = self.queues[engine] if self.queues else None
        if queue:
            stats = await session.client.stats()
            with self.counted():
                queue.enter(jobs, stats)
        try:
            yield
        finally:
            if queue:
                for job in jobs:
                    queue.leave(job.request.id)
            self.metrics.call_ended(str(engine), jobs)

    @contextmanager
    def counted(self) -> Iterator[None]:
        try:
            yield
        except RelightError as error:
            self.metrics.rejected(error.code)
            raise

    def model_name(self, asked: str | None) -> str:
        """The name to answer with. `[1m]` behind a name asks for long context: it is one model."""
        name = (asked or self.options.names[0]).removesuffix("[1m]")
        if name not in self.options.names:
            raise ModelNotFound(
                f"the model {shown(asked)} does not exist here; ask for "
                f"{' or '.join(self.options.names)}",
                param="model",
            )
        return name

    def report_ignored(self, exchange: Exchange, names: Sequence[str]) -> None:
        if names:
            listed = ", ".join(names[:MAX_IGNORED_SHOWN])
            exchange.headers.append((b"x-relight-ignored", listed.encode()))
            log.debug("request %r: without effect: %s", exchange.request_id, listed)
            self.metrics.ignored(names)
