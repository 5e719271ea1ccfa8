"""Runs programs beside each other and takes what they tell as it comes. Knows no result.

What costs time on a device at first is the host's: to load kernels and start engines. A program
that takes the device down, hangs, or ends early loses nothing that it has told. Each has one thread
for ops of the host: with as many as cores in each, all would wait for each other.
"""

import json
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

MARK = "told: "
LOG_LINES = 40

Told = dict[str, Any]


def tell(told: Told) -> None:
    """Called by such a program."""
    print(MARK + json.dumps(told), flush=True)


def run_all(
    programs: Mapping[str, Sequence[str]],
    take: Callable[[str, Told], None],
    *,
    seconds: float,
    workers: int,
) -> dict[str, list[str]]:
    """By name, why a program did not come to its end, and what it printed last. `take` is called
    for one thing told at a time."""
    deadline_s = time.monotonic() + seconds
    lock = threading.Lock()

    def run(name: str) -> list[str]:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return ["no time was left"]
        process = subprocess.Popen(
            programs[name],
            # Unbuffered: what one that is killed printed last is what one wants to read.
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        limit, log = threading.Timer(left_s, stop), deque[str](maxlen=LOG_LINES)
        limit.start()
        try:
            for line in process.stdout:
                if line.startswith(MARK):
                    with lock:
                        take(name, json.loads(line.removeprefix(MARK)))
                else:
                    log.append(line.rstrip())
            code = process.wait()
        finally:
            limit.cancel()
            process.stdout.close()
        if late.is_set():
            return ["no time was left for all of it", *log]
        return [f"ended with {code}", *log] if code else []

    with ThreadPoolExecutor(workers) as pool:
        found = dict(zip(programs, pool.map(run, programs), strict=True))
    return {name: why for name, why in found.items() if why}
