"""Keeps matrices in float32 beside their packed form. Knows no network: weights are found in
whatever dataclasses and tuples hold them.

A product of few rows takes no longer than decoding its weight. Where all values of a model are
little of the memory that there is, they are decoded once; bits are the same.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from relight.kernels.codec import (
    DenseWeight,
    Fp4Weight,
    Fp8Weight,
    StackedDense,
    StackedFp4,
    StackedFp8,
)

PACKED = (Fp8Weight, Fp4Weight, StackedFp8, StackedFp4)
DENSE = (DenseWeight, StackedDense)


def unpack(tree: Any, room: int) -> tuple[Any, int]:
    """The same tree, whose matrices keep their values, and the bytes that it takes more; unchanged,
    and 0, where that is more than `room`."""
    more = 0

    def count(w: Any) -> Any:
        nonlocal more
        more += _more(w)
        return w

    _each(tree, count)
    return (tree, 0) if more > room else (_each(tree, _unpacked), more)


def _more(w: Any) -> int:
    if isinstance(w, DENSE):
        return w.data.numel() * 4 - w.data.nbytes
    values = w.data.numel() * (2 if isinstance(w, Fp4Weight | StackedFp4) else 1)
    return 4 * int(values)


def _unpacked(w: Any) -> Any:
    if isinstance(w, DENSE):
        return replace(w, data=w.data.float())
    if isinstance(w, Fp8Weight):
        return replace(w, values=w.decode())
    if isinstance(w, Fp4Weight):
        return replace(w, values=w.decode())
    experts = [w.expert(index).decode() for index in range(len(w.data))]
    return replace(w, values=torch.stack(experts))


def _each(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The tree with each matrix changed."""
    if isinstance(tree, PACKED + DENSE):
        return change(tree)
    if isinstance(tree, tuple | list) and not hasattr(tree, "_fields"):
        return type(tree)(_each(part, change) for part in tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        parts = {one.name: getattr(tree, one.name) for one in fields(tree) if one.init}
        new = {name: _each(part, change) for name, part in parts.items()}
        changed = {name: part for name, part in new.items() if part is not parts[name]}
        return replace(tree, **changed) if changed else tree
    return tree
