"""What this machine is and how it fares: processor, memory, accelerators, power. Knows no server;
whether the server runs here is for others to find out.

Everything that a system does not offer is None or empty, never 0.
"""

import os
import platform
import re
import subprocess
from pathlib import Path

import msgspec

PROC = Path("/proc")
POWERCAP = Path("/sys/class/powercap")
DEVICE_FIELDS = (
    "name",
    "memory.total",
    "memory.free",
    "driver_version",
    "clocks.sm",
    "power.limit",
    "power.draw",
    "temperature.gpu",
)


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """An accelerator as its driver tells it: bytes, MHz, watts, degrees Celsius."""

    name: str
    memory_bytes: float | None
    free_bytes: float | None
    driver: str
    clock_mhz: float | None
    power_cap_w: float | None
    power_w: float | None
    temperature_c: float | None


def cpu_name() -> str:
    try:
        info = (PROC / "cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    return found[1] if found else platform.machine()


def memory(field: str) -> int | None:
    """Bytes by the name of `/proc/meminfo`: MemTotal, MemAvailable."""
    return kilobytes(PROC / "meminfo", field)


def kilobytes(path: Path, field: str) -> int | None:
    """A `Name:  123 kB` line of a file of the kernel, in bytes."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{field}:\s*(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def devices() -> list[Device]:
    """Of NVIDIA's driver, by the tool that comes with it; empty without one."""
    command = ["nvidia-smi", f"--query-gpu={','.join(DEVICE_FIELDS)}"]
    try:
        told = subprocess.run(
            [*command, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_devices(told)


def parse_devices(told: str) -> list[Device]:
    """Lines of `nvidia-smi --query-gpu`; `[N/A]` is None."""
    found = []
    for line in told.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(DEVICE_FIELDS):
            continue
        name, total, free, driver, clock, cap, draw, heat = values
        found.append(
            Device(
                name=name,
                memory_bytes=_number(total, 2**20),
                free_bytes=_number(free, 2**20),
                driver=driver,
                clock_mhz=_number(clock),
                power_cap_w=_number(cap),
                power_w=_number(draw),
                temperature_c=_number(heat),
            )
        )
    return found


def _number(text: str, unit: float = 1.0) -> float | None:
    try:
        return float(text) * unit
    except ValueError:
        return None


def package_energy_j(folder: Path = POWERCAP) -> float | None:
    """Joules that the processor's packages have used since some moment, by their own counter;
    None where the system offers none or lets only root read it."""
    total, found = 0.0, False
    for path in sorted(folder.glob("intel-rapl:?")):
        try:
            total += int((path / "energy_uj").read_text(encoding="ascii")) / 1e6
        except (OSError, ValueError):
            return None
        found = True
    return total if found else None


def cores() -> int:
    return os.cpu_count() or 1
