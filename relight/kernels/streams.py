"""Runs work beside other work, on further streams of a CUDA device. Knows no op.

Also inside of a recording: what goes from stream to stream are events, which a recording takes for
the order of its launches.
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch

Found = TypeVar("Found")


class Later(Generic[Found]):
    """What a side stream was given. `join` before it is read; the side goes on with what it was
    given since."""

    def __init__(self, found: Found, join: Callable[[], None]) -> None:
        self._found = found
        self._join: Callable[[], None] | None = join

    def join(self) -> Found:
        if self._join is not None:
            self._join()
            self._join = None
        return self._found


class SideStream:
    """`cuda` is the module torch.cuda.

    Memory needs no further care. torch keeps what a stream has freed for that stream, recorded or
    not, so each has a pool of its own. What the side reads was made before the fork and is held by
    the caller until the join, so nobody gets it meanwhile. What the side made, one caller reads
    alone; once dropped the side gets it again in the next `begin`, which waits for all that the
    caller has launched, the last reader among it.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device = device
        self._cuda = cuda
        self._side = cuda.Stream(device)

    def another(self) -> "SideStream":
        """One that may be forked to while this one is."""
        return SideStream(self._device, self._cuda)

    def begin(self, work: Callable[[], Found]) -> Later[Found]:
        """`work` reads nothing that the caller makes before it joins, nor the other way round."""
        main = self._cuda.current_stream(self._device)
        self._side.wait_stream(main)
        try:
            with self._cuda.stream(self._side):
                found = work()
        except BaseException:
            main.wait_stream(self._side)
            raise
        ended = self._side.record_event()
        return Later(found, lambda: main.wait_event(ended))


class Branches:
    """Of one block of work: what begins beside it is joined when that ends at the latest, whatever
    it raises. Else what a side still reads would be given away."""

    def __init__(self, streams: Mapping[Any, SideStream]) -> None:
        self._streams = streams
        self._begun: list[Later[Any]] = []

    def __enter__(self) -> "Branches":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in self._begun:
            one.join()

    def begin(self, name: str | None, work: Callable[[], Found]) -> Callable[[], Found]:
        """What joins it and gives what it found. Without a stream it is done here and now."""
        side = self._streams.get(name) if name else None
        if side is None:
            found = work()
            return lambda: found
        later = side.begin(work)
        self._begun.append(later)
        return later.join


def side_stream(device: torch.device) -> SideStream | None:
    """None where a device does one thing at a time, as torch does on a processor."""
    return SideStream(device) if device.type == "cuda" else None
