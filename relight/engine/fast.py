"""Chooses kernels for a device, tries them and gives them to the weights. Knows no request."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import torch

from relight.base.errors import BadSetting
from relight.kernels.bind import Binder
from relight.kernels.canary import Trial, check
from relight.kernels.cuda_tools import EXPERTS, LINEAR, Chosen, choose_kernels
from relight.kernels.device import answers
from relight.kernels.experts.given import GivenExperts
from relight.kernels.experts.step import StepExperts
from relight.kernels.linear.given import GivenLinear
from relight.kernels.linear.step import StepLinear
from relight.kernels.row_ops import chosen_ops
from relight.kernels.select import AUTO, REFERENCE, Selection
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials import trials

log = logging.getLogger(__name__)

Tree = TypeVar("Tree")
Trials = Callable[[Toolbox, torch.device], Iterable[Trial]]


def chosen_kernels(wish: str, device: torch.device, cache: str = "") -> Chosen:
    """Of the setting `kernels`; compiled ones are kept in the folder `cache`. Raises BadSetting
    where what is asked for by name cannot act at all, before weights are read."""
    if cache and wish == REFERENCE:
        raise BadSetting(
            f"kernel_cache is {cache} and kernels is {wish}, which compiles none; leave one out",
            param="kernel_cache",
        )
    heard: list[str] = []
    chosen = choose_kernels(wish, device, heard.append, Path(cache).expanduser() if cache else None)
    if wish not in (AUTO, REFERENCE) and chosen.tools is None:
        raise BadSetting(
            f"kernels is {wish!r}, and none of them can run on {device}: {'; '.join(heard)}; "
            "give --kernels auto or reference",
            param="kernels",
        )
    if cache and chosen.tools is None:
        heard.append(
            f"kernel_cache {cache} has no effect: kernels {wish} compiles none on {device}"
        )
    for text in heard:
        log.warning("%s", text)
    return chosen


def give_kernels(
    chosen: Chosen, weights: Tree, device: torch.device, candidates: Trials = trials
) -> tuple[Tree, Selection, tuple[str, ...]]:
    """The weights with the kernels that pass their trials, what was selected in the end, and what
    there is to say of it. Raises BadSetting where a trial took the device down."""
    if chosen.tools is None:
        return weights, Selection(), ()
    tools = chosen.tools
    selection = check(chosen.selection, candidates(tools, device))
    # Those that were not chosen at all come first, and were told.
    refused = [str(refusal) for refusal in selection.refused[len(chosen.selection.refused) :]]
    if refused and not answers(device):
        raise BadSetting(
            f"the device computes no more after the trial of a kernel ({refused[0]}): start again, "
            "with --kernels reference",
            param="kernels",
        )
    for text in refused:
        log.warning("a kernel is refused, its op runs the torch definition: %s", text)
    binder = _binder(tools, selection)
    bound: Tree = binder.bind(weights)
    made, given = (
        ", ".join(f"{count} weights of {op}" for op, count in table.items())
        for table in (binder.bound.made, binder.bound.given)
    )
    left = [f"{count} of {reason}" for reason, count in binder.bound.left.items()]
    notes = [f"kernels for generated tokens: {made or 'no weight takes them'}"]
    if given:
        notes.append(f"kernels for prompts: {given}")
    if left:
        notes.append(f"weights that stay with the torch definition: {'; '.join(left)}")
    for family, rows in (("step", "generated tokens"), ("prefill", "prompts")):
        ops = {one.op for one in selection.chosen if one.family == family}
        between = sorted(ops - {LINEAR.op, EXPERTS.op})
        if between:
            notes.append(f"kernels between products for {rows}: {', '.join(between)}")
    return bound, selection, (*refused, *notes)


def bind_kernels(chosen: Chosen, selection: Selection, weights: Tree) -> Tree:
    """Further weights with the kernels that have passed their trials."""
    if chosen.tools is None:
        return weights
    bound: Tree = _binder(chosen.tools, selection).bind(weights)
    return bound


def _binder(tools: Toolbox, selection: Selection) -> Binder:
    return Binder(
        StepLinear(tools) if LINEAR in selection.chosen else None,
        StepExperts(tools) if EXPERTS in selection.chosen else None,
        chosen_ops(tools, selection),
        given_linear=GivenLinear(tools) if _serves_prompts(selection, LINEAR.op) else None,
        given_experts=GivenExperts(tools) if _serves_prompts(selection, EXPERTS.op) else None,
    )


def _serves_prompts(selection: Selection, op: str) -> bool:
    return selection.variant(op, "prefill") != REFERENCE
