"""Finds out whether a client's grammar compiles, within a bounded time. Knows no request."""

import asyncio
import hashlib
import json
import math
import select
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from relight.base.errors import Overloaded, Unavailable
from relight.text.compile import reason_against
from relight.text.grammar import Vocabulary
from relight.text.tokenizer import Tokenizer

LIMIT_S = 3.0
"""How long a grammar may take. Schemas that people write take some milliseconds."""
GAVE_UP_S = 30.0
"""How long it is remembered that a grammar was given up: that may have been a busy machine's fault,
and clients that send it again at once would have it tried each time."""
START_S = 60.0
MAX_KEPT = 1024
MAX_WAITING = 32
COMMAND = (sys.executable, "-m", "relight.text.compile")


class GaveUp(Exception):
    """It is not known whether the grammar compiles: the compiler took too long, or fell."""


class Compiler(Protocol):
    def reason_against(self, grammar: str) -> str:
        """Why the grammar does not compile; nothing if it does. Called by one thread at a time.
        Raises `GaveUp`."""
        ...


@dataclass(frozen=True, slots=True)
class _Kept:
    """An answer, and when it is to be forgotten."""

    reason: str
    until_s: float = math.inf


class Checker:
    """Asks a compiler, in a thread of its own, and remembers the answers. That a grammar was given
    up counts as a reason against it for a while."""

    def __init__(self, compiler: Compiler, clock: Callable[[], float] = time.monotonic) -> None:
        self._compiler = compiler
        self._clock = clock
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="checker")
        self._kept: dict[bytes, _Kept] = {}
        self._num_waiting = 0

    async def reason_against(self, grammar: str) -> str:
        """Why the grammar does not compile; nothing if it does. Raises `Overloaded`."""
        key = hashlib.blake2b(grammar.encode("utf-8", "replace"), digest_size=16).digest()
        kept = self._kept.pop(key, None)
        if kept is None or kept.until_s <= self._clock():
            kept = await self._ask(grammar)
        self._kept[key] = kept  # the last used one stands last
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept.reason

    async def _ask(self, grammar: str) -> _Kept:
        if self._num_waiting >= MAX_WAITING:
            raise Overloaded(
                f"{MAX_WAITING} schemas are being compiled; send the request again later",
                retry_after_s=1,
            )
        self._num_waiting += 1
        try:
            loop = asyncio.get_running_loop()
            ask = self._compiler.reason_against
            return _Kept(await loop.run_in_executor(self._executor, ask, grammar))
        except GaveUp as error:
            return _Kept(str(error), self._clock() + GAVE_UP_S)
        finally:
            self._num_waiting -= 1


class InProcess:
    """For programs that write their grammars themselves."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self._tokenizer)

    def reason_against(self, grammar: str) -> str:
        return reason_against(self._vocabulary, grammar)


class InChild:
    """A process that is started for the first grammar, and again for the next one if a grammar
    takes too long or brings it down."""

    def __init__(
        self, folder: Path, limit_s: float = LIMIT_S, command: Sequence[str] = COMMAND
    ) -> None:
        self._folder = folder
        self._limit_s = limit_s
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._stop: Callable[[], object] = lambda: None

    def reason_against(self, grammar: str) -> str:
        if self._process is None:
            self._start()
        found = self._tell(grammar, self._limit_s)
        if found is not None:
            return found
        self.close()
        raise GaveUp(f"it takes longer than {self._limit_s:g} s to compile, or too much memory")

    def close(self) -> None:
        self._process = None
        self._stop()

    def _start(self) -> None:
        """Raises `Unavailable`."""
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what a compiler says when it falls may quote a client
            text=True,
        )
        self._process = process
        self._stop = weakref.finalize(self, _end, process)
        if self._tell(str(self._folder), START_S) is None:
            self.close()
            raise Unavailable("the process that compiles grammars did not start; try again later")

    def _tell(self, message: str, limit_s: float) -> str | None:
        """The answer, None if there is none in time."""
        assert self._process is not None
        told, heard = self._process.stdin, self._process.stdout
        assert told is not None
        assert heard is not None
        try:
            told.write(json.dumps(message) + "\n")
            told.flush()
        except BrokenPipeError:
            return None
        if not select.select([heard], [], [], limit_s)[0]:
            return None
        line = heard.readline()
        return str(json.loads(line)) if line else None


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    with process:  # closes the pipes and waits
        pass
