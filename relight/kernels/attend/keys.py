"""The keys that rows attend to. Knows no attention."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from relight.kernels.check import I64, expect
from relight.kernels.rows import Rows

KEY_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a row are rows window_index [n, W] int64 of `window`, then rows entry_index
    [n, C] of `entries`; -1 is no key. W and C are multiples of 64."""

    window: Rows
    window_index: Tensor
    entries: Rows | None = None
    entry_index: Tensor | None = None

    @property
    def lists(self) -> tuple[Tensor, Tensor | None]:
        return self.window_index, self.entry_index

    def part(self, rows: slice) -> "Keys":
        """Those of some rows."""
        far = None if self.entry_index is None else self.entry_index[rows]
        return replace(self, window_index=self.window_index[rows], entry_index=far)

    def check(self, count: int, dim: int) -> None:
        """Of so many rows and dims."""
        for rows, index in ((self.window, self.window_index), (self.entries, self.entry_index)):
            if index is not None:
                assert rows is not None, "entry_index without entries"
                assert rows.format.dim == dim, f"keys have {rows.format.dim} dims; wanted {dim}"
                expect(index, "index", (count, None), I64)
                listed = index.shape[1]
                assert listed % KEY_BLOCK == 0, f"{listed} keys are listed, no whole blocks"


@dataclass(frozen=True, slots=True)
class Turn:
    """By which results are turned back: positions [n], and frequencies of the last dims. `apart`
    does it for kernels, and the definition, that do not."""

    positions: Tensor
    frequencies: Tensor
    apart: Callable[[Tensor], Tensor]
