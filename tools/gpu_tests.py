"""Runs the tests marked gpu and writes their outcomes.

    python -m tools.gpu_tests --out FILE [--device cuda] [--minutes 3] [--paths "tests/engine"]

Those come first that did not pass, or did not come to run, by the results that are committed.
Outcomes are written as they come (`gpu_report`), so that a run which is cut short still tells them.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.about import about

PATHS = "relight/kernels tests/engine tests/model tests/cache"
"""Where tests are marked."""
KNOWN = Path(__file__).parents[1] / "docs" / "gpu" / "tests.json"
TIMED_OUT = 124


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--paths", default=PATHS)
    parser.add_argument("--known", type=Path, default=KNOWN, help="such a file of an earlier run")
    args = parser.parse_args()
    # So that `run` ends what it has begun, where it is itself asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TIMED_OUT))
    with tempfile.TemporaryDirectory() as scratch:
        known = Path(scratch) / "known.json"  # OUT may be the same file
        if args.known.exists():
            shutil.copy(args.known, known)
        sys.exit(_tests(args, known))


def _tests(args: argparse.Namespace, known: Path) -> int:
    args.out.write_text(json.dumps(about(args.device), indent=1) + "\n")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "--tb=short", "--durations=15"]
    command += ["-p", "no:cacheprovider", f"--device={args.device}", "-n", str(args.workers)]
    command += ["--dist", "worksteal", "-p", "tools.gpu_report", f"--report={args.out}"]
    command += [f"--known={known}", *args.paths.split()]
    return run(command, 60 * args.minutes)


def run(command: Sequence[str], seconds: float) -> int:
    """The exit code. When the time is over, also where nothing is printed, it ends with all that it
    has started: tests that hang, and their workers."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    main()
