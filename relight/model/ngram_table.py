"""Where the rows of an n-gram table lie, and how those that a step needs come to the device. Knows
no n-gram and no layer.

All three places give the same values: the device's memory, RAM, or the checkpoint's own file, of
which nothing but the rows asked for is read.
"""

import os
from concurrent.futures import ThreadPoolExecutor
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


class NgramTable(Protocol):
    def values(self, rows: Tensor) -> Tensor:
        """rows [n, c] int64 -> their values side by side [n, c * d] float32, on the same device."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceTable:
    data: Tensor  # [R, d] E4M3 bytes
    scale: Tensor  # [R, d / 32] UE8M0 bytes

    def values(self, rows: Tensor) -> Tensor:
        return engram.gather(self.data, self.scale, rows)


class HostTable:
    """In RAM. On another device than the processor a look-up waits for the step's token ids."""

    def __init__(self, data: Tensor, scale: Tensor) -> None:
        assert data.device.type == scale.device.type == "cpu"
        self._data, self._scale = data, scale

    def values(self, rows: Tensor) -> Tensor:
        listed, place = rows.unique(return_inverse=True)
        at = listed.cpu()
        data, scale = self._data.index_select(0, at), self._scale.index_select(0, at)
        return engram.gather(data.to(rows.device), scale.to(rows.device), place)


class FileTable:
    """In the checkpoint. Rows are read by position and not mapped, so that a bad disk or a file
    that became shorter is an error of the step, and no fault of the process."""

    def __init__(self, data: StoredTensor, scale: StoredTensor) -> None:
        self._parts = (_Part(data), _Part(scale))
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="engram")
        self.rows_read = 0

    @property
    def bytes_read(self) -> int:
        return self.rows_read * sum(part.width for part in self._parts)

    def values(self, rows: Tensor) -> Tensor:
        """Raises BadCheckpoint that names the file."""
        listed, place = rows.unique(return_inverse=True)
        at = listed.tolist()
        self.rows_read += len(at)
        data, scale = (part.read(at, self._pool).to(rows.device) for part in self._parts)
        return engram.gather(data, scale, place)


class _Part:
    """The rows of one stored matrix of bytes."""

    def __init__(self, stored: StoredTensor) -> None:
        self.count, self.width = stored.shape
        self._stored = stored
        try:
            self._descriptor = os.open(stored.file, os.O_RDONLY)
        except OSError as error:
            raise _unreadable(stored, str(error.strerror)) from error

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def read(self, rows: list[int], pool: ThreadPoolExecutor) -> Tensor:
        out = torch.empty((len(rows), self.width), dtype=torch.uint8)
        view = byte_view(out)
        step = -(-len(rows) // READERS)
        spans = [range(at, min(at + step, len(rows))) for at in range(0, len(rows), max(step, 1))]
        for _ in pool.map(lambda span: self._read_span(rows, span, view), spans):
            pass
        return out

    def _read_span(self, rows: list[int], span: range, view: memoryview) -> None:
        for place in span:
            into = view[place * self.width : (place + 1) * self.width]
            offset = self._stored.offset + rows[place] * self.width
            try:
                count = os.preadv(self._descriptor, [into], offset)
            except OSError as error:
                raise _unreadable(self._stored, str(error.strerror)) from error
            if count != self.width:
                raise _unreadable(self._stored, f"ends inside row {rows[place]:,}")


def _unreadable(stored: StoredTensor, found: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"{stored.file}: {stored.name} {found}; wanted a file that stays readable; check the disk "
        "and fetch it again",
        param="model",
    )
