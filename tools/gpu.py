"""Everything that needs an accelerator, in one call of nine minutes: kernels built, checked and
timed, the step benchmark, a model of real size; then, beside each other, what no time decides: the
tests, kernels in the form for Volta, the promises, text compared between all forms of a step, and
kernels under compute-sanitizer.

    python -m tools.gpu --out DIR [--device cuda] [--minutes 9] [--stages texts,step] [--quick]
                        [--ptx FOLDER | --nvrtc DIR]

FOLDER has code for Volta, or DIR an NVRTC of CUDA 12 that makes it (tools/volta.py).

Each stage is a process with a share of the time (what one leaves, the next of its lane may use). It
writes DIR/<stage>.json as it goes, so that a stage which fails or runs out of time leaves what it
found, and the next one runs all the same. DIR/summary.json has one line a stage; it is printed
last. The files are committed under docs/gpu; `make check` says when the sources have moved on
since. Exits with 1 if a stage did not end well.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tools.about import about
from tools.gpu_stages import BEFORE, MINUTES, STAGES, Found, Job, Stage

ROOT = Path(__file__).parents[1]
LEAST_S = 10.0
"""With less time left a stage is not begun."""
MEMORY = Path("/dev/shm")
ROOM_BYTES = 32 * 2**30
"""With as much of it free scratch files, of which a checkpoint has 16 GB, are in memory."""
LOG_BYTES = 20_000
"""Of the end of what a stage printed: kept with its result."""
TIMED_OUT = 124
END_S = 5.0
"""For a stage that is asked to end what it has begun."""


@dataclass(frozen=True)
class Call:
    """One for all stages; ends at `end_s` by its clock."""

    out: Path
    device: str
    end_s: float
    clock: Callable[[], float]
    quick: bool = False
    ptx: Path | None = None
    nvrtc: Path | None = None
    about: Found = field(default_factory=dict)
    lines: dict[str, Found] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, stages: Sequence[Stage], saved_s: float = 0.0) -> None:
        """One after the other, with so much more time than their own."""
        for stage in stages:
            limit_s = min(self.end_s - self.clock(), stage.seconds + saved_s)
            file = self.out / f"{stage.name}.json"
            if limit_s < LEAST_S:
                file.unlink(missing_ok=True)
                line: Found = {"stage": stage.name, "good": False, "words": "no time was left"}
            else:
                with tempfile.TemporaryDirectory(dir=scratch_place()) as scratch:
                    if file.exists():  # what an earlier call found is not what this one did
                        shutil.move(file, Path(scratch) / BEFORE)
                    job = Job(
                        file,
                        Path(scratch),
                        self.device,
                        limit_s,
                        self.quick,
                        self.ptx,
                        self.nvrtc,
                    )
                    line, took_s = _run(stage, job, self.about, self.clock)
                saved_s = max(0.0, stage.seconds + saved_s - took_s)
            self._note(line)

    def run_beside(self, lanes: Collection[Sequence[Stage]]) -> None:
        """Each has all the time that is left."""
        left_s = self.end_s - self.clock()
        with ThreadPoolExecutor(len(lanes)) as pool:
            for done in [
                pool.submit(self.run, lane, max(0.0, left_s - sum(one.seconds for one in lane)))
                for lane in lanes
            ]:
                done.result()

    def _note(self, line: Found) -> None:
        with self.lock:
            self.lines[line["stage"]] = line
            _write(self.out / "summary.json", {**self.about, "stages": [*self.lines.values()]})
            how = "good" if line["good"] else "NOT GOOD"
            print(f"{line['stage']}: {how}: {line['words']}", flush=True)


def run_stages(
    stages: Iterable[Stage],
    out: Path,
    *,
    device: str,
    seconds: float,
    quick: bool = False,
    ptx: Path | None = None,
    nvrtc: Path | None = None,
    about: Found | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Found]:
    """One line for each stage, as they ended."""
    out.mkdir(parents=True, exist_ok=True)
    call = Call(out, device, clock() + seconds, clock, quick, ptx, nvrtc, about or {})
    lanes: dict[str, list[Stage]] = {}
    for stage in stages:
        lanes.setdefault(stage.lane, []).append(stage)
    call.run(lanes.pop("", []))
    if lanes:
        call.run_beside(lanes.values())
    return [*call.lines.values()]


def scratch_place() -> Path | None:
    """None: where temporary files are by default."""
    try:
        return MEMORY if shutil.disk_usage(MEMORY).free >= ROOM_BYTES else None
    except OSError:
        return None


def _run(stage: Stage, job: Job, about: Found, clock: Callable[[], float]) -> tuple[Found, float]:
    begun_s = clock()
    code, log = call([sys.executable, *stage.command(job)], job, stage.environment)
    took_s = clock() - begun_s
    found = _read(job.file)
    good, words = stage.judge(found)
    if code == TIMED_OUT:
        words = f"stopped after {job.seconds:.0f} s; {words}"
    elif code and good:
        words = f"ended with {code}; {words}"
    good &= code == 0
    ran: Found = {"exit_code": code, "seconds": round(took_s, 1), "good": good, "words": words}
    _write(job.file, {**about, **found, "ran": {**ran, "log": log[-LOG_BYTES:].splitlines()}})
    if not good:
        print(log[-3000:], flush=True)
    return {"stage": stage.name, **ran}, took_s


def call(command: Sequence[str], job: Job, environment: dict[str, str]) -> tuple[int, str]:
    """Exit code and output of a command that runs from the repository's root."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    log = job.scratch / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **environment},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(job.seconds)
        except subprocess.TimeoutExpired:
            code = TIMED_OUT
        finally:
            if process.poll() is None:
                # What it has started, as workers of pytest, would keep the device and its memory.
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(END_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
    return code, log.read_text(errors="replace")


def _read(file: Path) -> Found:
    try:
        found: Found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found


def _write(file: Path, found: Found) -> None:
    file.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    names = [stage.name for stage in STAGES]
    parser.add_argument("--stages", default=",".join(names), help="of " + ", ".join(names))
    parser.add_argument("--quick", action="store_true", help="small sizes, and no kernel is timed")
    parser.add_argument("--ptx", type=Path, help="folder of PTX for sm70")
    parser.add_argument("--nvrtc", type=Path, help="folder with NVRTC of CUDA 12, for sm70")
    args = parser.parse_args()
    chosen = args.stages.split(",")
    unknown = [name for name in chosen if name not in names]
    if unknown:
        parser.error(f"no stage {', '.join(unknown)}; there are {', '.join(names)}")
    stages = [stage for stage in STAGES if stage.name in chosen]
    lines = run_stages(
        stages,
        args.out,
        device=args.device,
        seconds=60 * args.minutes,
        quick=args.quick,
        ptx=args.ptx and args.ptx.resolve(),
        nvrtc=args.nvrtc and args.nvrtc.resolve(),
        about=about(args.device),
    )
    sys.exit(0 if all(line["good"] for line in lines) else 1)


if __name__ == "__main__":
    main()
