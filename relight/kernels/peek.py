"""Answers about values that the host may look at where a look costs nothing: on a processor. On any
other device it would wait for all that was launched before. Knows no op.

Where nobody looks an answer is the safe one, which costs work and no bits: what is done with an
answer must be right for both.
"""

import torch
from torch import Tensor


def looks_are_free(x: Tensor) -> bool:
    return x.device.type == "cpu"


def some(mask: Tensor) -> bool:
    """Whether any is true; where nobody looks, yes."""
    return not looks_are_free(mask) or bool(mask.any())


def every(mask: Tensor) -> bool:
    """Whether all are true; where nobody looks, yes."""
    return not looks_are_free(mask) or bool(mask.all())


def ascending(values: Tensor) -> bool:
    """Whether each row of `values` ascends strictly; where nobody looks, yes, and nothing is
    launched that a later launch would wait for."""
    return not looks_are_free(values) or bool((values[:, 1:] > values[:, :-1]).all())


def most(values: Tensor, bound: int) -> int:
    """The largest of `values`, none of which is above `bound`, 0 of none; where nobody looks, the
    bound."""
    if not looks_are_free(values):
        return bound
    return int(values.max()) if values.numel() else 0


def distinct(values: Tensor) -> tuple[Tensor, Tensor]:
    """A list [u] of all that is in `values`, and where in it each of them stands; where nobody
    looks, some are in the list more than once."""
    if looks_are_free(values):
        listed, place = values.unique(return_inverse=True)
        return listed, place
    return values.flatten(), torch.arange(values.numel(), device=values.device).view(values.shape)
