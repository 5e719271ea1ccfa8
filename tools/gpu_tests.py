"""Runs the tests marked gpu and writes their outcomes.

    python -m tools.gpu_tests --out FILE [--device cuda] [--seconds 200] [--paths "tests/engine"]

Outcomes are read off the output as it comes, so that a run which is cut short still tells them.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

PATHS = "relight/kernels tests/engine tests/model tests/cache"
"""Where tests are marked."""
ITEMS = re.compile(r"^\d+ workers? \[(\d+) items?\]")
OUTCOME = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED) (\S+?::.+?)(?:\s+\[ *\d+%\])?$")
WRITE_S = 5.0


def outcome(line: str) -> tuple[str, str] | None:
    """(test, outcome) of a line of a run with workers."""
    match = OUTCOME.search(line.rstrip())
    return (match[2].strip(), match[1].lower()) if match else None


def announced(line: str) -> int | None:
    """How many tests there are, of the line that says so once all workers have collected them."""
    match = ITEMS.match(line)
    return int(match[1]) if match else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--paths", default=PATHS)
    args = parser.parse_args()
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "--tb=short", "--durations=15"]
    command += ["-p", "no:cacheprovider", f"--device={args.device}", "-n", str(args.workers)]
    command += ["--dist", "worksteal", *args.paths.split()]
    sys.exit(run(command, args.out, args.seconds))


def run(command: Sequence[str], out: Path, seconds: float) -> int:
    """The exit code. When the time is over, also where nothing is printed, it ends with all that it
    has started: tests that hang, and their workers."""
    written, outcomes, count = time.monotonic(), dict[str, str](), 0
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    limit = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
    limit.start()
    try:
        for line in process.stdout:
            sys.stdout.write(line)
            count = announced(line) or count
            found = outcome(line)
            if found:
                outcomes[found[0]] = found[1]
            if time.monotonic() - written > WRITE_S:
                written = time.monotonic()
                write(out, outcomes, count)
        code = process.wait()
    finally:
        limit.cancel()
        process.stdout.close()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        write(out, outcomes, count)
    return code


def write(file: Path, outcomes: dict[str, str], count: int) -> None:
    """Of `count` tests those without an outcome never came to their end."""
    bad = sorted(name for name, found in outcomes.items() if found in ("failed", "error"))
    counts = Counter(outcomes.values())
    if count > len(outcomes):
        counts["not_run"] = count - len(outcomes)
    found = {"counts": counts, "not_passed": bad, "outcomes": outcomes}
    file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
