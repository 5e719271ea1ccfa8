"""A recorder for a processor: it notes operations and does them again on the same memory, as a
recorded CUDA graph does. What was a number of the host then is that number for ever, whatever lay
between operations is noise before each replay, and a look at a value is refused.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from relight.engine.graphs import Shape
from relight.engine.runner import Runner
from relight.kernels import peek
from relight.kernels.experts import reference as experts_reference
from relight.kernels.record import Recorder, recorder
from relight.kernels.sample import reference as sample_reference
from relight.model import addresses

ATEN = torch.ops.aten
LOOKS = {
    ATEN._local_scalar_dense.default,
    ATEN.is_nonzero.default,
    ATEN.nonzero.default,
    ATEN.equal.default,
}


@contextmanager
def nobody_looks() -> Iterator[None]:
    """A processor does as if it were another device."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (peek, experts_reference, sample_reference, addresses):
            patch.setattr(module, "looks_are_free", lambda x: False)
        yield


@dataclass
class Call:
    """`made`: results in memory of their own; the others are views, or what was written to."""

    func: Any
    args: Any
    kwargs: Any
    out: Any
    made: list[Tensor]

    def again(self) -> None:
        if self.func._schema.is_mutable:
            self.func(*self.args, **self.kwargs)
        elif self.made:
            found = self.func(*self.args, **self.kwargs)
            for old, new in zip(tensors(self.out), tensors(found), strict=True):
                if any(old is one for one in self.made):
                    assert (old.shape, old.dtype) == (new.shape, new.dtype), self.func
                    old.copy_(new)


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class Notes(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Values of the host that are brought in; a lone one is a number of the operation.
        brings = func is ATEN.lift_fresh.default and args[0].dim() > 0
        if func in LOOKS or brings:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        given = {x.untyped_storage()._cdata for x in tensors((args, kwargs))}
        made = [x for x in tensors(out) if x.untyped_storage()._cdata not in given]
        self.calls.append(Call(func, args, kwargs, out, made))
        return out


class Operations(TorchDispatchMode):
    """Counts those that take time on a device, but for what a tape replays."""

    FREE = ("empty", "empty_like", "new_empty", "detach", "detach_", "lift_fresh")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view and func.overloadpacket.__name__ not in self.FREE
        return func(*args, **(kwargs or {}))


def record_all(runner: Runner, shapes: Iterable[Shape], recorder: Recorder) -> None:
    """Steps, draws and guesses."""
    for shape in shapes:
        runner.record(shape, recorder)
        runner.record_behind(shape.rows, recorder)


def poison(x: Tensor) -> None:
    if x.is_floating_point():
        x.fill_(float("nan"))
    elif x.dtype == torch.bool:
        x.fill_(True)
    else:
        x.fill_(torch.iinfo(x.dtype).max // 3)


class Tape:
    """`free`: bytes that it says are free, less `each` for each recording. After `room` recordings
    memory ends."""

    def __init__(self, free: int = 2**40, each: int = 0, room: int | None = None) -> None:
        self.free, self.each, self.room = free, each, room
        self.num_recorded = 0

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        if self.num_recorded == self.room:
            raise torch.OutOfMemoryError("out of memory")
        notes = Notes()
        with nobody_looks():
            run()
            with notes:
                run()
        self.num_recorded += 1
        calls = notes.calls

        def replay() -> None:
            with _disable_current_modes():  # whoever counts operations sees none of a recording
                for call in calls:
                    for x in call.made:
                        poison(x)
                for call in calls:
                    call.again()

        return replay

    def free_bytes(self) -> int:
        return self.free - self.each * self.num_recorded


def recorder_of(device: str) -> Recorder:
    """The device's own; a tape on a processor."""
    if device == "cpu":
        return Tape()
    found = recorder(torch.device(device))
    assert found is not None, f"{device} cannot record"
    return found
