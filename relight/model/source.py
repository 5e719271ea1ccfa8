"""Brings the bytes of stored tensors into memory: mapped where they may stay, read where they are
copied. Knows no model; a torch dtype for the file's types is never needed.

Every byte is read once while loading, mapped ones too, so that a damaged disk shows as an error
that names the file and not as a fault in the middle of a request.
"""

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from relight.base.errors import BadCheckpoint, CannotFit
from relight.base.headers import StoredTensor

CHUNK_BYTES = 8 << 20
"""Read at once by a thread: large enough for full disk speed, small enough for a smooth bar."""

STORED_AS = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I8": torch.uint8,
    "F8_E4M3": torch.uint8,
    "F8_E8M0": torch.uint8,
}
"""Torch dtype of a stored tensor; packed and 8-bit types stay bytes."""

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in total), never by two threads at once."""


@dataclass(frozen=True, slots=True)
class Job:
    """Bytes to read: into `into` if there is one, else only to have them read once."""

    stored: StoredTensor
    into: Tensor | None


class WeightSource:
    """Hands out tensors at once and fills them in `run`. A context that closes its files."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._jobs: list[Job] = []
        self._files = ExitStack()
        self._descriptors: dict[Path, int] = {}
        self._maps: dict[Path, mmap.mmap] = {}

    def __enter__(self) -> "WeightSource":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.close()

    @property
    def total_bytes(self) -> int:
        return sum(job.stored.nbytes for job in self._jobs)

    def tensor(self, stored: StoredTensor) -> Tensor:
        """The tensor as stored, on the device. On CPU it shares the pages of the file."""
        if self.device.type == "cpu" and _is_aligned(stored):
            self._jobs.append(Job(stored, None))
            return self.mapped(stored)
        tensor = self.allocate(stored.shape, STORED_AS[stored.dtype])
        self.fill(tensor, stored)
        return tensor

    def mapped(self, stored: StoredTensor) -> Tensor:
        """The tensor in the pages of its file, readable at once; a copy if it is not aligned."""
        dtype = STORED_AS[stored.dtype]
        if stored.nbytes == 0:
            return torch.empty(stored.shape, dtype=dtype)
        data = torch.frombuffer(
            self._map(stored.file), dtype=torch.uint8, count=stored.nbytes, offset=stored.offset
        )
        return (data if _is_aligned(stored) else data.clone()).view(dtype).view(stored.shape)

    def allocate(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None
    ) -> Tensor:
        """On the source's own device, if no other is named. Raises CannotFit."""
        try:
            return torch.empty(shape, dtype=dtype, device=device or self.device)
        except RuntimeError as error:  # torch has no narrower class for CPU memory
            nbytes = torch.Size(shape).numel() * dtype.itemsize
            raise _refused(nbytes, f"on {device or self.device}", error) from error

    def fill(self, tensor: Tensor, stored: StoredTensor) -> None:
        """Has `run` read `stored` into the contiguous `tensor` of the same number of bytes."""
        assert tensor.is_contiguous(), stored.name
        assert tensor.nbytes == stored.nbytes, stored.name
        self._jobs.append(Job(stored, tensor))

    def run(self, threads: int, progress: Progress | None = None) -> None:
        """Does all jobs with so many threads. Raises BadCheckpoint that names the file."""
        meter = _Meter(self.total_bytes, progress)
        descriptors = {job.stored.file: self._descriptor(job.stored.file) for job in self._jobs}
        # Long reads first, so that no thread ends alone with the largest.
        jobs = sorted(self._jobs, key=lambda job: -job.stored.nbytes)
        stop, local = threading.Event(), threading.local()

        def work(job: Job) -> None:
            if not hasattr(local, "staging"):
                pin = self.device.type != "cpu" and torch.accelerator.is_available()
                local.staging = torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=pin)
            try:
                _do(job, descriptors[job.stored.file], local.staging, meter, stop)
            except BaseException:
                stop.set()  # before another job starts
                raise

        with ThreadPoolExecutor(threads, thread_name_prefix="load") as pool:
            futures = [pool.submit(work, job) for job in jobs]
            try:
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)
        self._jobs.clear()

    def _descriptor(self, file: Path) -> int:
        if file not in self._descriptors:
            try:
                descriptor = os.open(file, os.O_RDONLY)
            except OSError as error:
                raise _unreadable(file, str(error.strerror)) from error
            self._files.callback(os.close, descriptor)
            self._descriptors[file] = descriptor
        return self._descriptors[file]

    def _map(self, file: Path) -> mmap.mmap:
        """A private map: the tensors keep it alive, nobody can write to the file through it."""
        if file not in self._maps:
            descriptor = self._descriptor(file)
            try:
                self._maps[file] = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
            except OSError as error:  # as by a limit of addresses (ulimit -v)
                raise _refused(file.stat().st_size, f"to map {file}", error) from error
        return self._maps[file]


def _refused(nbytes: int, what: str, error: Exception) -> CannotFit:
    return CannotFit(
        f"weights: {nbytes:,} bytes more {what} were refused ({error}); wanted room for the whole "
        "model; see `relight inspect` for its size",
        param="model",
    )


def _is_aligned(stored: StoredTensor) -> bool:
    return stored.offset % STORED_AS[stored.dtype].itemsize == 0


class _Meter:
    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._done = total, 0
        self._progress, self._lock = progress, threading.Lock()
        if progress:
            progress(0, total)

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._progress:
                self._progress(self._done, self._total)


def _do(job: Job, descriptor: int, staging: Tensor, meter: _Meter, stop: threading.Event) -> None:
    """Reads into CPU memory, through `staging` to another device, or for the reading alone."""
    stored = job.stored
    target = None if job.into is None else job.into.view(-1).view(torch.uint8)
    direct = target is not None and target.device.type == "cpu"
    for start in range(0, stored.nbytes, CHUNK_BYTES):
        if stop.is_set():
            return
        count = min(CHUNK_BYTES, stored.nbytes - start)
        place = target[start : start + count] if direct and target is not None else staging[:count]
        _read(stored.file, descriptor, stored.offset + start, place)
        if target is not None and not direct:
            target[start : start + count].copy_(place)
        meter.add(count)


def byte_view(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor. Valid while the tensor lives; needs no numpy."""
    assert tensor.device.type == "cpu"
    assert tensor.is_contiguous()
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def _read(file: Path, descriptor: int, offset: int, into: Tensor) -> None:
    view, done = byte_view(into), 0
    while done < into.nbytes:
        try:
            count = os.preadv(descriptor, [view[done:]], offset + done)
        except OSError as error:
            raise _unreadable(file, f"{error.strerror} at byte {offset + done:,}") from error
        if count == 0:
            raise _unreadable(file, f"ends at byte {offset + done:,}, it has become shorter")
        done += count


def _unreadable(file: Path, found: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"{file}: {found}; wanted a file that stays readable; check the disk and fetch it again",
        param="model",
    )
