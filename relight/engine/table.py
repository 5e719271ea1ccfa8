"""What recordings read anew at each replay. Knows no step, no draw and no guess."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from relight.kernels.device import refill


class Table:
    """What differs from one replay to the next: lines of integers, at one place on the device."""

    def __init__(self, most: int, columns: int, device: torch.device) -> None:
        self._lines = torch.zeros((most, columns), dtype=torch.int64, device=device)

    def clear(self) -> None:
        self._lines.zero_()

    def fill(self, lines: Sequence[Sequence[int]], count: int) -> None:
        """By one copy that nobody waits for. Lines of padding, up to `count`, are the last."""
        padding = [lines[-1]] * (count - len(lines))
        refill(self._lines[:count], [value for line in (*lines, *padding) for value in line])

    def columns(self, count: int) -> Tensor:
        """[columns, count] of the first lines. Each column lies in one piece, as kernels get
        addresses."""
        return self._lines[:count].t().contiguous()


def smallest(widths: Iterable[int], count: int) -> int | None:
    """The smallest of the widths that holds so many."""
    return min((width for width in widths if width >= count), default=None)
