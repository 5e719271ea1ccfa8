"""Runs measurements one after another with a line of progress, and writes each result. Knows no
command."""

import asyncio
import secrets
import signal
import sys
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from relight.base.errors import BadSetting
from relight.bench import result as files
from relight.bench.hosting import Hosts
from relight.bench.http import target
from relight.bench.record import Record
from relight.bench.result import Result
from relight.bench.run import Progress, Run
from relight.bench.scenario import Limits, Scenario
from relight.bench.schema import Place
from relight.cli.bench_view import live

STOPPING = (signal.SIGINT, signal.SIGTERM)
Told = tuple[Result, list[Record]]


class Bench:
    """`with Bench(...) as bench:` and then `measure` as often as wanted."""

    def __init__(self, out: Path, api_key_file: Path | None = None) -> None:
        self._out = out
        self._key = _key(api_key_file)
        self._stack = ExitStack()

    def __enter__(self) -> "Bench":
        self._show = self._stack.enter_context(live())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def say(self, text: str) -> None:
        self._show(Progress(stage=text), "")

    def hosts(
        self,
        commands: Mapping[str, str],
        urls: Mapping[str, str],
        *,
        ready_s: float,
        together: bool = False,
        model: str = "",
        limits: Limits | None = None,
    ) -> Hosts:
        """Servers that are started here, stopped when this ends."""
        made = Hosts(
            {name: command for name, command in commands.items() if command},
            {name: target(url, self._key) for name, url in urls.items()},
            ready_s=ready_s,
            together=together,
            model=model,
            limits=limits,
            show=self.say,
        )
        return self._stack.enter_context(made)

    def host(self, url: str, start: str, *, ready_s: float, model: str, limits: Limits) -> None:
        """The one server of a command: started here if `start` tells how, and ready by `limits`."""
        self.hosts({"": start}, {"": url}, ready_s=ready_s, model=model, limits=limits).have("")

    def measure(
        self,
        url: str,
        scenario: Scenario,
        *,
        model: str = "",
        nonce: str = "",
        label: str = "",
        clients: int = 1,
        place: Place | None = None,
    ) -> Result:
        return self.rows(
            url, scenario, model=model, nonce=nonce, label=label, clients=clients, place=place
        )[0]

    def rows(
        self,
        url: str,
        scenario: Scenario,
        *,
        model: str = "",
        nonce: str = "",
        label: str = "",
        clients: int = 1,
        place: Place | None = None,
    ) -> Told:
        """Raises Unavailable for a server that cannot be measured. A first Ctrl-C, or SIGTERM, ends
        the run with a partial result; a second one ends the program."""
        run = Run(
            target(url, self._key),
            scenario,
            model=model,
            nonce=nonce,
            clients=clients,
            place=place,
            progress=lambda progress: self._show(progress, label),
        )
        told, records = _run(_stoppable(run))
        files.write(self._out, told, records, self._key, run.points)
        return told, records

    def write(self, kind: str, value: msgspec.Struct) -> Path:
        """A summary of several runs, beside them."""
        self._out.mkdir(parents=True, exist_ok=True)
        path = self._out / f"{kind}-{secrets.token_hex(4)}.json"
        data = msgspec.json.format(msgspec.json.encode(value), indent=1)
        assert not self._key or self._key.encode() not in data, "a secret in a result"
        path.write_bytes(data + b"\n")
        return path


def _run(coroutine: Coroutine[Any, Any, Told]) -> Told:
    """On uvloop where there is one: a chunk of a stream costs it half as much."""
    if sys.platform == "win32":
        return asyncio.run(coroutine)
    import uvloop

    return uvloop.run(coroutine)


async def _stoppable(run: Run) -> Told:
    """The first Ctrl-C or SIGTERM stops the run; one that comes later ends the command."""
    loop = asyncio.get_running_loop()

    def release() -> None:
        for number in STOPPING:
            loop.remove_signal_handler(number)

    def stop() -> None:
        run.stop()
        release()

    for number in STOPPING:
        loop.add_signal_handler(number, stop)
    try:
        return await run.measure()
    finally:
        release()


def _key(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise BadSetting(f"api_key_file {path} cannot be read: {problem}") from problem
