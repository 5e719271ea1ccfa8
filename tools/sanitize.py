"""Launches every kernel under the tools of compute-sanitizer, all at once: accesses outside of
memory, races in shared memory, barriers that some threads miss, memory that nobody has written.

    python -m tools.sanitize --out FILE [--seconds 70] [--tools memcheck,racecheck]

What costs time is the host's: a tool rewrites the code of each kernel that is loaded. So kernels
are compiled before, without a tool, and each tool has a process for every part of the launches.
Where the program is not there, or does not run on the machine, that is told and is no fault.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

PROGRAM = "compute-sanitizer"
FOLDERS = (Path("/usr/local/cuda/bin"), Path("/opt/cuda/bin"))
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
LOOK_AT_MEMORY = ("memcheck", "initcheck")
LOG_LINES = 80
DONE = "all kernels were launched"
LAUNCHED = "launched: "
PARTS = ("made", "given", "between", "streams")
"""Of `tools.launches`, which this process need not load."""
ROOT = Path(__file__).parents[1]

Found = dict[str, Any]


def program() -> str | None:
    some = (folder / PROGRAM for folder in FOLDERS)
    return shutil.which(PROGRAM) or next((str(path) for path in some if path.exists()), None)


def command(path: str, tool: str, part: str, entries: Collection[str]) -> list[str]:
    """Only our kernels are looked at; initcheck must know what torch's have written, too. memcheck
    would tell each call that the driver refused, as those by which cuda-bindings finds out what a
    driver has: a refusal that matters is raised, and then the launches do not end."""
    options = ["--tool", tool, "--print-limit", "200", "--show-backtrace", "device"]
    if tool == "memcheck":
        options += ["--report-api-errors", "no"]
    if tool != "initcheck":
        for entry in sorted(entries):
            options += ["--kernel-name", f"kernel_name={entry}"]
    return [path, *options, sys.executable, "-m", "tools.sanitize", "--launch", part]


def environment(tool: str) -> dict[str, str]:
    """For tools that look at memory each tensor has its own, so that what lies behind it is
    nobody's, and what was written for another one does not count."""
    alone = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if tool in LOOK_AT_MEMORY else {}
    return {**os.environ, **alone, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def judged(log: str, entries: Collection[str]) -> Found:
    """Of what a tool printed. What it says of others' kernels is counted apart."""
    lines = log.splitlines()
    told = [line for line in lines if line.startswith("=========")]
    named = [name for line in told for name in re.findall(r"\bat (\w+)[(+]", line)]
    ours = sorted({name for name in named if name in entries})
    total = re.search(r"SUMMARY: (\d+)", log)
    seconds = re.findall(r"^(\d+\.\d) s ", log, re.MULTILINE)
    found: Found = {
        "launched": [line.removeprefix(LAUNCHED) for line in lines if line.startswith(LAUNCHED)],
        "seconds": float(seconds[-1]) if seconds else None,
        "kernels": ours,
        "log": told[:LOG_LINES],
    }
    if ours:
        return {**found, "good": False, "words": f"faults in {', '.join(ours)}"}
    if DONE not in log:
        refused = re.search(r"(?i)device not supported", log)
        words = "does not run on this machine" if refused else "did not come to its end"
        return {**found, "good": bool(refused), "words": words, "log": lines[-LOG_LINES:]}
    if total is None:
        return {**found, "good": False, "words": "ended without a summary"}
    others = f"; {total[1]} in kernels of others" if int(total[1]) else ""
    return {**found, "good": True, "words": f"clean{others}"}


def together(parts: Mapping[str, Found]) -> Found:
    """Of one tool: its words are those of the parts that differ, or the same of all."""
    words = {name: one["words"] for name, one in parts.items()}
    same = len(set(words.values())) == 1
    said = next(iter(words.values())) if same else "; ".join(f"{k} {v}" for k, v in words.items())
    launched = sorted({name for one in parts.values() for name in one["launched"]})
    return {
        "good": all(one["good"] for one in parts.values()),
        "words": f"{said} ({len(launched)} kernels)",
        "launched": launched,
        "parts": {
            name: {key: value for key, value in one.items() if key != "launched"}
            for name, one in parts.items()
        },
    }


def launch(part: str) -> None:
    """Each kernel of a part, with several rows and with one."""
    begun_s = time.monotonic()
    import torch

    from relight.kernels.build import builder
    from relight.kernels.device import architecture
    from relight.kernels.launch import cuda_launcher
    from tools.launches import Noting, launches

    device = torch.device("cuda", torch.cuda.current_device())
    tools = Noting(builder(architecture(device), print), cuda_launcher(device))
    told = 0
    for name, work in launches(part, tools, device):
        work()
        torch.cuda.synchronize()
        for kernel in list(tools.noted)[told:]:
            print(f"{LAUNCHED}{kernel.name}", flush=True)
        told = len(tools.noted)
        print(f"{time.monotonic() - begun_s:.1f} s {name}", flush=True)
    print(DONE, flush=True)


def build() -> tuple[set[str], list[str]]:
    """Entry points of all kernels that will be launched, which are compiled now, and the names of
    those of the catalogue that will not."""
    import torch

    from relight.kernels.build import build_all, builder
    from relight.kernels.catalogue import kernels
    from relight.kernels.device import architecture
    from tools.launches import launched

    arch = architecture(torch.device("cuda"))
    wanted = dict.fromkeys(kernel for some in launched(arch).values() for kernel in some)
    made = builder(arch, lambda text: print(text, flush=True))
    built = [kernel for _, kernel, _ in build_all([(made, kernel) for kernel in wanted])]
    left = [kernel.name for kernel in kernels(arch) if kernel not in wanted]
    return {kernel.entry for kernel in built}, left


def run(path: str, tools: Collection[str], ours: set[str], seconds: float) -> dict[str, Found]:
    deadline_s, found = time.monotonic() + seconds, dict[str, dict[str, Found]]()
    with tempfile.TemporaryDirectory() as folder:
        started = {}
        for tool, part in itertools.product(tools, PARTS):
            log = Path(folder) / f"{tool} {part}"
            with log.open("w") as file:
                started[tool, part] = (
                    log,
                    subprocess.Popen(
                        command(path, tool, part, ours),
                        cwd=ROOT,
                        env=environment(tool),
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    ),
                )
        for (tool, part), (log, process) in started.items():
            try:
                process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            one = judged(log.read_text(errors="replace"), ours)
            found.setdefault(tool, {})[part] = one
            print(tool, part, one["words"], one["seconds"], flush=True)
    return {tool: together(parts) for tool, parts in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=70.0)
    parser.add_argument("--tools", default=",".join(TOOLS), help="of " + ", ".join(TOOLS))
    parser.add_argument("--launch", metavar="PART", help="the launches of a part, without a tool")
    args = parser.parse_args()
    if args.launch:
        launch(args.launch)
        return
    begun_s, path = time.monotonic(), program()
    result: Found = {"program": path, "tools": {}}
    if path is None:
        print(f"{PROGRAM} is not there")
    else:
        ours, result["not_launched"] = build()
        result["build_s"] = round(time.monotonic() - begun_s, 1)
        seconds = args.seconds - result["build_s"]
        result["tools"] = run(path, args.tools.split(","), ours, seconds)
        result["seconds"] = round(time.monotonic() - begun_s, 1)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if all(one["good"] for one in result["tools"].values()) else 1)


if __name__ == "__main__":
    main()
