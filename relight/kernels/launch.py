"""Loads compiled kernels and launches them, through cuda-core. Knows no op.

Work goes to the stream that torch has current, so it keeps its place among torch's own and is
recorded when torch records a graph.
"""

import ctypes
import importlib
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from relight.base.errors import BadSetting
from relight.kernels.cubins import Cubin
from relight.kernels.device import make_current

REMEDY = "install it beside Relight by: python -m pip install 'relight[cuda]'"

ELF = b"\x7fELF"
"""How a cubin begins; else it is PTX, which the driver compiles."""

Grid = tuple[int, int]

MOST_ROWS = 65_535
"""The second size of a grid, where each row has blocks of its own."""


class Long(int):
    """An argument of 64 bits."""


class NoLauncher(BadSetting):
    """cuda-core is missing, or the driver refuses what was compiled."""


class Launch(Protocol):
    """A loaded kernel. Tensors are passed by address, int as 32 bits (Long: 64),
    float as float32."""

    def __call__(self, grid: Grid, *arguments: Tensor | int | float | None) -> None: ...


class Launcher(Protocol):
    """Loads kernels on one device."""

    def load(
        self, cubin: Cubin, entry: str, *, threads: int, ring_bytes: int = 0, early: bool = False
    ) -> Launch: ...


EARLY = "programmatic_stream_serialization"
"""Of a LaunchConfig since cuda-core 1.2. Without it a kernel waits for the one in front to end."""


class CudaLauncher:
    """`core` and `driver` are the modules cuda.core and cuda.bindings.driver. `current_stream`
    gives the address of the stream that torch has current."""

    def __init__(
        self, device_index: int, current_stream: Callable[[], int], core: Any, driver: Any
    ) -> None:
        self._core = core
        self._driver = driver
        self._device = core.Device(device_index)
        self._device.set_current()
        self._current_stream = current_stream
        self._streams: dict[int, Any] = {}  # by address: torch has a few, and keeps them

    def _stream(self) -> Any:
        """A stream by the protocol `__cuda_stream__` is deprecated since cuda-core 1.2."""
        address = self._current_stream()
        if address not in self._streams:
            self._streams[address] = self._core.Stream.from_handle(address)
        return self._streams[address]

    def load(
        self, cubin: Cubin, entry: str, *, threads: int, ring_bytes: int = 0, early: bool = False
    ) -> Launch:
        """Raises NoLauncher where the driver does not take the code."""
        try:
            make = self._core.ObjectCode
            load = make.from_cubin if cubin.code.startswith(ELF) else make.from_ptx
            kernel = load(cubin.code).get_kernel(entry)
        except Exception as problem:  # cuda-core raises many kinds, all of the driver
            raise NoLauncher(
                f"the driver refuses kernel {entry} ({problem}): a driver older than the NVRTC "
                "that compiled it; update the driver, install an NVRTC of its CUDA version, or "
                "give --kernels reference"
            ) from problem
        # Without asking, a block has 48 KiB in all. What the kernel has by itself is not always
        # known: there is no log of PTX, nor of code that NVRTC finds among what it keeps.
        if ring_bytes:
            self._allow_shared(kernel, ring_bytes)
        core, stream = self._core, self._stream
        how = {EARLY: True} if early and hasattr(core.LaunchConfig, EARLY) else {}
        configs: dict[Grid, Any] = {}  # to make one takes as long as to launch

        def launch(grid: Grid, *arguments: Tensor | int | float | None) -> None:
            if grid not in configs:
                size, block = (*grid, 1), (threads, 1, 1)
                configs[grid] = core.LaunchConfig(
                    grid=size, block=block, shmem_size=ring_bytes, **how
                )
            core.launch(stream(), configs[grid], kernel, *map(_passed, arguments))

        return launch

    def _allow_shared(self, kernel: Any, count: int) -> None:
        which = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        device = self._driver.CUdevice(self._device.device_id)
        (code,) = self._driver.cuKernelSetAttribute(which, count, kernel.handle, device)
        if int(code):
            raise NoLauncher(f"the driver gives a block no {count:,} bytes of shared memory")


def _passed(argument: Tensor | int | float | None) -> object:
    if argument is None:
        return 0
    if isinstance(argument, Tensor):
        return argument.data_ptr()  # cuda-core passes an int of Python as an address
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    if isinstance(argument, Long):
        return ctypes.c_int64(argument)  # numbers from 2^63 on, too, which have the same bits
    assert -(2**31) <= argument < 2**31, f"{argument} is no number of 32 bits"
    return ctypes.c_int(argument)


def cuda_launcher(device: torch.device) -> CudaLauncher:
    """For a CUDA device of torch. Raises NoLauncher."""
    try:
        core = importlib.import_module("cuda.core")
        driver = importlib.import_module("cuda.bindings.driver")
    except ImportError as problem:
        raise NoLauncher(f"cuda-core cannot be used ({problem}); {REMEDY}") from None
    for name in ("Device", "LaunchConfig", "ObjectCode", "Stream", "launch"):
        if not hasattr(core, name):
            raise NoLauncher(f"cuda-core is too old, it has no {name}; {REMEDY}")
    torch.cuda.init()
    make_current(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    return CudaLauncher(index, lambda: torch.cuda.current_stream(index).cuda_stream, core, driver)
