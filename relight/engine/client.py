"""The engine as its users see it: requests in, token deltas out. Knows no torch and no HTTP."""

import asyncio
import contextlib
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import zmq
import zmq.asyncio

from relight.base.checkpoint import open_model
from relight.base.errors import (
    BadRequest,
    BadSetting,
    DeadlinePassed,
    RelightError,
    Unavailable,
)
from relight.base.packaged import model_folder
from relight.base.settings import Settings
from relight.base.types import EngineInfo, EngineStats, Request, TokenDelta
from relight.engine.loop import Loop
from relight.engine.wire import (
    Abort,
    Add,
    Ended,
    FromEngine,
    Loading,
    NotReady,
    Ready,
    Refused,
    Stop,
    ToEngine,
    Tokens,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
EngineState = Literal["loading", "idle", "busy", "stuck", "draining", "dead"]

WORKER = (sys.executable, "-m", "relight.engine.worker")
STOP_S = 10.0
"""How long an engine may take to end its step and go, before it is killed."""
LAST_WORDS_S = 0.2
"""How long messages may still be on their way when the process that sent them has ended."""
LOOK_S = 5.0
"""How long those who wait for an answer may be kept to find out which file it was."""
TMPDIR = "free space there, or set the variable TMPDIR to another folder with a short path"


class EngineClient(Protocol):
    """One engine, in this process, in another, or scripted by a test."""

    @property
    def info(self) -> EngineInfo: ...

    def state(self) -> EngineState: ...

    def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        """Yields deltas until one with `finish`. Closing the iterator aborts the request, and its
        pages are free within one step. Raises `Unavailable` if the engine is not there, and
        `DeadlinePassed` at the request's deadline."""
        ...

    async def stats(self) -> EngineStats: ...


class _Switchboard:
    """Hands what an engine says to the requests that it is about."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Queue[TokenDelta | RelightError]] = {}
        self._stats = EngineStats()

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        self._check_alive()
        if request.id in self._open:
            raise BadRequest(f"id {request.id} is that of a request that runs; choose another")
        answers = self._open[request.id] = asyncio.Queue()
        deadline = None
        if request.deadline_s:
            deadline = asyncio.get_running_loop().time() + request.deadline_s
        try:
            self._send(Add(request))
            while True:
                answer = await _by(deadline, answers.get())
                if isinstance(answer, RelightError):
                    raise answer
                yield answer
                if answer.finish:
                    return
        finally:
            if self._open.get(request.id) is answers:  # it goes while the engine works for it
                del self._open[request.id]
                self._send(Abort(request.id))

    async def stats(self) -> EngineStats:
        return self._stats

    def _check_alive(self) -> None:
        raise NotImplementedError

    def _send(self, message: Add | Abort) -> None:
        raise NotImplementedError

    def _receive(self, message: Refused | Tokens) -> None:
        if isinstance(message, Refused):
            if answers := self._open.pop(message.id, None):
                answers.put_nowait(message.fault.error())
            return
        stats = message.stats
        if not stats.spec_choices:
            stats = msgspec.structs.replace(stats, spec_choices=self._stats.spec_choices)
        self._stats = stats
        for delta in message.deltas:
            answers = self._open.get(delta.id)
            if answers is not None:  # else it was aborted, and this crossed the abort
                answers.put_nowait(delta)
                if delta.finish:
                    del self._open[delta.id]

    def _fail_open(self, reason: str) -> None:
        """There will be no other answer: each open request ends with an error."""
        for id, answers in self._open.items():
            answers.put_nowait(TokenDelta(id=id, finish="error", error=reason))
        self._open.clear()


class LocalClient(_Switchboard):
    """Steps a loop of this process in a thread, while there is work. One event loop at a time."""

    def __init__(self, loop: Loop, info: EngineInfo) -> None:
        super().__init__()
        self.info = info
        self._loop = loop
        self._inbox: list[Add | Abort] = []
        self._pump: asyncio.Task[None] | None = None

    def state(self) -> EngineState:
        if self._loop.dead:
            return "dead"
        return "busy" if self._open else "idle"

    def _check_alive(self) -> None:
        if self._loop.dead:
            raise Unavailable(self._loop.dead)

    def _send(self, message: Add | Abort) -> None:
        self._inbox.append(message)
        if isinstance(message, Add) and (self._pump is None or self._pump.done()):
            self._pump = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._inbox or not self._loop.idle:
            messages, self._inbox = self._inbox, []
            try:
                answers = await asyncio.to_thread(self._loop.turn, messages)
            except Exception as error:
                log.error("the loop failed", exc_info=error)
                self._loop.dead = f"the engine failed: {type(error).__name__}: {error}"
                self._fail_open(self._loop.dead)
                return
            for answer in answers:
                self._receive(answer)


class ProcessClient(_Switchboard):
    """Starts an engine in a process of its own and talks to it. The process ends with `aclose`, or
    by itself if this process dies.

    `progress` is told (bytes done, bytes in all) while weights are read. An engine that says
    nothing for `stuck_s` (0: the setting's time) is stuck: it speaks after each step, and when
    idle.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        progress: Callable[[int, int], None] = lambda done, total: None,
        command: Sequence[str] = WORKER,
        stuck_s: float = 0.0,
        stop_s: float = STOP_S,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._progress = progress
        self._command = command
        self._stuck_s = stuck_s or settings.stuck_after
        self._stop_s = stop_s
        self._info: EngineInfo | None = None
        self._dead: str | None = None
        self._closing = False
        self._heard_s = time.monotonic()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._encoder = msgspec.msgpack.Encoder()

    @property
    def info(self) -> EngineInfo:
        """Raises `Unavailable` before the engine is ready."""
        if self._info is None:
            raise Unavailable(self._dead or "the engine is loading; send the request again later")
        return self._info

    def state(self) -> EngineState:
        if self._dead is not None:
            return "dead"
        if self._closing:
            return "draining"
        if self._info is None:
            return "loading"
        if time.monotonic() - self._heard_s > self._stuck_s:
            return "stuck"
        return "busy" if self._open else "idle"

    async def start(self) -> None:
        """Starts the process; `ready` waits until it can answer. Raises `BadSetting` if there can
        be no socket to talk to it."""
        try:
            # Only this user can enter a folder from mkdtemp, so nobody else reaches the socket.
            self._folder = Path(tempfile.mkdtemp(prefix="relight-"))
        except OSError as error:
            reason = f"no folder for the engine's socket can be made: {error.strerror}"
            raise BadSetting(f"{reason}; {TMPDIR}") from error
        address = f"ipc://{self._folder}/engine"
        self._context = zmq.asyncio.Context()
        try:
            self._socket = self._context.socket(zmq.PAIR)
            self._socket.set_hwm(0)  # a slow reader here must never hold up a step there
            self._socket.bind(address)
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                address,
                stdin=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us alone, from its first instant on
            )
        except zmq.ZMQError as error:
            self._leave_nothing()
            reason = f"no socket can be made at {address}: {error.strerror}"
            raise BadSetting(f"{reason}; {TMPDIR}") from error
        except BaseException:  # Ctrl-C, too
            self._leave_nothing()
            raise
        # The pipe stays open as long as this process lives: its end tells the engine to go.
        assert self._process.stdin is not None
        payload = self._encoder.encode(self._settings)
        self._process.stdin.write(len(payload).to_bytes(4, "little") + payload)
        self._ready = asyncio.get_running_loop().create_future()
        self._listener = asyncio.create_task(self._listen())
        self._watcher = asyncio.create_task(self._watch())

    async def ready(self) -> EngineInfo:
        """Raises what the engine could not be built for: `BadCheckpoint`, `CannotFit`, …"""
        error: RelightError | None = await asyncio.shield(self._ready)
        if error is not None:
            raise error
        return self.info

    async def _listen(self) -> None:
        while True:
            message = self._decoder.decode(await self._socket.recv())
            self._heard_s = time.monotonic()
            match message:
                case Tokens() | Refused():
                    self._receive(message)
                case Loading():
                    self._progress(message.done, message.total)
                case Ready():
                    self._info = message.info
                    self._settle(None)
                case NotReady():
                    self._settle(message.fault.error())
                    return
                case Ended():
                    return

    async def _watch(self) -> None:
        """When the process has ended, for whatever reason, all that still waits gets an answer."""
        ended = asyncio.create_task(self._process.wait())
        await asyncio.wait({ended, self._listener}, return_when=asyncio.FIRST_COMPLETED)
        if self._listener.done() and not await _within(self._stop_s, ended):
            self._process.kill()  # it has said its last word, or something nobody understands
        code = await ended
        await _within(LAST_WORDS_S, self._listener)
        self._dead = "the engine has stopped" if code == 0 else await self._death(code)
        self._settle(Unavailable(self._dead))
        self._fail_open(self._dead)

    async def _death(self, code: int) -> str:
        reason = f"the engine died ({_cause(code)})"
        if code != -signal.SIGBUS:
            return reason
        # Weights are mapped where a processor reads them: then a file that becomes shorter, or a
        # disk that fails, is no error that a program could catch.
        look = asyncio.create_task(asyncio.to_thread(_file_fault, self._settings.model))
        fault = look.result() if await _within(LOOK_S, look) else "their disk does not answer"
        return f"{reason}: a file of weights could not be read any more: {fault}"

    def _settle(self, error: RelightError | None) -> None:
        if not self._ready.done():
            self._ready.set_result(error)

    def _check_alive(self) -> None:
        if self.state() in ("loading", "draining", "dead"):
            raise Unavailable(self._dead or f"the engine is {self.state()}; try again later")

    def _send(self, message: ToEngine) -> None:
        if self._dead is None:
            # Sent at once, since the socket has no limit; the future is only a receipt.
            self._socket.send(self._encoder.encode(message))

    async def aclose(self) -> None:
        """Stops the engine; open requests end with an error. Leaves no process and no file."""
        if self._closing:
            return
        self._closing = True
        if self._info is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()  # it does not read messages while it loads
        self._send(Stop())
        for end in (self._process.terminate, self._process.kill):
            if await _within(self._stop_s, self._watcher):
                break
            with contextlib.suppress(ProcessLookupError):
                end()
        await self._watcher
        self._listener.cancel()
        await asyncio.wait({self._listener})
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._leave_nothing()

    def _leave_nothing(self) -> None:
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)


async def _by(deadline: float | None, answer: Coroutine[Any, Any, T]) -> T:
    """The answer, if it comes before the deadline, a time of the event loop."""
    if deadline is None:
        return await answer
    try:
        async with asyncio.timeout_at(deadline):
            return await answer
    except TimeoutError as error:
        raise DeadlinePassed(
            "the deadline of the request has passed before its answer was complete; allow more "
            "time or ask for fewer tokens"
        ) from error


async def _within(seconds: float, task: asyncio.Task[Any]) -> bool:
    """Whether the task ends in time."""
    done, _ = await asyncio.wait({task}, timeout=seconds)
    return bool(done)


def _file_fault(model: str) -> str:
    """What is wrong with the files of a model, as far as their headers and sizes tell."""
    try:
        open_model(model_folder(model))
    except RelightError as error:
        return error.message
    except OSError as error:  # of a disk that fails where nobody expects it
        return f"{error.filename or model}: {error.strerror or error}"
    return "all have the sizes that they should have; check the disk and the system's log"


def _cause(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
