"""Everything that needs an accelerator, in one call: tests, a real-size model that answers,
timings.

    python tools/gpu.py --out DIR [--device cuda] [--minutes 9]

Writes DIR/foundation.json: device, versions, a hash of the sources that the results are about,
every test by id with its outcome, what the real-size model answered, and the layer's times. The
file is committed as docs/gpu/foundation.json; `make check` says when the sources have moved on
since. Exits with 1 if a test failed or the model did not answer.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tools.sources import sources_hash

ROOT = Path(__file__).parents[1]


def run(command: list[str], log: Path, limit_s: float, **environment: str) -> tuple[int, str]:
    """Runs a command from the repository's root; its output goes to the screen's log file."""
    with log.open("w") as file:
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": search_path(), **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=max(1.0, limit_s),
                check=False,
            )
            code = done.returncode
        except subprocess.TimeoutExpired:
            code = 124
    return code, log.read_text()


def search_path() -> str:
    return os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])


OUTCOME = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED) (\S+?::.+?)(?:\s+\[ *\d+%\])?$")


def tests(out: Path, device: str, workers: int, limit_s: float, which: str) -> dict[str, object]:
    """Outcomes are read off the log, so that a run that is cut short still tells them."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "--tb=short", "--durations=15"]
    command += ["-p", "no:cacheprovider", f"--device={device}", "-n", str(workers)]
    command += ["--dist", "worksteal", *which.split()]
    begun = time.monotonic()
    code, log = run(command, out / "tests.log", limit_s, OMP_NUM_THREADS="1")
    found = (OUTCOME.search(line) for line in log.splitlines())
    outcomes = {match[2].strip(): match[1].lower() for match in found if match}
    print(log[log.find("= FAILURES") :][-9000:] if "= FAILURES" in log else log[-1500:])
    return {
        "exit_code": code,
        "seconds": round(time.monotonic() - begun, 1),
        "counts": dict(Counter(outcomes.values())),
        "not_passed": sorted(name for name, outcome in outcomes.items() if outcome != "passed"),
        "outcomes": outcomes,
    }


def answers(out: Path, device: str, folder: Path, limit_s: float) -> dict[str, object]:
    """Four random layers of real size, every kind among them: synth, load, answer."""
    from relight.lab.synth import preset, synth

    begun = time.monotonic()
    synth(preset("v4-flash", 4), folder, seed=1, threads=os.cpu_count() or 1)
    wrote_s = time.monotonic() - begun
    script = ROOT / "tools" / "answer.py"
    command = [sys.executable, str(script), str(folder), device]
    code, log = run(command, out / "answer.log", limit_s)
    print(log[-3000:])
    lines = [line for line in log.splitlines() if line.startswith("{")]
    found = json.loads(lines[-1]) if lines else {}
    return {"exit_code": code, "synth_s": round(wrote_s, 1), **found}


def layer(out: Path, device: str, folder: Path, limit_s: float) -> dict[str, object]:
    script = ROOT / "tools" / "bench_layer.py"
    command = [sys.executable, str(script), "--folder", str(folder), "--device", device]
    command += ["--context", "4096", "--chunk", "2048"]
    code, log = run(command, out / "layer.log", limit_s)
    print(log[-2000:])
    lines = [line for line in log.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if code == 0 and lines else {"exit_code": code}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument(
        "--tests",
        default="tests/cache tests/engine tests/model relight/kernels",
        help="pytest paths",
    )
    parser.add_argument("--parts", default="answers,tests,layer")
    args = parser.parse_args()
    deadline = time.monotonic() + 60 * args.minutes
    args.out.mkdir(parents=True, exist_ok=True)
    import torch

    result: dict[str, object] = {
        "sources": sources_hash(),
        "device": torch.get_device_module(args.device).get_device_name(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": "python tools/gpu.py --out DIR",
    }
    good = True
    found: dict[str, object]
    with tempfile.TemporaryDirectory() as scratch:
        for part in args.parts.split(","):
            left = deadline - time.monotonic()
            if part == "tests":
                result[part] = found = tests(args.out, args.device, args.workers, left, args.tests)
            elif part == "answers":
                result[part] = found = answers(args.out, args.device, Path(scratch) / "model", left)
            else:
                result[part] = found = layer(args.out, args.device, Path(scratch) / "layer", left)
            good &= found.get("exit_code", 0) == 0
            (args.out / "foundation.json").write_text(json.dumps(result, indent=1) + "\n")
    for part in args.parts.split(","):
        shown = result.get(part)
        if isinstance(shown, dict):
            print(part, json.dumps({k: v for k, v in shown.items() if k != "outcomes"}, indent=1))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
