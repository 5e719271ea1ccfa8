"""Names the operations in which a NaN arises, and parameters that have one. Knows no network and no
loss. Infinities are no fault: masks are made of them."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

MOST = 3
"""Operations that are named: what follows the first ones spreads from them."""

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


class Watch:
    """Inside of `looking`, `found` gets a line for each of the first operations that gave a NaN. To
    look waits for the device after each operation, so it is for a step that is known to fail."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._active = False

    @contextmanager
    def looking(self) -> Iterator[list[str]]:
        self.found, self._active = [], True
        try:
            with _EachOperation(self):
                yield self.found
        finally:
            self._active = False

    def over(self, compile: Compile) -> Compile:
        """`compile`, whose functions count as one operation each: dispatch sees none of theirs."""

        def compile_watched(function: Callable[..., Any]) -> Callable[..., Any]:
            compiled = compile(function)

            def call(*args: Any) -> Any:
                if not self._active:
                    return compiled(*args)
                with _disable_current_modes():
                    out = compiled(*args)
                    self.see(f"compiled {function.__name__}", args, out)
                return out

            return call

        return compile_watched

    def see(self, name: str, args: Any, out: Any) -> None:
        if len(self.found) < MOST and any(_nans(out)):
            self.found.append(
                f"{name} gave {_nans(out)} NaN of {[x.numel() for x in _tensors(out)]} values "
                f"from {_nans(args)} in {[tuple(x.shape) for x in _tensors(args)]}, at {_place()}"
            )


class _EachOperation(TorchDispatchMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        if "empty" not in str(function):  # memory that nobody has written yet may hold anything
            self._watch.see(str(function), args, out)
        return out


def not_finite(tensors: dict[str, Tensor]) -> list[str]:
    """Names of tensors with a NaN or an infinity."""
    return [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors(value)


def _nans(values: Any) -> list[int]:
    return [int(x.isnan().sum()) for x in _tensors(values)]


def _place() -> str:
    """The innermost lines of this folder, or of the pass back."""
    here = Path(__file__)
    frames = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in traceback.extract_stack()
        if Path(frame.filename).parent == here.parent and Path(frame.filename) != here
    ]
    return " ".join(frames[-3:]) or "the backward pass"
