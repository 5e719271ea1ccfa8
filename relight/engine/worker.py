"""The engine's process: builds an engine, then runs its loop between messages. Knows no HTTP.

It ends when it is told to (a message or SIGTERM), when its parent is gone, and when no further step
is possible; in good order, open requests get an answer first. Run by `ProcessClient` as
`python -m relight.engine.worker ADDRESS` with the settings on standard input.
"""

import logging
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import msgspec
import zmq

from relight.base.errors import RelightError
from relight.base.logs import configure
from relight.base.settings import Settings
from relight.base.types import EngineInfo
from relight.engine.loop import Loop
from relight.engine.openmp import let_threads_sleep
from relight.engine.wire import (
    Abort,
    Add,
    Ended,
    Fault,
    FromEngine,
    Loading,
    NotReady,
    Ready,
    Stop,
    ToEngine,
    Tokens,
)

Progress = Callable[[int, int], None]
Assemble = Callable[[Settings, Progress], tuple[Loop, EngineInfo]]

HEARTBEAT_S = 1.0
POLL_S = 0.1
"""How long an idle engine may take to see that it shall stop."""
PROGRESS_S = 0.1
LINGER_MS = 2000
"""How long last messages may take to reach a parent that is busy."""
ORPHAN_S = 5.0
"""How long a step may still take when the parent is gone."""

log = logging.getLogger(__name__)


class Channel:
    """The socket to the parent. Loader threads report progress, so sending takes a lock."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.linger = LINGER_MS
        self._socket.connect(address)
        self._lock = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def send(self, message: FromEngine) -> None:
        with self._lock:
            self._socket.send(self._encoder.encode(message))

    def receive(self, wait_s: float) -> list[ToEngine]:
        """All messages that are there; waits so long for the first."""
        messages = []
        while self._socket.poll(int(wait_s * 1000)):
            messages.append(self._decoder.decode(self._socket.recv()))
            wait_s = 0
        return messages

    def close(self) -> None:
        self._socket.close()
        self._context.term()


class Worker:
    """`stopping` is set from outside the loop: by a signal or by the end of the parent."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.stopping = threading.Event()
        self.loading = True
        self._signalled = False

    def load(self, assemble: Assemble, settings: Settings) -> Loop | None:
        """Builds the engine and says so; None, and said why, if it cannot be built."""
        reported_s = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal reported_s
            now = time.monotonic()
            if done >= total or now - reported_s >= PROGRESS_S:
                reported_s = now
                self.channel.send(Loading(done, total))

        try:
            loop, info = assemble(settings, progress)
        except RelightError as error:
            self.channel.send(NotReady(Fault.of(error)))
            return None
        except Exception as error:
            log.error("the engine cannot be built", exc_info=error)
            reason = f"the engine cannot be built: {type(error).__name__}: {error}"
            self.channel.send(NotReady(Fault("RelightError", reason)))
            return None
        self.loading = False
        self.channel.send(Ready(info))
        return loop

    def run(self, loop: Loop) -> None:
        """Until `stopping`, or until the loop is dead."""
        spoken_s = 0.0
        while loop.dead is None and not self.stopping.is_set():
            inbox = self.channel.receive(POLL_S if loop.idle else 0)
            work: list[Add | Abort] = []
            for message in inbox:
                if isinstance(message, Stop):
                    self.stopping.set()
                else:
                    work.append(message)
            now = time.monotonic()
            if work or not loop.idle or now - spoken_s >= HEARTBEAT_S:
                spoken_s = now
                for answer in loop.turn(work):
                    self.channel.send(answer)
        if loop.dead is None:
            deltas = loop.stop("the engine was told to stop")
            self.channel.send(Tokens(deltas, loop.stats()))
        self.channel.send(Ended())

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        """The second signal does not wait for a step."""
        if self._signalled:
            os._exit(1)
        self._signalled = True
        self.stopping.set()
        if self.loading:
            sys.exit(0)  # nothing is open yet, and reading weights may take minutes

    def watch_steps(self, loop: Loop, stuck_s: float) -> None:
        """Tells once of each step that takes longer than that: what it is, and where we are."""
        told = -1
        while True:
            time.sleep(stuck_s / 4)
            awaited = loop.awaited
            if awaited is None or awaited[0].step == told:
                continue
            plan, since_s = awaited
            seconds = time.monotonic() - since_s
            if seconds >= stuck_s:
                told = plan.step
                log.error("stuck for %.0f s in %s\n%s", seconds, plan.outline(), stacks())

    def watch_parent(self, folder: Path) -> None:
        """Ends this process when the pipe from the parent ends, even if a step never does."""
        while os.read(0, 1):
            pass
        self.stopping.set()
        shutil.rmtree(folder, ignore_errors=True)  # the parent can no longer do it
        time.sleep(0 if self.loading else ORPHAN_S)
        os._exit(1)


def main(assemble: Assemble | None = None) -> int:
    """Exit code 0 after a stop that was asked for, 1 if the engine cannot be built or is dead, or
    the parent was gone before it had said what to build."""
    address = sys.argv[1]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which tells us
    size = int.from_bytes(_read(4), "little")
    told = _read(size)
    if not told or len(told) < size:
        return 1
    settings = msgspec.msgpack.decode(told, type=Settings)
    configure("engine", settings.log_level, settings.log_format)
    # A process that ends while torch is imported would tell of torch's caches.
    logging.getLogger("torch").setLevel(logging.WARNING)
    channel = Channel(address)
    worker = Worker(channel)
    signal.signal(signal.SIGTERM, worker.on_signal)
    folder = Path(address.removeprefix("ipc://")).parent
    threading.Thread(target=worker.watch_parent, args=(folder,), daemon=True).start()
    try:
        loop = worker.load(assemble or _assemble(), settings)
        if loop is not None:
            watch = (loop, float(settings.stuck_after))
            threading.Thread(target=worker.watch_steps, args=watch, daemon=True).start()
            worker.run(loop)
    finally:
        channel.close()
    return 0 if worker.stopping.is_set() else 1


def stacks() -> str:
    """Where each thread of this process is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def _assemble() -> Assemble:
    let_threads_sleep()
    from relight.engine.assemble import assemble  # brings torch, seconds after signals work

    return assemble


def _read(size: int) -> bytes:
    payload = b""
    while len(payload) < size and (part := os.read(0, size - len(payload))):
        payload += part
    return payload


if __name__ == "__main__":
    sys.exit(main())
