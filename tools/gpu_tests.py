"""Runs the tests marked gpu and writes their outcomes.

    python -m tools.gpu_tests --out FILE [--device cuda] [--seconds 200] [--paths "tests/engine"]

Outcomes are read off the output as it comes, so that a run which is cut short still tells them.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

PATHS = (
    "relight/kernels tests/engine/test_graphs.py tests/engine/test_no_waiting.py "
    "tests/engine/test_recorded_draws.py tests/engine/test_recorded_guesses.py "
    "tests/engine/test_short_context.py tests/model/test_beside.py "
    "tests/model/test_promises.py tests/cache"
)
"""Two minutes of an H200's host; all that are marked take five: --paths tests relight/kernels."""
OUTCOME = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED) (\S+?::.+?)(?:\s+\[ *\d+%\])?$")
WRITE_S = 5.0


def outcome(line: str) -> tuple[str, str] | None:
    """(test, outcome) of a line of a run with workers."""
    match = OUTCOME.search(line.rstrip())
    return (match[2].strip(), match[1].lower()) if match else None


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
    begun = written = time.monotonic()
    outcomes: dict[str, str] = {}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            sys.stdout.write(line)
            found = outcome(line)
            if found:
                outcomes[found[0]] = found[1]
            now = time.monotonic()
            if now - written > WRITE_S:
                written = now
                write(args.out, outcomes)
            if now - begun > args.seconds:
                process.terminate()
    finally:
        process.wait()
        write(args.out, outcomes)
    sys.exit(process.returncode)


def write(file: Path, outcomes: dict[str, str]) -> None:
    bad = sorted(name for name, found in outcomes.items() if found in ("failed", "error"))
    found = {"counts": Counter(outcomes.values()), "not_passed": bad, "outcomes": outcomes}
    file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
