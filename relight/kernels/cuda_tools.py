"""The CUDA variants: what they need, what is there of it, and the kernels of a device. Knows no
network."""

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from relight.base.proven import where
from relight.kernels.build import builder
from relight.kernels.device import architecture, is_at_least_volta
from relight.kernels.launch import NoLauncher, cuda_launcher
from relight.kernels.nvrtc import NoNvrtc, load
from relight.kernels.select import AUTO, REFERENCE, Refusal, Selection, Variant, choose
from relight.kernels.streams import side_stream
from relight.kernels.toolbox import Toolbox

DEVICE = "a CUDA device"
VOLTA = "SM70 or later"
NVRTC = "NVRTC for it"
CORE = "cuda-core"
ALL = (DEVICE, VOLTA, NVRTC, CORE)

LINEAR, EXPERTS, ATTEND, INDEX, HYPER, NORM, ROPE, QUANT, STORE, COMPRESS, ROUTE, SAMPLE, ENGRAM = (
    Variant(op, "step", "cuda", ALL, where(op, "step"))
    for op in (
        *("linear", "experts", "attend", "index"),
        *("hyper", "norm", "rope", "quant", "store", "compress", "route", "sample", "engram"),
    )
)
SMALL = (HYPER, NORM, ROPE, QUANT, STORE, COMPRESS, ROUTE, SAMPLE, ENGRAM)
GIVEN = {
    one.op: Variant(one.op, "prefill", "cuda", ALL, where(one.op, "prefill"))
    for one in (LINEAR, EXPERTS, ATTEND, INDEX, *SMALL)
    if one is not SAMPLE
}
"""By op. Products have kernels of their own for given rows, all else serves them as it is. A draw
has no family."""

VARIANTS = (LINEAR, EXPERTS, ATTEND, INDEX, *SMALL, *GIVEN.values())

Tell = Callable[[str], None]


def supported(device: torch.device, tell: Tell, library: Path | None = None) -> set[str]:
    """What is there of what variants need, and the architecture of a CUDA device; `tell` hears why
    the device or NVRTC will not do."""
    found: set[str] = set()
    if device.type != "cuda":
        return found
    found |= {DEVICE, architecture(device)}
    if not is_at_least_volta(device):
        tell(
            f"the device is {architecture(device)}, and kernels need {VOLTA} (a V100 is sm_70); "
            "ops run their torch definitions"
        )
        return found
    found.add(VOLTA)
    try:
        load(architecture(device), library)
        found.add(NVRTC)
    except NoNvrtc as problem:
        tell(f"{problem.message}; ops run their torch definitions")
    if importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.core"):
        found.add(CORE)
    return found


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was selected, and the kernels to run it with if there are any."""

    selection: Selection
    tools: Toolbox | None


def select(wish: str, device: torch.device, tell: Tell) -> Selection:
    """`wish` as `select.choose`. `tell` hears what is refused of what was asked for; of `auto` that
    is what is proven anywhere, where there is a CUDA device."""
    wanted = [one for one in VARIANTS if wish not in (AUTO, REFERENCE) or one.proven]
    if wish == REFERENCE or not wanted or (wish == AUTO and device.type != "cuda"):
        return choose(wish, VARIANTS, ())
    selection = choose(wish, VARIANTS, supported(device, tell))
    for text in by_reason(one for one in selection.refused if one.variant in wanted):
        tell(text)
    return selection


def by_reason(refused: Iterable[Refusal]) -> Iterator[str]:
    """A line for each reason."""
    ops: dict[str, list[str]] = {}
    for refusal in refused:
        ops.setdefault(refusal.reason, []).append(refusal.variant.op)
    for reason, names in ops.items():
        yield f"kernels for {', '.join(dict.fromkeys(names))} do not run: {reason}"


def choose_kernels(
    wish: str, device: torch.device, tell: Tell, cache: Path | None = None
) -> Chosen:
    """What `select` gives, with the kernels to run it."""
    selection = select(wish, device, tell)
    if not selection.chosen:
        return Chosen(selection, None)
    try:
        return Chosen(selection, toolbox(device, tell, cache))
    except (NoLauncher, NoNvrtc) as problem:
        tell(f"{problem.message}; ops run their torch definitions")
        return Chosen(Selection(), None)


def toolbox(
    device: torch.device, tell: Tell, cache: Path | None = None, library: Path | None = None
) -> Toolbox:
    """The kernels of a CUDA device. Raises NoNvrtc or NoLauncher."""
    made = builder(architecture(device), tell, cache, library)
    return Toolbox(made, cuda_launcher(device), side_stream(device))
