import math

import pytest
import torch
from torch import Tensor

from relight.kernels.sample import score_tokens
from relight.kernels.testing import assert_rows_invariant

VOCAB = 2125


def test_log_probabilities_are_log_softmax_in_double(device: str) -> None:
    logits = (torch.randn(17, VOCAB) * 4).to(device)
    tokens = torch.randint(0, VOCAB, (17,)).to(device)
    found = score_tokens(logits, tokens, 20)
    wanted = torch.log_softmax(logits.double().cpu(), 1)
    own = wanted.gather(1, tokens.cpu().unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(found.own.double().cpu(), own, rtol=1e-6, atol=2e-6)
    best = wanted.topk(20, dim=1)
    assert torch.equal(found.top_ids.cpu(), best.indices)
    torch.testing.assert_close(found.top.double().cpu(), best.values, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("count", [0, 1, 3, 20, VOCAB, VOCAB + 9])
def test_the_best_are_descending_and_of_equals_the_lowest_come_first(
    device: str, count: int
) -> None:
    logits = (torch.randn(5, VOCAB) * 2).round().to(device)
    logits[4] = 1.0
    found = score_tokens(logits, torch.zeros(5, dtype=torch.int64, device=device), count)
    wanted = logits.cpu().sort(dim=1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(found.top_ids.cpu(), wanted)


def test_more_of_the_best_begin_with_the_same(device: str) -> None:
    logits = (torch.randn(6, VOCAB) * 2).round().to(device)
    tokens = torch.zeros(6, dtype=torch.int64, device=device)
    few, many = score_tokens(logits, tokens, 3), score_tokens(logits, tokens, 20)
    assert torch.equal(few.top_ids, many.top_ids[:, :3])
    assert torch.equal(few.top, many.top[:, :3])


def test_log_probabilities_do_not_depend_on_mates(device: str) -> None:
    inputs = {
        "logits": (torch.randn(40, VOCAB) * 4).to(device),
        "tokens": torch.randint(0, VOCAB, (40,)).to(device),
    }

    def own(logits: Tensor, tokens: Tensor) -> Tensor:
        return score_tokens(logits, tokens, 5).own

    def top(logits: Tensor, tokens: Tensor) -> Tensor:
        return score_tokens(logits, tokens, 5).top

    for op in (own, top):
        assert_rows_invariant(op, inputs, "step")


def test_what_a_model_excludes_has_the_log_of_nothing(device: str) -> None:
    logits = torch.zeros(1, 4, device=device)
    logits[0, 1:] = -math.inf
    found = score_tokens(logits, torch.zeros(1, dtype=torch.int64, device=device), 4)
    assert found.own.tolist() == [0.0]
    assert found.top.tolist() == [[0.0, -math.inf, -math.inf, -math.inf]]
