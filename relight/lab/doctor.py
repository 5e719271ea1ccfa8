"""Says what this machine can and cannot do for Relight, and what to do. Needs no checkpoint.

The first thing to paste in a report.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from relight import __version__
from relight.base.official import V4_FLASH
from relight.base.settings import Settings
from relight.base.tensors import backbone_tensors
from relight.engine.assemble import choose_device
from relight.kernels.cuda_tools import LINEAR, VARIANTS, select
from relight.kernels.device import is_at_least_volta
from relight.kernels.select import AUTO, OPS
from relight.lab.audit import Audit, Promise
from relight.lab.inprocess import start_in_process
from relight.lab.machine import Machine, read_machine
from relight.lab.synth import TINY, synth

GIB = 2**30
INSTALL = (
    "python -m pip install 'relight[cuda]' brings what kernels are compiled and launched by; "
    "without it every op runs its torch definition"
)


class Finding(msgspec.Struct, frozen=True):
    """Something that will not work, or not well, and the remedy."""

    problem: str
    remedy: str


class Variant(msgspec.Struct, frozen=True):
    """The form of an op that runs by default, per family."""

    op: str
    prefill: str
    step: str


class Report(msgspec.Struct, frozen=True):
    relight: str
    machine: Machine
    variants: tuple[Variant, ...]
    promises: tuple[Promise, ...]
    findings: tuple[Finding, ...]


def examine(*, audit: bool = True) -> Report:
    """`audit` checks the promises, too, which takes some seconds."""
    machine = read_machine()
    device = choose_device("auto")
    promises = quick_audit() if audit else ()
    found = (*findings(machine), *refused(device), *broken(promises))
    return Report(__version__, machine, variants(device), promises, found)


def quick_audit() -> tuple[Promise, ...]:
    """The audit of a small random model on this machine's device; one thread, which is quickest for
    so small a model, and eager steps, except where threads or recordings are what is compared."""
    with tempfile.TemporaryDirectory() as folder:
        synth(replace(TINY, vocab_size=512), Path(folder), tokenizer=None)
        settings = Settings(model=folder, threads=1, graphs="off")
        return tuple(Audit(settings, start_in_process, tokens=4).promises())


def broken(promises: Sequence[Promise]) -> list[Finding]:
    return [
        Finding(
            f"promise not kept: {promise.text} ({promise.detail})",
            "report it with this page; text may change with load on this machine",
        )
        for promise in promises
        if promise.verdict == "not kept"
    ]


def variants(device: torch.device) -> tuple[Variant, ...]:
    """By `--kernels auto`, before any is tried; why not others is `refused` and `_speed`."""
    chosen = select(AUTO, device, lambda text: None)
    return tuple(
        Variant(op, chosen.variant(op, "prefill"), chosen.variant(op, "step")) for op in OPS
    )


def refused(device: torch.device) -> list[Finding]:
    """Why kernels that are asked for by name would not run on a CUDA device, once a reason."""
    if device.type != "cuda":
        return []
    heard: list[str] = []
    select(LINEAR.name, device, heard.append)
    remedy = INSTALL if is_at_least_volta(device) else "nothing to do: the model runs without them"
    return [Finding(text, remedy) for text in heard]


def findings(machine: Machine) -> tuple[Finding, ...]:
    return (*_accelerator(machine), *_memory(machine), *_speed(machine))


def _accelerator(machine: Machine) -> list[Finding]:
    if machine.accelerators:
        return []
    if machine.driver is not None and machine.torch_build == "CPU only":
        return [
            Finding(
                f"driver {machine.driver} is here, but torch {machine.torch} is a CPU build",
                "install a CUDA build of torch into this environment",
            )
        ]
    if machine.torch_build != "CPU only":
        return [
            Finding(
                f"torch is built for {machine.torch_build} and finds no device",
                "check that nvidia-smi (or rocm-smi) lists the device and that the driver is new "
                "enough for this build; until then the model runs on the CPU",
            )
        ]
    return [Finding("no accelerator", "the model runs on the CPU; nothing to do if that is meant")]


def _memory(machine: Machine) -> list[Finding]:
    """Whether the weights of the full V4-Flash fit, which is what most people want to know."""
    need = sum(spec.nbytes for spec in backbone_tensors(V4_FLASH))
    if machine.accelerators:
        where = "each accelerator"
        have = min((a.free_bytes or 0) for a in machine.accelerators)
    else:
        where, have = "memory", machine.available_bytes or 0
    if have >= need:
        return []
    return [
        Finding(
            f"the full DeepSeek-V4-Flash has {need / GIB:.1f} GiB of weights; "
            f"{have / GIB:.1f} GiB of {where} is free",
            "serve a smaller checkpoint of the same layout (relight synth writes one), "
            "or use a machine with more memory",
        )
    ]


def _speed(machine: Machine) -> list[Finding]:
    if machine.accelerators and machine.torch_build.startswith("CUDA"):
        here = {f"sm_{one.capability.replace('.', '')}" for one in machine.accelerators}
        new = dict.fromkeys(one.op for one in VARIANTS if not here.issubset(one.proven))
        if not new:
            return []
        return [
            Finding(
                f"kernels for {', '.join(new)} run only if they are asked for: "
                f"no run on {', '.join(sorted(here))} has proven them yet",
                "--kernels cuda builds them and tries each beside its torch definition before it "
                "runs; do not judge speed by this version without it",
            )
        ]
    device = "this accelerator" if machine.accelerators else "the CPU"
    return [
        Finding(
            f"there are no fast kernels for {device}: every op runs its torch definition",
            "results are exact; do not judge speed by this version",
        )
    ]
