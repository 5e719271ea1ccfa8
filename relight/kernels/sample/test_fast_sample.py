"""Draws of which kernels do a part: what is left to the definition, without a device."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relight.kernels.sample import (
    NOT_DRAWN,
    Adjustments,
    Places,
    SampleParams,
    sample,
)

VOCAB = 50
NAN, INF = float("nan"), float("inf")


@dataclass
class Definition:
    """Draws for all rows as if none were cut, and counts."""

    calls: int = 0

    def takes(self, logits: Tensor) -> bool:
        return True

    def draw(self, logits: Tensor, params: SampleParams) -> Tensor:
        self.calls += 1
        whole = torch.ones_like(params.top_p), torch.zeros_like(params.top_k)
        return sample(logits, replace(params, top_p=whole[0], top_k=whole[1]))


def params(count: int) -> SampleParams:
    """Of every three rows one is greedy, one drawn, one cut."""
    row = torch.arange(count)
    kind = row % 3
    return SampleParams(
        temperature=(kind > 0).float(),
        top_p=torch.where(kind == 2, 0.5, 1.0),
        top_k=torch.where(kind == 2, 4, 0),
        min_p=torch.zeros(count),
        seed=row * 31,
        choice=torch.zeros_like(row),
        position=row,
    )


def test_rows_that_kernels_do_not_draw_are_drawn_by_the_definition() -> None:
    logits, fast = torch.randn(60, VOCAB) * 3, Definition()
    logits[5, 3], logits[7, 9], logits[8] = NAN, INF, -INF
    wanted = sample(logits, params(60))
    assert torch.equal(sample(logits, params(60), fast=fast), wanted)
    assert fast.calls == 1
    assert wanted[[5, 7, 8]].tolist() == [NOT_DRAWN] * 3


def test_adjusted_rows_are_drawn_from_what_is_left_of_them() -> None:
    logits = torch.randn(9, VOCAB) * 3
    logits[4, 0] = NAN
    logits[1, 1:] = -INF
    banned = Places(torch.tensor([0, 1, 1]), torch.tensor([7, 0, 3]))
    adjustments = Adjustments(torch.tensor([1, 4, 5]), banned=banned)
    wanted = sample(logits, params(9), adjustments)
    assert torch.equal(sample(logits, params(9), adjustments, Definition()), wanted)
    assert wanted[4] == NOT_DRAWN


def test_without_cuts_nothing_is_left() -> None:
    logits, some = torch.randn(3, VOCAB), params(3)
    plain = replace(some, drawn=torch.tensor([1]), cut=torch.tensor([], dtype=torch.int64))
    fast = Definition()
    found = sample(logits[:2], first(plain, 2), fast=fast)
    assert torch.equal(found, sample(logits[:2], first(plain, 2)))


def first(some: SampleParams, count: int) -> SampleParams:
    names = ("temperature", "top_p", "top_k", "min_p", "seed", "choice", "position")
    return replace(some, **{name: getattr(some, name)[:count] for name in names})
