"""Prints the doctor's report as tables. Judges nothing."""

from collections.abc import Iterator

from relight.cli import show
from relight.lab.doctor import Report
from relight.lab.machine import Machine


def print_report(report: Report) -> None:
    rows = [("relight", report.relight), *_facts(report.machine)]
    show.table("Machine", ("what", "found"), rows)
    show.table(
        "Kernels",
        ("op", "given tokens", "generated tokens"),
        [(v.op, v.prefill, v.step) for v in report.variants],
    )
    show.table(
        "Promises",
        ("promise", "verdict", "how"),
        [(promise.text, promise.verdict, promise.detail) for promise in report.promises],
    )
    show.table(
        "What will not work",
        ("problem", "what to do"),
        [(finding.problem, finding.remedy) for finding in report.findings],
    )


def _facts(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "system", machine.system
    yield "python", machine.python
    yield "torch", f"{machine.torch} ({machine.torch_build}), {machine.torch_threads} threads"
    yield "processor", f"{machine.processor}, {machine.cores} cores"
    yield "features", " ".join(machine.flags) or "none that kernels are chosen by"
    yield "memory", f"{_gib(machine.memory_bytes)}, {_gib(machine.available_bytes)} available"
    yield "compiler", machine.compiler or "none"
    yield "driver", machine.driver or "none"
    for device in machine.accelerators:
        capability = f", capability {device.capability}" if device.capability else ""
        memory = f"{_gib(device.total_bytes)}, {_gib(device.free_bytes)} free"
        yield device.device, f"{device.name}{capability}, {memory}"
    if not machine.accelerators:
        yield "accelerator", "none"


def _gib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 2**30:.1f} GiB"
