"""Listens to the ops that a network calls, so that each can be run again alone, with the same
arguments. Knows no network and no timing.

Calls with weights of one shape, by layer after layer, are one kind: run in turn, they bring weights
from memory as a step does, and not from a cache.
"""

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from relight.kernels.codec import DenseWeight, Fp4Weight, Fp8Weight
from relight.kernels.experts import Experts
from relight.kernels.rows import Rows
from relight.kernels.select import OPS

ROOM, USERS = "relight.kernels.", "relight.model."
KERNELS = re.compile("(Step|Given|Row(?!Ops))[A-Z]")
"""How classes begin whose methods launch kernels. RowOps only holds them and runs branches: what is
in a branch is heard like all else."""


@dataclass(frozen=True, slots=True)
class Call:
    kind: str
    run: Callable[[], object]
    nbytes: int
    weight: Any = None
    x: Tensor | None = None


@contextmanager
def listening() -> Iterator[list[Call]]:
    """The calls of ops inside the block, in their order; of a call within a call only the outer."""
    heard: list[Call] = []
    depth = [0]
    places = list(_places())
    for owner, name, function in places:
        setattr(owner, name, _noting(function, _name(owner, function), heard, depth))
    try:
        yield heard
    finally:
        for owner, name, function in places:
            setattr(owner, name, function)


def _places() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Where ops are looked up: their packages, modules that import them, classes of kernels."""
    packages = {ROOM + op: importlib.import_module(ROOM + op) for op in OPS}
    users = [m for name, m in sorted(sys.modules.items()) if name.startswith(USERS)]
    for module in (*packages.values(), *users):
        for name, value in list(vars(module).items()):
            if inspect.isfunction(value) and value.__module__ in packages and name[0] != "_":
                yield module, name, value
    for module in [m for name, m in sorted(sys.modules.items()) if name.startswith(ROOM)]:
        for owner in list(vars(module).values()):
            mine = inspect.isclass(owner) and owner.__module__ == module.__name__
            if mine and KERNELS.match(owner.__name__):
                for name, value in list(vars(owner).items()):
                    if inspect.isfunction(value) and name[0] != "_" and "takes" not in name:
                        yield owner, name, value


def _name(owner: Any, function: Callable[..., Any]) -> str:
    op = owner.__name__ if inspect.isclass(owner) else function.__module__.rpartition(".")[2]
    name = function.__name__
    return name if name == op else f"{op}.{name}"


def _noting(
    function: Callable[..., Any], name: str, heard: list[Call], depth: list[int]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        depth[0] += 1
        try:
            out = function(*args, **kwargs)
        finally:
            depth[0] -= 1
        if depth[0] == 0:
            heard.append(_call(function, name, args, kwargs, out))
        return out

    return noting


def _call(function: Any, name: str, args: Any, kwargs: Any, out: Any) -> Call:
    named = _named(function, args, kwargs)
    given = list(named.values())
    weights = [x for x in given if isinstance(x, DenseWeight | Fp8Weight | Fp4Weight)]
    first = next((x for x in given if isinstance(x, Tensor)), None)
    kind = name
    if weights:
        kind += f" {list(weights[0].shape)} {_format(weights[0])}"
    elif first is not None:
        kind += f" {list(first.shape[1:])}"
    return Call(
        kind,
        functools.partial(function, *args, **kwargs),
        moved_bytes(named) + tensor_bytes(out),
        weights[0] if weights else None,
        first if weights else None,
    )


def _format(w: Any) -> str:
    if isinstance(w, DenseWeight):
        return str(w.data.dtype).removeprefix("torch.")
    return "fp8" if isinstance(w, Fp8Weight) else "fp4"


def _named(function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments by name; what travels together with cached rows, each by its own."""
    named: dict[str, Any] = {}
    for name, value in inspect.signature(function).bind(*args, **kwargs).arguments.items():
        parts = {}
        if is_dataclass(value):
            parts = {field.name: getattr(value, field.name) for field in fields(value)}
        together = any(isinstance(part, Rows) for part in parts.values())
        named |= parts if together else {name: value}
    return named


def moved_bytes(named: Mapping[str, Any]) -> int:
    """Bytes that an op must read: of experts those that a row chose, of cached rows those that are
    listed, of rings (which are views into a pool) none that could be told, else all."""
    given = list(named.values())
    rows = [x for x in given if isinstance(x, Rows)]
    lists = [x for x in given if isinstance(x, Tensor) and x.dtype == torch.int64 and x.dim() == 2]
    counts = [int((listed >= 0).sum()) for listed in lists]
    if "candidates" in named and rows:
        counts = [_inside(named)]
    total = 0
    for x in given:
        if isinstance(x, Experts):
            ids = lists[0]
            stacks = (x.w1, x.w3, x.w2)
            each = sum(tensor_bytes(stack) / len(stack.data) for stack in stacks)
            total += int(each * int(ids.flatten().bincount().count_nonzero()))
        elif not isinstance(x, Rows) and not (isinstance(x, Tensor) and not x.is_contiguous()):
            total += tensor_bytes(x)
    for one, count in zip(rows, counts, strict=False):
        total += (one.format.data_bytes + one.format.scale_bytes) * count
    return total


def _inside(named: Mapping[str, Any]) -> int:
    """Of a selection inside of candidates: entries of the blocks that a row lists which sees more
    than it may choose, once a sequence."""
    total, size = 0, named["size"]
    both = (named[name].split(list(named["counts"])) for name in ("candidates", "visible"))
    for blocks, visible in zip(*both, strict=True):
        listed = blocks[visible > named["k"]].unique()
        for first in (listed[listed >= 0] * size).tolist():
            total += min(size, max(0, int(visible.max()) - first))
    return total


def tensor_bytes(node: Any) -> int:
    """Of all tensors in tuples, lists and dataclasses."""
    if isinstance(node, Tensor):
        return node.nbytes
    if isinstance(node, tuple | list):
        return sum(tensor_bytes(item) for item in node)
    if is_dataclass(node) and not isinstance(node, type):
        return sum(tensor_bytes(getattr(node, field.name)) for field in fields(node))
    return 0
