"""What a torch device is: its architecture, its memory, whether bf16 is native. Knows no op.

Beside the kernels this is the only place that asks the CUDA runtime; other rooms ask here.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor


def architecture(device: torch.device) -> str:
    """Names what decides the bits of a kernel: the device type and, of a GPU, its capability."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor}"
    if device.type == "cpu":
        return f"cpu {torch.backends.cpu.get_cpu_capability()}"
    return device.type


def has_native_bf16(device: torch.device) -> bool:
    """True from SM80 on. CPUs and unknown devices keep float32 streams, which every device has."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def free_bytes(device: torch.device) -> int:
    """Memory that state may take: on a GPU 90 % of what is free now, since a step's scratch comes
    on top; on a CPU half of what the system calls available, since others live there too."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(0.9 * free)
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 // 2
    raise AssertionError("/proc/meminfo has no MemAvailable")


def memory_in_use(device: torch.device) -> int:
    """Bytes: on a GPU of torch's tensors, elsewhere of this process in RAM."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("/proc/self/status has no VmRSS")


def memory_added(device: torch.device, run: Callable[[], object]) -> int:
    """Bytes that are in use while `run` runs, beside those before: on a GPU at most, elsewhere in
    the end."""
    before = memory_in_use(device)
    if device.type != "cuda":
        run()
        return max(0, memory_in_use(device) - before)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return torch.cuda.max_memory_allocated(device) - before


def upload(
    values: Sequence[float], device: torch.device, dtype: torch.dtype = torch.int64
) -> Tensor:
    """[len(values)]. The host does not wait for the device: a copy from memory that is not pinned
    would wait for all that was launched before it."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=dtype)
    pin = torch.accelerator.is_available()
    pinned = torch.tensor(values, dtype=dtype, pin_memory=pin)
    return pinned.to(device, non_blocking=True)


def send(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device. As with `upload`, the host does not wait."""
    if device.type == "cpu":
        return values
    if torch.accelerator.is_available():
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def download(tensor: Tensor) -> Tensor:
    """A copy on the host, which means something once an event after it has come."""
    return tensor.to("cpu", non_blocking=True)
