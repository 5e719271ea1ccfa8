"""Which matrices of V4-Flash and V4.1-Flash the step kernels multiply, and why not the others.

    python -m tools.kernel_table [sm_90]

Prints a table of docs/notes/kernels.md. Weights are made without memory: what is asked of them is
their form.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from relight.base.headers import StoredTensor
from relight.base.official import V4_FLASH_DSPARK, V41_FLASH
from relight.base.specs import ModelConfig
from relight.base.tensors import backbone_tensors, draft_tensors
from relight.kernels.codec import DenseWeight, Fp8Weight
from relight.kernels.experts import Experts
from relight.kernels.experts import step as experts_step
from relight.kernels.forms import form_of
from relight.kernels.linear import step as linear_step
from relight.kernels.linear.step import StepLinear
from relight.kernels.toolbox import Toolbox
from relight.model.source import WeightSource
from relight.model.weights import Loaded
from relight.model.weights_draft import LoadedDraft
from relight.model.weights_v41 import LoadedV41

META = torch.device("meta")
MODELS = {"V4": V4_FLASH_DSPARK, "V4.1": V41_FLASH}

LOOKED_UP = ("embed", "markov_embed")
"""Rows of these are read and not multiplied."""

FLOAT32_INPUT = ("confidence",)


@dataclass(frozen=True)
class Line:
    matrix: str
    shape: str
    format: str
    found: str  # "yes", or why not

    def __str__(self) -> str:
        return f"| {self.matrix} | {self.shape} | {self.format} | {self.found} |"


def weights(config: ModelConfig) -> tuple[Any, Any]:
    """Backbone and draft, on no device."""
    source = WeightSource(META)
    specs = {t.name: t for t in (*backbone_tensors(config), *draft_tensors(config))}
    stored = {n: StoredTensor(n, t.dtype, t.shape, Path(), 0, t.nbytes) for n, t in specs.items()}
    backbone = {n: t for n, t in stored.items() if not n.startswith("mtp.")}
    staged = {n: t for n, t in stored.items() if n.startswith("mtp.")}
    draft = LoadedDraft(replace(config, num_experts=config.draft_experts), staged, source).draft()
    if config.generation == "v4":
        return Loaded(config, backbone, source).model(), draft
    classes = torch.empty(config.vocab_size, dtype=torch.int64, device=META)
    return LoadedV41(config, backbone, source, "device").network(classes), draft


def matrices(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All weights with their names, without the numbers of layers."""
    if isinstance(tree, DenseWeight | Fp8Weight | Experts):
        yield name, tree
    elif isinstance(tree, tuple):
        for part in tree:
            yield from matrices(part, name)
    elif is_dataclass(tree):
        for one in fields(tree):
            yield from matrices(getattr(tree, one.name), f"{name}.{one.name}".lstrip("."))


def lines(config: ModelConfig, arch: str) -> list[Line]:
    form = form_of(arch)
    boundary = torch.bfloat16 if form.bf16 else torch.float32
    fast = StepLinear(cast(Toolbox, SimpleNamespace(form=form)))
    found: dict[Line, None] = {}
    for part, tree in zip(("", "draft."), weights(config), strict=True):
        for name, weight in matrices(tree):
            last = name.rsplit(".", 1)[-1]
            if last in LOOKED_UP:
                continue
            short = part + name.removeprefix("layers.").removeprefix("stages.")
            found[_line(fast, boundary, config, short, weight)] = None
    return list(found)


def _line(fast: StepLinear, boundary: torch.dtype, config: ModelConfig, name: str, w: Any) -> Line:
    if isinstance(w, Experts):
        count, inner, half = w.w1.data.shape
        objection = experts_step.objection_to_form(w.w1, w.w3, w.w2)
        shape = f"{count} × [{inner}, {2 * half}], [{2 * half}, {inner}]"
        form = f"FP4, tokens by {w.w1.act_block}"
        return Line(f"`{name}`", shape, form, objection or "yes")
    form = f"FP8 by {w.block}" if isinstance(w, Fp8Weight) else str(w.data.dtype)[6:]
    objection = _objection(fast, boundary, config, name, w)
    return Line(f"`{name}`", str(list(w.shape)), form, objection or "yes")


def _objection(
    fast: StepLinear, boundary: torch.dtype, config: ModelConfig, name: str, w: Any
) -> str:
    if problem := linear_step.objection_to_form(w):
        return problem
    if name.endswith("wo_a"):
        x = torch.empty(1, config.o_groups, w.shape[1], dtype=boundary, device=META)
        return "" if fast.takes_groups(x, w, boundary) else "its groups or tokens"
    wide = name.rsplit(".", 1)[-1] in FLOAT32_INPUT
    dtype = torch.float32 if wide else boundary
    x = torch.empty(1, w.shape[1], dtype=dtype, device=META)
    if fast.takes(x, w, quantised=isinstance(w, Fp8Weight)):
        return ""
    return "its tokens are float32" if wide else f"{w.shape[0]} outputs are no whole blocks"


def table(arch: str) -> Iterator[str]:
    for model, config in MODELS.items():
        yield f"| {model} | shape | stored | taken |"
        yield "| --- | --- | --- | --- |"
        yield from map(str, lines(config, arch))
        yield ""


def main() -> None:
    print("\n".join(table(sys.argv[1] if len(sys.argv) > 1 else "sm_90")))


if __name__ == "__main__":
    main()
