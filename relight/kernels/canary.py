"""Tries each chosen kernel once on random input before it may serve, beside its torch definition.
Knows no op.

What it can catch: a driver, compiler or device that computes something else than what was tested.
A kernel passes if its error is within its tolerance and a row alone has the bits that it has among
others.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from relight.kernels.select import Refusal, Selection, Variant

Rows = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Trial:
    """One shape of one variant. Rows [n, ..] go in and rows [n, ..] come out."""

    variant: Variant
    shape: str  # for people
    inputs: Callable[[], Tensor]
    kernel: Rows
    reference: Rows
    tolerance: float  # of the norm of the difference, as a share of the reference's norm

    def some(self, count: int) -> Tensor:
        """Rows that go in, so many of them."""
        found = self.inputs()
        while len(found) < count:
            found = torch.cat([found, self.inputs()])
        return found[:count]


def check(selection: Selection, trials: Iterable[Trial]) -> Selection:
    """The selection without the variants that failed a trial."""
    failed: dict[Variant, Refusal] = {}
    for trial in trials:
        if trial.variant in selection.chosen and trial.variant not in failed:
            problem = _problem(trial)
            if problem:
                failed[trial.variant] = Refusal(trial.variant, f"{trial.shape}: {problem}")
    return selection.without(failed.values())


def _problem(trial: Trial) -> str:
    x = trial.inputs()
    try:
        found = trial.kernel(x)
        alone = torch.cat([trial.kernel(x[at : at + 1]) for at in range(x.shape[0])])
        wanted = trial.reference(x)
    except Exception as error:  # whatever a kernel can fail by must not end the server
        return f"it failed ({type(error).__name__}: {error})"
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"it gave {found.dtype} {list(found.shape)}, not {wanted.dtype} {list(wanted.shape)}"
    share = relative_error(found, wanted)
    if not share <= trial.tolerance:  # a NaN is no pass
        return f"its relative error is {share:.1e}, above {trial.tolerance:.1e}"
    if alone.shape != found.shape:
        return f"rows alone gave {list(alone.shape)}, not {list(found.shape)}"
    differing = (alone != found).flatten(1).any(1).nonzero()
    if len(differing):
        return f"row {int(differing[0])} alone has other bits than among {x.shape[0]} rows"
    return ""


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Norm of the difference over the norm of what was wanted, in float64."""
    exact = wanted.double()
    size = float(exact.norm())
    return float((found.double() - exact).norm()) / size if size else float(found.double().norm())
