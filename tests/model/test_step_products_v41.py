"""A V4.1 network of whole units, lane by lane on a processor: no product of a step and of its draft
is left to the definition, and both leave nearly what the definitions leave."""

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from relight.base.headers import StoredTensor
from relight.base.numerics import OFFICIAL, OFFICIAL_BF16, Numerics
from relight.base.tensors import backbone_tensors, draft_tensors
from relight.cache.layout import PAGE_TOKENS
from relight.engine.plan import Rows
from relight.kernels import experts, linear
from relight.kernels.bind import Binder
from relight.kernels.cuda_tools import VARIANTS
from relight.kernels.experts.step import StepExperts
from relight.kernels.linear.step import StepLinear
from relight.kernels.row_ops import DEFINITIONS, NO_KERNELS, chosen_ops
from relight.kernels.select import Selection
from relight.lab.random_model import RandomSource
from relight.lab.synth import TINY_V41
from relight.model.draft import Draft, Proposal
from relight.model.state import draft_rings
from relight.model.weights_draft import DraftWeights, LoadedDraft
from relight.model.weights_v41 import LoadedV41, ModelWeightsV41
from tests.model.harness import Driver
from tools.emulate import emulated

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]

CPU = torch.device("cpu")
CONFIG = replace(
    TINY_V41,
    vocab_size=512,
    hidden_size=384,
    num_experts=32,
    draft=replace(TINY_V41.draft, noise_token_id=511, markov_rank=64, num_experts=32),
)
PROMPT = [random.Random(7).randrange(4, 500) for _ in range(PAGE_TOKENS + 4)]
START = PAGE_TOKENS - 1
NEAR = 0.05
"""As a share of the norm: a value that falls on another side of a step of E4M3 differs by 2^-4."""


def made() -> tuple[ModelWeightsV41, DraftWeights]:
    specs = {t.name: t for t in (*backbone_tensors(CONFIG), *draft_tensors(CONFIG))}
    stored = {n: StoredTensor(n, t.dtype, t.shape, Path(), 0, t.nbytes) for n, t in specs.items()}
    torch.manual_seed(8)
    source, classes = RandomSource(CPU, specs), torch.arange(CONFIG.vocab_size)
    backbone = {n: t for n, t in stored.items() if not n.startswith("mtp.")}
    staged = {n: t for n, t in stored.items() if n.startswith("mtp.")}
    stages = replace(CONFIG, num_experts=CONFIG.draft_experts)
    network = LoadedV41(CONFIG, backbone, source, "device").network(classes)
    return network, LoadedDraft(stages, staged, source).draft()


@contextmanager
def noted() -> Iterator[list[tuple[int, ...]]]:
    """Shapes of the weights of which definitions multiply made rows inside the block."""
    left: list[tuple[int, ...]] = []

    def note(call: Callable[..., Tensor], family: int) -> Callable[..., Tensor]:
        def noting(*given: Any) -> Tensor:
            if given[family] == "step":
                weights = [one.shape for one in given if hasattr(one, "decode")]
                left.extend(weights or [(-1,)])
            return call(*given)

        return noting

    with pytest.MonkeyPatch.context() as patch:
        for module, name, family in (
            (linear.reference, "linear", 2),
            (linear.reference, "grouped", 2),
            (experts.reference, "experts", 7),
        ):
            patch.setattr(module, name, note(getattr(module, name), family))
        yield left


def run(
    weights: ModelWeightsV41, draft: DraftWeights, numerics: Numerics
) -> tuple[Tensor, Proposal, list]:
    """Logits of made rows, what the draft proposes behind them, and what definitions multiplied."""
    driver = Driver(CONFIG, weights, numerics, num_slots=1, context=2 * PAGE_TOKENS, draft=True)
    model, runner = driver.runner.model, driver.runner
    drafting = Draft(CONFIG, draft, weights.embed, weights.head, numerics, weights.ops)
    rings = draft_rings(CONFIG, driver.pool)
    driver.set_length(0, 0)

    def feed(family: Any, tokens: list[int]) -> Tensor:
        rows = [Rows(0, driver.length(0), tuple(tokens), sample=True)]
        segment = runner.batch.segment(family, rows)
        segment = replace(segment, sample_rows=torch.arange(len(tokens)))
        taps: list[Tensor] = []
        logits = model.forward(segment, runner.states, taps)
        drafting.keep(torch.cat(taps, dim=1), segment, rings)
        runner.lengths[0] += len(tokens)
        return logits

    feed("prefill", PROMPT[:START])
    with noted() as left:
        logits = torch.cat(
            [feed("step", PROMPT[START : START + 1]), feed("step", PROMPT[START + 1 :])]
        )
        last = torch.tensor([len(PROMPT) - 1])
        proposal = drafting.propose(torch.tensor([0]), last, torch.tensor([PROMPT[5]]), rings)
    return logits, proposal, left


@pytest.mark.parametrize(("arch", "numerics"), [("sm_90", OFFICIAL_BF16), ("sm_70", OFFICIAL)])
def test_a_step_and_its_draft_by_kernels_are_near_and_complete(
    tmp_path: Path, arch: str, numerics: Numerics
) -> None:
    """With what official numerics have between ops on such a device: bf16 or float32."""
    weights, draft = made()
    wanted, proposed, left = run(weights, draft, numerics)
    assert len(left) > 100
    tools = emulated(arch, tmp_path)
    ops = replace(chosen_ops(tools, Selection(VARIANTS)), prefill=DEFINITIONS)
    binder = Binder(StepLinear(tools), StepExperts(tools), ops)
    fast, fast_draft = binder.bind(weights), binder.bind(draft)
    assert fast.ops is not NO_KERNELS
    assert binder.bound.left == {}
    found, found_proposal, left = run(fast, fast_draft, numerics)
    confidence = (1, CONFIG.hidden_size + CONFIG.draft.markov_rank)
    assert left == [confidence] * CONFIG.draft.block_size
    assert (found - wanted).norm() <= NEAR * wanted.norm()
    base = proposed.base_logits
    assert (found_proposal.base_logits - base).norm() <= NEAR * base.norm()
