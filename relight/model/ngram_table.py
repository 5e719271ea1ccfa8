"""Where the rows of an n-gram table lie, and how those that a step needs come to the device. Knows
no n-gram and no layer.

All three places give the same values: the device's memory, RAM, or the checkpoint's own file, of
which nothing but the rows asked for is read.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from relight.base.errors import BadCheckpoint
from relight.base.headers import StoredTensor
from relight.kernels import engram
from relight.model.source import byte_view

Where = Literal["device", "host", "mmap"]

READERS = 16
"""Threads that read rows of one table: a disk answers many small reads at once faster than one by
one."""

NO_WAIT = getattr(os, "RWF_NOWAIT", 0)
"""Read only what needs no disk. Linux knows it; elsewhere, and on some file systems, a row is
simply read, and nobody knows where it came from."""

Values = Callable[[], Tensor]
"""Waits for rows that are on their way: their values side by side [n, c * d]."""

Gather = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The values of rows of a table: as `engram.gather`."""


class ReadCount:
    """What the look-ups of one model came to, in all its tables that do not lie on the device. One
    thread counts; another may look."""

    def __init__(self) -> None:
        self.rows = self.hits = self.bytes_read = self.errors = 0

    def add(self, rows: int, hits: int, bytes_read: int) -> None:
        self.rows += rows
        self.hits += hits
        self.bytes_read += bytes_read


class NgramTable(Protocol):
    def fetch(self, rows: Tensor, gather: Gather = engram.gather) -> Values:
        """Begins to bring rows [n, c] int64; what it returns waits for them, and gives their values
        on the same device, as `gather` makes them of the table or of the part that was brought."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceTable:
    data: Tensor  # [R, d] E4M3 bytes
    scale: Tensor  # [R, d / 32] UE8M0 bytes

    def fetch(self, rows: Tensor, gather: Gather = engram.gather) -> Values:
        values = gather(self.data, self.scale, rows)
        return lambda: values


class HostTable:
    """In RAM. On another device than the processor a look-up waits for the step's token ids."""

    def __init__(self, data: Tensor, scale: Tensor, count: ReadCount) -> None:
        assert data.device.type == scale.device.type == "cpu"
        self._data, self._scale, self._count = data, scale, count

    def fetch(self, rows: Tensor, gather: Gather = engram.gather) -> Values:
        listed, place = rows.unique(return_inverse=True)
        at = listed.cpu()
        data, scale = self._data.index_select(0, at), self._scale.index_select(0, at)
        self._count.add(len(at), len(at), data.nbytes + scale.nbytes)
        values = gather(data.to(rows.device), scale.to(rows.device), place)
        return lambda: values


class FileTable:
    """In the checkpoint. Rows are read by position and not mapped, so that a bad disk or a file
    that became shorter is an error of the step, and no fault of the process."""

    def __init__(self, data: StoredTensor, scale: StoredTensor, count: ReadCount) -> None:
        self._parts = (_Part(data), _Part(scale))
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="engram")
        self._count = count

    def fetch(self, rows: Tensor, gather: Gather = engram.gather) -> Values:
        """What it returns raises BadCheckpoint that names the file."""
        listed, place = rows.unique(return_inverse=True)
        at = listed.tolist()
        reading = [part.begin(at, self._pool) for part in self._parts]

        def values() -> Tensor:
            try:
                read = [each.wait() for each in reading]
            except BadCheckpoint:
                self._count.errors += 1
                raise
            # A row is one of both parts: it needed no disk if neither did.
            hits = sum(map(all, zip(*(each.was_there() for each in reading), strict=True)))
            self._count.add(len(at), hits, sum(part.nbytes for part in read))
            data, scale = (part.to(rows.device) for part in read)
            return gather(data, scale, place)

        return values


class _Part:
    """The rows of one stored matrix of bytes."""

    def __init__(self, stored: StoredTensor) -> None:
        self.count, self.width = stored.shape
        self._stored = stored
        try:
            self._descriptor = os.open(stored.file, os.O_RDONLY)
        except OSError as error:
            raise _unreadable(stored, str(error.strerror)) from error
        if hasattr(os, "posix_fadvise"):  # else neighbours are read that nobody will ask for
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def begin(self, rows: Sequence[int], pool: ThreadPoolExecutor) -> "_Reading":
        out = torch.empty((len(rows), self.width), dtype=torch.uint8)
        step = max(-(-len(rows) // READERS), 1)
        spans = [range(at, min(at + step, len(rows))) for at in range(0, len(rows), step)]
        return _Reading(out, [pool.submit(self._read_span, rows, span, out) for span in spans])

    def _read_span(self, rows: Sequence[int], span: range, out: Tensor) -> list[bool]:
        """Holds `out` as long as it writes, whoever has given up waiting for it."""
        view = byte_view(out)
        return [
            self._read_row(rows[place], view[place * self.width : (place + 1) * self.width])
            for place in span
        ]

    def _read_row(self, row: int, into: memoryview) -> bool:
        """Whether it needed no disk."""
        offset = self._stored.offset + row * self.width
        if NO_WAIT and self._is_there(into, offset):
            return True
        try:
            count = os.preadv(self._descriptor, [into], offset)
        except OSError as error:
            raise _unreadable(self._stored, str(error.strerror)) from error
        if count != self.width:
            raise _unreadable(self._stored, f"ends inside row {row:,}")
        return False

    def _is_there(self, into: memoryview, offset: int) -> bool:
        """Reads a row from the page cache, if the whole of it is there."""
        try:
            return os.preadv(self._descriptor, [into], offset, NO_WAIT) == self.width
        except OSError:  # it would have to wait, or the file system cannot tell
            return False


@dataclass(frozen=True, slots=True)
class _Reading:
    """Rows of one part that are being read."""

    out: Tensor
    spans: Sequence["Future[list[bool]]"]

    def wait(self) -> Tensor:
        for span in self.spans:
            span.result()
        return self.out

    def was_there(self) -> list[bool]:
        """By row, once they have been waited for."""
        return [there for span in self.spans for there in span.result()]


def _unreadable(stored: StoredTensor, found: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"{stored.file}: {stored.name} {found}; wanted a file that stays readable; check the disk "
        "and fetch it again",
        param="model",
    )
