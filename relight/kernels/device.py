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


def cuda_architecture() -> str | None:
    """Of the CUDA device that torch has current, if there is any."""
    if not torch.cuda.is_available():
        return None
    return architecture(torch.device("cuda", torch.cuda.current_device()))


def is_at_least_volta(device: torch.device) -> bool:
    """Whether the CUDA kernels have a form for this CUDA device."""
    return torch.cuda.get_device_capability(device) >= (7, 0)


def has_native_bf16(device: torch.device) -> bool:
    """True from SM80 on. CPUs and unknown devices keep float32 streams, which every device has."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def free_bytes(device: torch.device, taken: int = 0) -> int:
    """Memory that state may take when so many bytes more are taken: on a GPU 90 % of what is free,
    since a step's scratch comes on top; on a CPU half of what the system calls available, since
    others live there too."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(0.9 * (free - taken))
    return (available_bytes() - taken) // 2


MEMINFO = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = MEMINFO, container: Path = CONTAINER) -> int:
    """RAM that can still be had: what the system calls available, and no more than what the limit
    of a container leaves, of whose use the pages of files can be given back."""
    available = _number(meminfo, "MemAvailable:") * 1024
    try:
        limit = (container / "memory.max").read_text()
        used = int((container / "memory.current").read_text())
    except OSError:
        return available  # no control group of version 2
    if limit.strip() == "max":
        return available
    return min(available, int(limit) - used + _number(container / "memory.stat", "file"))


def _number(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        key, *values = line.split()
        if key == name:
            return int(values[0])
    raise AssertionError(f"{file} has no {name}")


def memory_in_use(device: torch.device) -> int:
    """Bytes: on a GPU of torch's tensors, elsewhere of this process in RAM."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return _number(Path("/proc/self/status"), "VmRSS:") * 1024


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


def make_current(device: torch.device) -> None:
    """Of the CUDA devices this one is the calling thread's, as kernels need it that are launched
    past torch. In a new thread it is the first one."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def answers(device: torch.device) -> bool:
    """Whether the device still computes. After some faults of a kernel, as an address that is not
    there, a GPU does nothing more for this process."""
    try:
        return torch.ones(1, device=device).tolist() == [1.0]
    except torch.OutOfMemoryError:
        return True
    except RuntimeError:
        return False


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


def refill(target: Tensor, values: Sequence[int]) -> None:
    """Writes int64 values over all of a contiguous tensor. As with `upload`, the host does not
    wait."""
    pin = target.device.type != "cpu" and torch.accelerator.is_available()
    source = torch.tensor(values, dtype=torch.int64, pin_memory=pin)
    target.copy_(source.view(target.shape), non_blocking=True)


def send(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device. As with `upload`, the host does not wait."""
    if device.type == "cpu":
        return values
    if torch.accelerator.is_available():
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def download(tensor: Tensor) -> Tensor:
    """A copy on the host, which means something once an event after it has come."""
    return tensor.to("cpu", non_blocking=True, copy=True)
