"""Records what is launched on a CUDA device, to launch it again by one call. Knows no op.

A recording has the launches, their numbers and the addresses of their memory as they were when it
was made. What differs from one replay to the next lies in memory that its owner fills before.
"""

import gc
from collections.abc import Callable
from typing import Protocol

import torch

Replay = Callable[[], None]
"""Launches all of it again, behind what was launched before."""


class Recorder(Protocol):
    """Recordings of one recorder share the memory of what lies between their operations, so they
    are replayed one after the other, and none keeps a result there."""

    def record(self, run: Callable[[], None]) -> Replay:
        """Runs it, more than once. Raises torch.OutOfMemoryError, and RuntimeError where something
        in it cannot be recorded, as looking at a value."""
        ...

    def free_bytes(self) -> int:
        """Memory of the device that nobody has."""
        ...


class CudaRecorder:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], None]) -> Replay:
        """The first run loads kernels and makes tables and workspaces, none of which may happen
        while it is recorded. Other threads may go on with other streams meanwhile."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            run()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                run()
        except BaseException:
            # What ends a recording that failed may raise before it puts the stream back, and
            # before the pool counts as free for another.
            torch.cuda.set_stream(current)
            self._pool = torch.cuda.graph_pool_handle()
            raise
        replay: Replay = graph.replay
        return replay

    def free_bytes(self) -> int:
        torch.cuda.synchronize(self._device)
        gc.collect()
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self._device)
        return free


def recorder(device: torch.device) -> Recorder | None:
    """None where a device has no recordings."""
    return CudaRecorder(device) if device.type == "cuda" else None


def is_out_of_memory(error: BaseException | None) -> bool:
    """Also where it was met in the middle of a recording, whose end then fails, too."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False
