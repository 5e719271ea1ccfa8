"""Reads what this machine is: processor, memory, compiler, accelerator. Judges nothing.

Every reader gives None or nothing where the system does not tell; none of them raises.
"""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import torch

MATRIX_FLAGS = (
    *("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("avx_vnni", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)
"""Processor features that CPU kernels can be chosen by, x86 and then Arm."""


class Accelerator(msgspec.Struct, frozen=True):
    """`total_bytes` and `free_bytes` are None where torch's device module cannot tell."""

    device: str
    name: str
    capability: str
    total_bytes: int | None
    free_bytes: int | None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Memory is what this process may use: the host's, or less under a container's limit."""

    system: str
    python: str
    torch: str
    torch_build: str
    torch_threads: int
    processor: str
    cores: int
    flags: tuple[str, ...]
    memory_bytes: int | None
    available_bytes: int | None
    compiler: str | None
    driver: str | None
    accelerators: tuple[Accelerator, ...]


def read_machine() -> Machine:
    total, available = _memory()
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=str(torch.__version__),  # a subclass of str, which no encoder knows
        torch_build=_torch_build(),
        torch_threads=torch.get_num_threads(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        flags=_flags(),
        memory_bytes=total,
        available_bytes=available,
        compiler=_compiler(),
        driver=_driver(),
        accelerators=_accelerators(),
    )


def device_name(device: torch.device) -> str:
    """As its maker calls it."""
    if device.type == "cpu":
        return _processor()
    module = torch.get_device_module(device)
    return (
        str(module.get_device_name(device)) if hasattr(module, "get_device_name") else device.type
    )


def _torch_build() -> str:
    if torch.version.cuda is not None:
        return f"CUDA {torch.version.cuda}"
    if torch.version.hip is not None:
        return f"ROCm {torch.version.hip}"
    return "CPU only"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _processor() -> str:
    names = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return names[1] if names else platform.processor() or platform.machine()


def _flags() -> tuple[str, ...]:
    line = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    have = set(line[1].split()) if line else set()
    return tuple(flag for flag in MATRIX_FLAGS if flag in have)


def _memory() -> tuple[int | None, int | None]:
    """(total, available) bytes, the smaller of the host's figures and the control group's."""
    info = {
        match[1]: int(match[2]) * 1024
        for match in re.finditer(r"^(\w+):\s+(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE)
    }
    total, available = info.get("MemTotal"), info.get("MemAvailable")
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    used = _read("/sys/fs/cgroup/memory.current").strip()
    if total is not None and limit.isdigit() and used.isdigit() and int(limit) < total:
        left = max(0, int(limit) - int(used))
        return int(limit), left if available is None else min(available, left)
    return total, available


def _first_line(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def _compiler() -> str | None:
    for name in ("gcc", "cc", "clang"):
        if (line := _first_line(name, "--version")) is not None:
            return line
    return None


def _driver() -> str | None:
    return _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def _accelerators() -> tuple[Accelerator, ...]:
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind is None:
        return ()
    return tuple(
        _accelerator(kind.type, index) for index in range(torch.accelerator.device_count())
    )


def _accelerator(kind: str, index: int) -> Accelerator:
    # torch.accelerator has neither name nor memory; most device modules do, by these names.
    module = torch.get_device_module(kind)
    name = module.get_device_name(index) if hasattr(module, "get_device_name") else kind
    free, total = module.mem_get_info(index) if hasattr(module, "mem_get_info") else (None, None)
    capability = ""
    if hasattr(module, "get_device_capability"):
        found = module.get_device_capability(index)
        capability = ".".join(map(str, found)) if isinstance(found, tuple) else ""
    return Accelerator(f"{kind}:{index}", name, capability, total, free)
