"""Runs one command and ends it, with all that descends from it, when its own input ends. Knows no
server.

    python -m relight.bench.keeper COMMAND …

Whoever started it may die by whatever cause: the pipe to it is closed then, and nothing is left
behind. What leaves its parent becomes a child of this process (Linux), and is ended, too.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from relight.bench import process

GRACE_S = 20.0
"""After SIGTERM a server may finish what it does; then it is killed."""
POLL_S = 0.05
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Those that still run; the dead ones are buried on the way."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return [pid for pid in process.family(os.getpid())[1:] if not process.is_zombie(pid)]


def end(grace_s: float = GRACE_S) -> None:
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
        for pid in descendants():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        until = time.monotonic() + patience_s
        while descendants() and time.monotonic() < until:
            time.sleep(POLL_S)


def main(argv: list[str]) -> int:
    adopt_orphans()
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def listen() -> None:
        sys.stdin.buffer.read()
        over.set()

    try:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as problem:
        print(f"{argv[0]}: {problem.strerror}", flush=True)
        return 127
    threading.Thread(target=listen, daemon=True).start()
    while not over.wait(POLL_S) and child.poll() is None:
        pass
    code = child.poll()
    end()
    # The grave digger may have taken the child's code; then it was ended by us.
    return code if code is not None else 0


if __name__ == "__main__":
    # Not sys.exit: a thread that still reads its input would hold the lock of it.
    sys.stdout.flush()
    os._exit(main(sys.argv[1:]))
