"""Products of given rows inside the network, lane by lane on a processor: prompts leave what the
definitions leave, in every bit however they are cut."""

import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.numerics import OFFICIAL, OFFICIAL_BF16, Numerics
from relight.cache.layout import PAGE_TOKENS
from relight.kernels.bind import Binder
from relight.kernels.codec import DenseWeight, Fp8Weight
from relight.kernels.linear.given import GivenLinear
from relight.model.network import load
from tests.model.harness import GOLDEN, Driver, same_bits
from tools.emulate import emulated

PROMPT = [random.Random(7).randrange(4, 320) for _ in range(80)]
CUTS = (1, 9, 10)  # the last chunk and the whole are enough for wide tiles

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


class Moving(Binder):
    """Weights of a file lie anywhere; those of a device begin at whole 16 bytes."""

    def _weight(self, w: DenseWeight | Fp8Weight) -> DenseWeight | Fp8Weight:
        moved = {name: getattr(w, name).clone() for name in ("data", "scale") if hasattr(w, name)}
        return super()._weight(replace(w, **moved))


@pytest.mark.parametrize(
    ("numerics", "arch"),
    [(OFFICIAL, "sm_70"), (OFFICIAL_BF16, "sm_80")],
    ids=["float32-codes", "bf16-values"],
)
def test_a_prompt_by_kernels_is_near_its_definition_and_alike_in_any_chunks(
    tmp_path: Path, numerics: Numerics, arch: str
) -> None:
    model = open_model(GOLDEN / "v4" / "checkpoint")
    weights = load(model, torch.device("cpu"))
    binder = Moving(None, None, given_linear=GivenLinear(emulated(arch, tmp_path), enough_blocks=1))
    bound = binder.bind(weights)
    routers = {"linear for prompts: it has 4 rows, not a multiple of 8": 4}
    assert (binder.bound.given, binder.bound.left) == ({"linear": 47}, routers)

    def read(some, cuts: Sequence[int] = ()) -> tuple[Tensor, dict[str, Tensor]]:
        context = 2 * PAGE_TOKENS
        driver = Driver(model.config, some, numerics, num_slots=2, context=context)
        driver.set_length(1, 0)
        return driver.given(1, PROMPT, cuts), driver.readable(1)

    wanted, _ = read(weights)
    found, state = read(bound)
    assert not same_bits(found, wanted), "no kernel was asked"
    assert (found - wanted).norm() <= 0.05 * wanted.norm()
    cut, cut_state = read(bound, CUTS)
    assert same_bits(cut, found)
    assert cut_state.keys() == state.keys()
    assert [kind for kind, rows in state.items() if not torch.equal(rows, cut_state[kind])] == []
