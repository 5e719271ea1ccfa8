"""Given rows through routed experts inside the network, lane by lane on a processor: a prompt
leaves nearly what the definition leaves, and the same however it is cut."""

import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.numerics import OFFICIAL, OFFICIAL_BF16, Numerics
from relight.cache.layout import PAGE_TOKENS
from relight.kernels.bind import Binder
from relight.kernels.codec import StackedFp4
from relight.kernels.experts import Experts
from relight.kernels.experts.given import GivenExperts
from relight.model.network import load
from tests.model.harness import GOLDEN, Driver, same_bits
from tools.emulate import emulated

PROMPT = [random.Random(8).randrange(4, 320) for _ in range(40)]
CUTS = (1, 9, 10)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


class Counting(GivenExperts):
    """How many rows it was asked for: with sums as short as here bits may well be the
    definition's."""

    rows = 0

    def experts(self, x: Tensor, *arguments: Any) -> Tensor:
        self.rows += len(x)
        return super().experts(x, *arguments)


class Moving(Binder):
    """Weights of a file lie anywhere; those of a device begin at whole 16 bytes."""

    def _stacks(self, stacks: Experts) -> Experts:
        parts = {name: getattr(stacks, name) for name in ("w1", "w3", "w2")}
        moved = {
            name: replace(w, data=w.data.clone(), scale=w.scale.clone())
            for name, w in parts.items()
            if isinstance(w, StackedFp4)
        }
        return super()._stacks(replace(stacks, **moved))


@pytest.mark.parametrize(
    ("numerics", "arch"), [(OFFICIAL, "sm_70"), (OFFICIAL_BF16, "sm_80")], ids=["float32", "bf16"]
)
def test_a_prompt_through_experts_is_near_its_definition_and_alike_in_any_chunks(
    tmp_path: Path, numerics: Numerics, arch: str
) -> None:
    model = open_model(GOLDEN / "v4" / "checkpoint")
    weights = load(model, torch.device("cpu"))
    fast = Counting(emulated(arch, tmp_path))
    binder = Moving(None, None, given_experts=fast)
    bound = binder.bind(weights)
    assert (binder.bound.given, binder.bound.left) == ({"experts": 4}, {})

    def read(some, cuts: Sequence[int] = ()) -> tuple[Tensor, dict[str, Tensor]]:
        driver = Driver(model.config, some, numerics, num_slots=2, context=2 * PAGE_TOKENS)
        driver.set_length(1, 0)
        return driver.given(1, PROMPT, cuts), driver.readable(1)

    wanted, _ = read(weights)
    found, state = read(bound)
    assert fast.rows == 4 * len(PROMPT)
    assert (found - wanted).norm() <= 0.05 * wanted.norm()
    cut, cut_state = read(bound, CUTS)
    assert same_bits(cut, found)
    assert [kind for kind, rows in state.items() if not torch.equal(rows, cut_state[kind])] == []
