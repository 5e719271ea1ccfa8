"""Sparse attention of given rows, launched on a CUDA device. Knows no layer."""

import torch
from torch import Tensor

from relight.kernels.attend import cuda
from relight.kernels.attend.keys import Keys, Turn
from relight.kernels.attend.step import StepAttend, addresses, shape_of
from relight.kernels.block import in_place
from relight.kernels.toolbox import Toolbox


class GivenAttend:
    """The prefill family of `attend`: one launch, without scratch, a block a row. Where a block has
    too little shared memory, or what is between ops is not bf16, by the kernels of a step."""

    def __init__(self, tools: Toolbox, *, groups: bool = True) -> None:
        """`groups`: by warp groups, which decides bits, where a device has them."""
        self._tools = tools
        self._groups = groups
        self._step = StepAttend(tools)

    def takes(self, q: Tensor, keys: Keys, boundary: torch.dtype) -> bool:
        return self._step.takes(q, keys, boundary)

    def attend(
        self, q: Tensor, keys: Keys, sink: Tensor, scale: float, back: Turn | None = None
    ) -> Tensor:
        """As `attend.attend`: q [n, H, D] -> [n, H, D], of its dtype."""
        form, shape = self._tools.form, shape_of(q, keys)
        if not cuda.is_given(form, shape):
            return self._step.attend(q, keys, sink, scale, back)
        q = q if in_place(q) else q.clone(memory_format=torch.contiguous_format)
        y = torch.empty_like(q)
        if len(q):
            kernel, shared_bytes = cuda.given(form, shape), shape.given_bytes
            if self._groups and cuda.is_grouped(form, shape):
                kernel, shared_bytes = cuda.grouped(form, shape), shape.group_bytes
            launch = self._tools.load(kernel, cuda.GIVEN_THREADS, shared_bytes)
            launch((len(q), 1), q, *addresses(keys), float(scale), sink, y)
        return back.apart(y) if back else y
