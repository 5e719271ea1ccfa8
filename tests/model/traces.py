"""What traces of the float32 networks are compared with: files of the goldens, and choices where
the margin says that there was one."""

import json
from pathlib import Path

import torch
from torch import Tensor
from torch.testing import assert_close

from relight.model.reference_parts import LayerTrace, Selection

CLEAR = 1e-4  # a choice with a smaller margin may fall either way


def prompts_of(folder: Path) -> dict[str, Tensor]:
    """Token ids by the name of their prompt."""
    stored = json.loads((folder / "prompts.json").read_text())
    return {name: torch.tensor(ids) for name, ids in stored.items()}


def with_prefix(golden: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in golden.items()
        if name.startswith(prefix)
    }


def check_logits(logits: Tensor, golden: dict[str, Tensor]) -> None:
    """Of a prompt in one call: those of the last rows, and the best of every row."""
    assert_close(logits[-32:], golden["logits_last"], rtol=0, atol=5e-5)
    best = logits.gather(-1, golden["top8_ids"].long())
    assert_close(best, golden["top8_values"], rtol=0, atol=5e-5)


def check_routing(golden: dict[str, Tensor], index: int, done: LayerTrace, first: int) -> None:
    """Experts and their weights of the rows from position `first` on."""
    clear = done.routing.margin[0, first:] > CLEAR
    experts = done.routing.experts[0, first:]
    assert torch.equal(experts[clear], golden[f"route_ids.{index}"].long()[clear])
    weights = done.routing.weights[0, first:]
    assert_close(weights[clear], golden[f"route_weights.{index}"][clear], rtol=0, atol=1e-5)


def check_entries(golden: dict[str, Tensor], index: int, got: Selection, first: int) -> None:
    """Selected entries of the rows from position `first` on, and their margins."""
    want = golden[f"index_topk.{index}"].long()  # as wide as the longest list in this call
    clear = got.margin[0, first:] > CLEAR
    assert torch.equal(got.entries[0, first:, : want.shape[1]][clear], want[clear])
    margin = golden.get(f"index_margin.{index}")
    if margin is not None:
        assert_close(got.margin[0, first:], margin, rtol=0, atol=2e-5)
