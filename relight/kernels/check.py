"""Argument checks of the ops: a wrong tensor is our own mistake, so it is an assertion that names
the argument, what was found and what was wanted. Knows no op."""

from collections.abc import Sequence

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16)
"""What activations come in and results go out as."""

F32 = (torch.float32,)
I32 = (torch.int32,)
I64 = (torch.int64,)
U8 = (torch.uint8,)


def expect(
    tensor: Tensor,
    name: str,
    shape: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
) -> None:
    """Asserts the shape (None: any size) and the dtype of an argument."""
    found = tuple(tensor.shape)
    fits = len(found) == len(shape) and all(
        want is None or have == want for have, want in zip(found, shape, strict=True)
    )
    assert fits, f"{name} has shape {found}; wanted {tuple(shape)}"
    assert tensor.dtype in dtypes, f"{name} is {tensor.dtype}; wanted one of {tuple(dtypes)}"


def expect_boundary(boundary: torch.dtype) -> None:
    assert boundary in FLOATS, f"boundary is {boundary}; wanted one of {FLOATS}"


def expect_family(family: str) -> None:
    assert family in ("prefill", "step"), f"family is {family!r}; wanted 'prefill' or 'step'"
