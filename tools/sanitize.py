"""Launches every kernel under the tools of compute-sanitizer, all at once: accesses outside of
memory, races in shared memory, barriers that some threads miss, memory that nobody has written.

    python -m tools.sanitize --out FILE [--seconds 70] [--tools memcheck,racecheck]

Where the program is not there, or does not run on the machine, that is told and is no fault.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

PROGRAM = "compute-sanitizer"
FOLDERS = (Path("/usr/local/cuda/bin"), Path("/opt/cuda/bin"))
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
LOG_LINES = 80
DONE = "all kernels were launched"
ROOT = Path(__file__).parents[1]

Found = dict[str, Any]


def program() -> str | None:
    some = (folder / PROGRAM for folder in FOLDERS)
    return shutil.which(PROGRAM) or next((str(path) for path in some if path.exists()), None)


def command(path: str, tool: str, entries: Collection[str]) -> list[str]:
    """Only our kernels are looked at; initcheck must know what torch's have written, too."""
    options = ["--tool", tool, "--print-limit", "200"]
    if tool != "initcheck":
        for entry in sorted(entries):
            options += ["--kernel-name", f"kernel_name={entry}"]
    return [path, *options, sys.executable, "-m", "tools.sanitize", "--launch"]


def judged(log: str, entries: Collection[str]) -> Found:
    """Of what a tool printed. What it says of others' kernels is counted apart, and so are calls
    that the driver refused: memcheck reports every one, as those by which cuda-bindings finds out
    what a driver has. A refusal that matters is raised, and then the launches do not end."""
    lines = log.splitlines()
    told = [line for line in lines if line.startswith("=========")]
    named = [name for line in told for name in re.findall(r"\bat (\w+)[(+]", line)]
    ours = sorted({name for name in named if name in entries})
    total = re.search(r"SUMMARY: (\d+)", log)
    found: Found = {"kernels": ours, "log": told[:LOG_LINES]}
    if ours:
        return {**found, "good": False, "words": f"faults in {', '.join(ours)}"}
    if DONE not in log:
        refused = re.search(r"(?i)device not supported", log)
        words = "does not run on this machine" if refused else "did not come to its end"
        return {**found, "good": bool(refused), "words": words, "log": lines[-LOG_LINES:]}
    if total is None:
        return {**found, "good": False, "words": "ended without a summary"}
    calls = Counter(re.findall(r"Program hit (\w+) .*on CUDA API call to (\w+)", "\n".join(told)))
    refused_calls = [f"{n} of {call} ({why})" for (why, call), n in calls.most_common()]
    words = f"clean; calls refused: {', '.join(refused_calls)}" if calls else "clean"
    if others := int(total[1]) - calls.total():
        words += f"; {others} in kernels of others"
    return {**found, "good": True, "words": words}


def launch_all() -> None:
    """Each trial's kernels, with several rows and with one."""
    import torch

    from relight.kernels.cuda_tools import toolbox
    from relight.kernels.trials import trials

    device = torch.device("cuda", torch.cuda.current_device())
    for trial in trials(toolbox(device, print), device):
        x = trial.inputs()
        for rows in (x, x[:1]):
            trial.kernel(rows)
            torch.cuda.synchronize()
        print(trial.variant.op, trial.variant.family, trial.shape, flush=True)
    print(DONE, flush=True)


def entries() -> set[str]:
    from relight.kernels.catalogue import kernels

    return {kernel.entry for kernel in kernels("sm_90")}


def run(path: str, tools: Collection[str], seconds: float) -> dict[str, Found]:
    ours, deadline_s = entries(), time.monotonic() + seconds
    # Each tensor has memory of its own, so that what lies behind it is nobody's.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONUNBUFFERED": "1"}
    found: dict[str, Found] = {}
    with tempfile.TemporaryDirectory() as folder:
        started = {}
        for tool in tools:
            with (Path(folder) / tool).open("w") as log:
                started[tool] = subprocess.Popen(
                    command(path, tool, ours),
                    cwd=ROOT,
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        for tool, process in started.items():
            try:
                process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            found[tool] = judged((Path(folder) / tool).read_text(errors="replace"), ours)
            print(tool, found[tool]["words"], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=70.0)
    parser.add_argument("--tools", default=",".join(TOOLS), help="of " + ", ".join(TOOLS))
    parser.add_argument("--launch", action="store_true", help="the launches, without a tool")
    args = parser.parse_args()
    if args.launch:
        launch_all()
        return
    path = program()
    result: Found = {"program": path, "tools": {}}
    if path is None:
        print(f"{PROGRAM} is not there")
    else:
        result["tools"] = run(path, args.tools.split(","), args.seconds)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if all(one["good"] for one in result["tools"].values()) else 1)


if __name__ == "__main__":
    main()
