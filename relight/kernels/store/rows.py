"""Moves packed rows of the cache, launched on a CUDA device. Knows no attention."""

from torch import Tensor

from relight.kernels.block import in_words, strides
from relight.kernels.rows import Rows
from relight.kernels.store import cuda
from relight.kernels.toolbox import Toolbox


class RowStore:
    """`store.copy` of rows of either family: one launch."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def takes(self, source: Rows, target: Rows) -> bool:
        """Whether these are for the kernel: the same for all rows of a call site."""
        words = source.format.data_bytes % 4 == 0 and in_words(source) and in_words(target)
        return words and source.count < 2**31

    def copy(self, source: Rows, source_index: Tensor, target: Rows, target_index: Tensor) -> None:
        """As `store.copy`."""
        n, stored = len(source_index), source.format
        if n == 0:
            return
        launch = self._tools.load(cuda.copy_rows(self._tools.form), cuda.THREADS)
        sizes = (n, stored.data_bytes // 4, stored.scale_bytes)
        places = (source_index, target_index)
        launch((-(-n // cuda.BLOCK_ROWS), 1), *places, *sizes, *strides(source), *strides(target))
