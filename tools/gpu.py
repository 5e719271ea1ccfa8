"""Everything that needs an accelerator, in one call of ten minutes: kernels built, checked and
timed, the step benchmark, text compared between all forms of a step, the promises, a model of real
size, kernels under compute-sanitizer and in the form for Volta, and the tests, which get what the
others leave.

    python -m tools.gpu --out DIR [--device cuda] [--minutes 9] [--stages texts,step] [--quick]
                        [--ptx FOLDER | --nvrtc DIR]

FOLDER has code for Volta, or DIR an NVRTC of CUDA 12 that makes it (tools/volta.py).

Each stage is a process with a share of the time (what one leaves, the next may use) and writes
DIR/<stage>.json as it goes, so that a stage which fails or runs out of time leaves what it found,
and the next one runs all the same. DIR/summary.json has one line a stage; it is printed last. The
files are committed under docs/gpu; `make check` says when the sources have moved on since. Exits
with 1 if a stage did not end well.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools import audit, volta
from tools.about import about

ROOT = Path(__file__).parents[1]
LEAST_S = 10.0
"""With less time left a stage is not begun."""
MEMORY = Path("/dev/shm")
ROOM_BYTES = 32 * 2**30
"""With as much of it free scratch files, of which a checkpoint has 16 GB, are in memory."""
LOG_BYTES = 20_000
"""Of the end of what a stage printed: kept with its result."""
TIMED_OUT = 124

Found = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What a stage is told: where its JSON goes, a folder for what need not be kept, the device,
    the seconds that it has, and the folder of PTX for Volta, or of an NVRTC that makes it."""

    file: Path
    scratch: Path
    device: str
    seconds: float
    quick: bool
    ptx: Path | None = None
    nvrtc: Path | None = None


@dataclass(frozen=True)
class Stage:
    """`command` runs under `python`; `judge` says of what it found whether that is good, and sums
    it up in few words."""

    name: str
    seconds: float
    command: Callable[[Job], Sequence[str]]
    judge: Callable[[Found], tuple[bool, str]]
    environment: dict[str, str] = field(default_factory=dict)


def _tests(job: Job) -> Sequence[str]:
    return ("-m", "tools.gpu_tests", "--out", str(job.file), "--device", job.device,
            "--minutes", str((job.seconds - 5) / 60))  # fmt: skip


def _step_kernels(job: Job) -> Sequence[str]:
    quick = ("--quick",) if job.quick else ()
    minutes = str((job.seconds - 20) / 60)
    return ("-m", "tools.step_kernels", "--file", str(job.file), "--minutes", minutes, *quick)


def _texts(job: Job) -> Sequence[str]:
    return ("-m", "tools.equal_text", "--out", str(job.file), "--device", job.device)


def _audit(job: Job) -> Sequence[str]:
    return ("-m", "tools.audit", "--out", str(job.file), "--device", job.device,
            "--minutes", str((job.seconds - 5) / 60))  # fmt: skip


def _sm70(job: Job) -> Sequence[str]:
    folders = {"--ptx": job.ptx, "--nvrtc": job.nvrtc}
    given = [part for name, one in folders.items() if one for part in (name, str(one))]
    return ("-m", "tools.volta", "--out", str(job.file), "--device", job.device,
            "--minutes", str((job.seconds - 5) / 60), *given)  # fmt: skip


def _real(job: Job) -> Sequence[str]:
    folder = str(job.scratch / "model")
    return ("-m", "tools.answer", "--out", str(job.file), "--folder", folder, "--device",
            job.device)  # fmt: skip


def _step(job: Job) -> Sequence[str]:
    small = ("--small",) if job.quick else ()
    kernels = "cuda" if job.device.startswith("cuda") else "auto"
    return ("-m", "tools.time_step", "--out", str(job.file), "--device", job.device, "--kernels",
            kernels, "--seconds", str(job.seconds - 30), *small)  # fmt: skip


def _sanitize(job: Job) -> Sequence[str]:
    return ("-m", "tools.sanitize", "--out", str(job.file), "--seconds", str(job.seconds - 8))


def judge_tests(found: Found) -> tuple[bool, str]:
    counts: dict[str, int] = found.get("counts", {})
    return not found.get("not_passed") and counts.get("passed", 0) > 0, str(counts)


def judge_step_kernels(found: Found) -> tuple[bool, str]:
    checks = found.get("checks", [])
    bad = [f"{one['form']} {one['op']} {one['shape']}" for one in checks if not one["good"]]
    times = found.get("times", [])
    failed = [one["name"] for one in times if "failed" in one]
    words = f"{len(checks) - len(bad)} of {len(checks)} checks good, "
    words += f"{len(times) - len(failed)} times"
    words += f"; could not be timed: {', '.join(failed)}" if failed else ""
    return bool(checks) and not bad, f"{words}{'; bad: ' if bad else ''}{', '.join(bad)}"


def judge_sm70(found: Found) -> tuple[bool, str]:
    if "skipped" in found:
        return True, f"not tried: {found['skipped']}"
    if "missing" in found:
        return False, found["missing"]
    checks = found.get("checks", [])
    bad = [f"{one['op']} {one['family']} {one['shape']}" for one in checks if not one["good"]]
    words = f"{len(checks) - len(bad)} of {found.get('trials')} checks good"
    return volta.is_good(found), f"{words}{'; bad: ' if bad else ''}{', '.join(bad)}"


def judge_audit(found: Found) -> tuple[bool, str]:
    words = []
    for name, arm in found.get("arms", {}).items():
        counts = Counter(one["verdict"] for one in arm["promises"])
        words.append(f"{name}: {', '.join(f'{n} {verdict}' for verdict, n in counts.items())}")
        bad = (one for one in arm["promises"] if one["verdict"] != "kept")
        words += [f"{one['verdict'].upper()}: {one['text']} ({one['detail']})" for one in bad]
    words += [f"{name}: {why[0]}" for name, why in found.get("not_ended", {}).items()]
    return bool(words) and audit.is_kept(found), "; ".join(words)


def judge_arms(found: Found) -> tuple[bool, str]:
    arms = found.get("arms", {})
    words = "; ".join(f"{name}: {_arm(one)}" for name, one in arms.items())
    return bool(arms) and all(one.get("equal") for one in arms.values()), words


def _arm(found: Found) -> str:
    if "refused" in found:
        return f"refused ({found['refused']})"
    if not found.get("equal"):
        words = found.get("difference", "not equal")
    elif first := found.get("compared_with"):
        words = f"equal to {first}"
    else:
        words = "ran"
    return f"{words} ({found.get('step_ms')} ms a step)"


def judge_step(found: Found) -> tuple[bool, str]:
    models = found.get("models", {})
    words = [
        f"{name} {one['layer']} {one['rows']} rows at {one['context']:,}"
        f"{' on the same experts' if 'experts' in one else ''}: {one['us']:.0f} µs"
        for name, model in models.items()
        for one in model.get("layers", [])
        if one["rows"] == 1 or "experts" in one
    ]
    words += [f"{name}: no time for {left}" for name, model in models.items()
              for left in model.get("left", [])]  # fmt: skip
    return bool(models) and found.get("finished") is True, "; ".join(words)


def judge_sanitize(found: Found) -> tuple[bool, str]:
    tools = found.get("tools", {})
    if "program" in found and found["program"] is None:
        return True, "skipped: compute-sanitizer is not there"
    words = "; ".join(f"{name}: {one['words']}" for name, one in tools.items())
    return bool(tools) and all(one["good"] for one in tools.values()), words


STAGES = (
    Stage("step_kernels", 40, _step_kernels, judge_step_kernels),  # took 24 s of an H200
    Stage("step", 75, _step, judge_step),  # 40 to 70
    Stage("sm70", 45, _sm70, judge_sm70),
    Stage("texts", 105, _texts, judge_arms),  # 100
    Stage("audit", 45, _audit, judge_audit),
    Stage("answers", 115, _real, judge_arms),  # 140, most of it to write 16 GB to a disk
    Stage("sanitize", 50, _sanitize, judge_sanitize),  # 49
    Stage("tests", 65, _tests, judge_tests, {"OMP_NUM_THREADS": "1"}),
)
"""Seconds add up to a call's nine minutes, so that the last one gets all that was left."""


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
    """One line for each stage, in order."""
    out.mkdir(parents=True, exist_ok=True)
    begun_s, saved_s, lines = clock(), 0.0, []
    for stage in stages:
        left_s = seconds - (clock() - begun_s)
        limit_s = min(left_s, stage.seconds + saved_s)
        file = out / f"{stage.name}.json"
        file.unlink(missing_ok=True)  # what an earlier call found is not what this one did
        if limit_s < LEAST_S:
            line: Found = {"stage": stage.name, "good": False, "words": "no time was left"}
        else:
            with tempfile.TemporaryDirectory(dir=scratch_place()) as scratch:
                job = Job(file, Path(scratch), device, limit_s, quick, ptx, nvrtc)
                line, took_s = _run(stage, job, about or {}, clock)
            saved_s = max(0.0, stage.seconds + saved_s - took_s)
        lines.append(line)
        _write(out / "summary.json", {**(about or {}), "stages": lines})
        print(
            f"{stage.name}: {'good' if line['good'] else 'NOT GOOD'}: {line['words']}", flush=True
        )
    return lines


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
    parser.add_argument("--minutes", type=float, default=9.0)
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
