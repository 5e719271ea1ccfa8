"""The stages of the call that needs an accelerator (tools/gpu.py): what runs, for how long, beside
what, and what makes its result good. Runs nothing."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools import audit, volta

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
    it up in few words. Stages without a lane run alone, in their order; then lanes run beside each
    other, the stages of one in their order."""

    name: str
    seconds: float
    command: Callable[[Job], Sequence[str]]
    judge: Callable[[Found], tuple[bool, str]]
    lane: str = ""
    environment: dict[str, str] = field(default_factory=dict)


def _minutes(job: Job) -> str:
    """For what begins to count when torch is loaded, which takes seconds."""
    return str((job.seconds - 12) / 60)


BEFORE = "before.json"
"""In a stage's scratch folder: what an earlier call wrote, if it did."""


def _tests(job: Job) -> Sequence[str]:
    before = job.scratch / BEFORE
    known = ("--known", str(before)) if before.exists() else ()
    return ("-m", "tools.gpu_tests", "--out", str(job.file), "--device", job.device,
            "--workers", "10", "--minutes", _minutes(job), *known)  # fmt: skip


def _step_kernels(job: Job) -> Sequence[str]:
    quick = ("--quick",) if job.quick else ()
    minutes = str((job.seconds - 20) / 60)
    return ("-m", "tools.step_kernels", "--file", str(job.file), "--minutes", minutes, *quick)


def _texts(job: Job) -> Sequence[str]:
    return ("-m", "tools.equal_text", "--out", str(job.file), "--device", job.device,
            "--workers", "10", "--minutes", _minutes(job))  # fmt: skip


def _audit(job: Job) -> Sequence[str]:
    return ("-m", "tools.audit", "--out", str(job.file), "--device", job.device,
            "--workers", "10", "--minutes", _minutes(job))  # fmt: skip


def _sm70(job: Job) -> Sequence[str]:
    folders = {"--ptx": job.ptx, "--nvrtc": job.nvrtc}
    given = [part for name, one in folders.items() if one for part in (name, str(one))]
    return ("-m", "tools.volta", "--out", str(job.file), "--device", job.device,
            "--workers", "6", "--minutes", _minutes(job), *given)  # fmt: skip


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
    if "step_ms" not in found:
        return str(found.get("difference", "equal" if found.get("equal") else "not equal"))
    if not found.get("equal"):
        words = found["difference"]
    elif first := found.get("compared_with"):
        words = f"equal to {first}"
    else:
        words = "ran"
    guesses = f", {found['right']} of {found['guessed']} guesses right"
    return f"{words} ({found['step_ms']} ms a step{guesses if found['guessed'] else ''})"


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


ONE_THREAD = {"OMP_NUM_THREADS": "1"}
STAGES = (
    Stage("step_kernels", 40, _step_kernels, judge_step_kernels),  # took 26 s of an H200
    Stage("step", 75, _step, judge_step),  # 50
    Stage(
        "answers", 115, _real, judge_arms
    ),  # 119 where scratch is in memory, 140 on a disk; most of it to write 16 GB to a disk
    Stage("tests", 235, _tests, judge_tests, "tests", ONE_THREAD),
    Stage("sanitize", 75, _sanitize, judge_sanitize, "tests", ONE_THREAD),
    Stage("sm70", 60, _sm70, judge_sm70, "checks"),
    Stage("audit", 125, _audit, judge_audit, "checks"),
    Stage("texts", 125, _texts, judge_arms, "checks", ONE_THREAD),
)
MINUTES = 9.0
