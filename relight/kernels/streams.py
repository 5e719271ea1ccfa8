"""Runs work beside other work, on a second stream of a CUDA device. Knows no op.

Also inside of a recording: what goes from stream to stream are events, which a recording takes for
the order of its launches.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

First = TypeVar("First")
Second = TypeVar("Second")


class SideStream:
    """`cuda` is the module torch.cuda.

    Memory needs no further care. torch keeps what a stream has freed for that stream, recorded or
    not, so the two have pools of their own. What the side reads was made before the fork and is
    held by the caller until the join, so nobody gets it meanwhile. What the side made and the
    caller has dropped, it gets again in the next `both`, which waits for all that the caller has
    launched, the last reader among it.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device = device
        self._cuda = cuda
        self._side = cuda.Stream(device)

    def another(self) -> "SideStream":
        """One that may be forked to while this one is."""
        return SideStream(self._device, self._cuda)

    def both(self, beside: Callable[[], First], here: Callable[[], Second]) -> tuple[First, Second]:
        """Their results. `beside` reads nothing that `here` makes, nor the other way round, and
        both may be read when this has returned."""
        main = self._cuda.current_stream(self._device)
        self._side.wait_stream(main)
        try:
            with self._cuda.stream(self._side):
                found = beside()
            return found, here()
        finally:
            main.wait_stream(self._side)


def side_stream(device: torch.device) -> SideStream | None:
    """None where a device does one thing at a time, as torch does on a processor."""
    return SideStream(device) if device.type == "cuda" else None
