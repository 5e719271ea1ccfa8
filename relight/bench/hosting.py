"""Starts a server by its command line, waits until it answers, and stops it. Knows no scenario.

Its output is kept in memory, the last lines only: a server may print its keys.
"""

import asyncio
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from relight.base.errors import BadSetting, Unavailable
from relight.bench import redact
from relight.bench.client import Client
from relight.bench.http import Target
from relight.bench.scenario import Limits
from relight.bench.server import canary, model

POLL_S = 0.2
TAIL = 12
STOP_S = 60.0


class Hosted:
    """A server that was started here. `stop` may be called again."""

    def __init__(self, command: str, to: Target, key: str = "") -> None:
        """Raises BadSetting for a command that is none, or an address that is taken: another
        server would be measured instead."""
        try:
            argv = shlex.split(command)
        except ValueError as problem:
            raise BadSetting(f"start is {command!r}: {problem}", param="start") from problem
        if not argv:
            raise BadSetting("start is empty; wanted the command line of a server", param="start")
        if _listens(to):
            raise BadSetting(
                f"{to.shown} answers already; stop what runs there, or give it with --url alone",
                param="start",
            )
        self._to = to
        self._key = key
        self._lines: deque[str] = deque(maxlen=TAIL)
        # Its own session: a Ctrl-C of the terminal is for the measuring, which then stops this.
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "relight.bench.keeper", *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self._keeper.stdout is not None
        for line in self._keeper.stdout:
            self._lines.append(line.decode("utf-8", "replace").rstrip())

    @property
    def tail(self) -> str:
        text = redact.text("\n".join(self._lines))
        return text.replace(self._key, redact.HIDDEN) if self._key else text

    def wait(self, wanted: str, ready_s: float, limits: Limits) -> None:
        """Until it lists its model and answers a few tokens. Raises Unavailable, with the last of
        what it said, and stops it."""
        until = time.monotonic() + ready_s
        why = "nothing listens"
        while time.monotonic() < until:
            if self._keeper.poll() is not None:
                why = f"it ended with code {self._keeper.returncode}"
                break
            if _listens(self._to):
                why = asyncio.run(_answers(self._to, wanted, limits))
                if not why:
                    return
            time.sleep(POLL_S)
        self.stop()
        raise Unavailable(
            f"the server did not become ready within {ready_s:g} s: {why}\n{self.tail}".rstrip()
        )

    def stop(self) -> None:
        if self._keeper.stdin is not None and not self._keeper.stdin.closed:
            self._keeper.stdin.close()
        try:
            self._keeper.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        self._reader.join(1.0)
        if self._keeper.stdout is not None:
            self._keeper.stdout.close()


async def _answers(to: Target, wanted: str, limits: Limits) -> str:
    """Empty if it does; else why it does not."""
    try:
        found = await model(to, wanted)
    except Unavailable as problem:
        return problem.message
    client = Client(
        to,
        found.id,
        extra={},
        silence_s=limits.canary_s,
        total_s=limits.canary_s,
        needs_done=limits.done,
        needs_usage=limits.usage,
    )
    told = await canary(client, limits)
    return "" if told.ok else f"{told.failure}, {told.error}"


def _listens(to: Target) -> bool:
    try:
        with socket.create_connection((to.host, to.port), timeout=1.0):
            return True
    except OSError:
        return False


class Hosts:
    """Servers by the name of their arm. One at a time, so that each has the machine to itself,
    unless they may run `together`. `with` stops all of them, whatever happens."""

    def __init__(
        self,
        commands: Mapping[str, str],
        targets: Mapping[str, Target],
        *,
        ready_s: float,
        together: bool = False,
        model: str = "",
        limits: Limits | None = None,
        show: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._commands = dict(commands)
        self._targets = dict(targets)
        self._ready_s = ready_s
        self._together = together
        self._model = model
        self._limits = limits or Limits()
        self._show = show
        self._running: dict[str, Hosted] = {}

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_: object) -> None:
        for name in tuple(self._running):
            self._running.pop(name).stop()

    def have(self, name: str) -> None:
        """Starts the server of an arm if it is one that we start and it does not run."""
        if name not in self._commands or name in self._running:
            return
        if not self._together:
            self.__exit__()
        self._show(f"starting server {name}")
        to = self._targets[name]
        hosted = self._running[name] = Hosted(self._commands[name], to, to.key)
        hosted.wait(self._model, self._ready_s, self._limits)
