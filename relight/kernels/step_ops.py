"""The kernels for made rows of the ops whose weights are plain tensors. Knows no op's arguments."""

from dataclasses import dataclass

from relight.kernels.attend.step import StepAttend
from relight.kernels.compress.step import StepCompress
from relight.kernels.experts.shared import StepShared
from relight.kernels.hyper.step import StepHyper
from relight.kernels.index.step import StepIndex
from relight.kernels.route.step import StepRoute
from relight.kernels.sample.step import StepSample
from relight.kernels.select import Selection
from relight.kernels.toolbox import Toolbox
from relight.kernels.vectors import StepVectors


@dataclass(frozen=True, slots=True)
class StepOps:
    """None: the op's definition runs. `vectors` is norm, rope, quant and store."""

    hyper: StepHyper | None = None
    vectors: StepVectors | None = None
    compress: StepCompress | None = None
    route: StepRoute | None = None
    shared: StepShared | None = None
    sample: StepSample | None = None
    attend: StepAttend | None = None
    index: StepIndex | None = None


NO_KERNELS = StepOps()


def step_ops(tools: Toolbox, selection: Selection) -> StepOps:
    """Those that were chosen."""
    chosen = frozenset(one.op for one in selection.chosen if one.family == "step")
    return StepOps(
        hyper=StepHyper(tools) if "hyper" in chosen else None,
        vectors=StepVectors(tools, chosen),
        compress=StepCompress(tools) if "compress" in chosen else None,
        route=StepRoute(tools) if "route" in chosen else None,
        shared=StepShared(tools) if "experts" in chosen else None,
        sample=StepSample(tools) if "sample" in chosen else None,
        attend=StepAttend(tools) if "attend" in chosen else None,
        index=StepIndex(tools) if "index" in chosen else None,
    )
