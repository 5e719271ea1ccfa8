"""Compares the float32 draft with what the official code proposes in float32 (tests/golden)."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from relight.base.config import read_config
from relight.base.specs import ModelConfig
from relight.model.reference import ReferenceModel
from relight.model.reference_draft import Draft, ReferenceDraft
from relight.model.reference_parts import Trace
from relight.model.reference_v41 import ReferenceV41
from tests.model.official import dequantised
from tests.model.traces import CLEAR

GOLDEN = Path(__file__).parents[1] / "golden"
POSITIONS = (3, 4, 5, 6, 126, 127, 128, 129, 298, 299)


@dataclass(frozen=True)
class Setting:
    """A golden model that has read its prompt."""

    config: ModelConfig
    draft: ReferenceDraft
    taps: Tensor  # [T, taps · D]
    logits: Tensor  # [T, V]
    golden: dict[str, Tensor]

    def propose(self, position: int) -> Draft:
        context = self.draft.context(self.taps)
        return self.draft.propose(context, position, int(self.logits[position].argmax()))


@pytest.fixture(scope="module", params=["v4_dspark", "v41"])
def setting(request: pytest.FixtureRequest) -> Setting:
    folder = GOLDEN / request.param
    config = read_config(folder / "checkpoint").config
    tensors = dequantised(folder / "checkpoint", config.fp8_block)
    ids = torch.tensor(json.loads((folder / "prompts.json").read_text())["decode_and_draft"])
    trace = Trace()
    with torch.no_grad():
        if config.generation == "v4":
            logits = ReferenceModel(config, tensors).forward(ids, trace)
        else:
            classes = json.loads((folder / "engram.json").read_text())["token_map"]
            logits = ReferenceV41(config, tensors, torch.tensor(classes)).forward(ids, trace)
        draft = ReferenceDraft(config, tensors)
        taps = draft.taps(trace.layers)[0]
    golden = load_file(folder / "float32_draft.safetensors")
    return Setting(config, draft, taps, logits, golden)


@torch.no_grad()
@pytest.mark.parametrize("position", POSITIONS)
def test_a_proposal_equals_the_official_one(setting: Setting, position: int) -> None:
    """With a window that is not full yet, at its edge, and long behind it."""
    want = {
        name.split("/")[1]: tensor
        for name, tensor in setting.golden.items()
        if name.startswith(f"s{position}/")
    }
    assert_close(setting.taps[position], want["main_hidden"], rtol=0, atol=1e-4)
    assert int(setting.logits[position].argmax()) == int(want["anchor"])
    got = setting.propose(position)
    for stage, done in enumerate(got.stages):
        assert_close(done.streams, want[f"draft_h.{stage}"], rtol=0, atol=1e-4)
        clear = done.routing.margin[0] > CLEAR
        experts = want[f"draft_route_ids.{stage}"].long()
        assert torch.equal(done.routing.experts[0][clear], experts[clear])
        if setting.config.generation == "v4.1":
            assert_close(done.pre, want[f"draft_pre_mix.{stage}"], rtol=0, atol=1e-5)
    assert_close(got.base_logits, want["base_logits"], rtol=0, atol=5e-5)
    assert_close(got.logits, want["logits"], rtol=0, atol=5e-5)
    assert_close(got.confidence, want["confidence"], rtol=0, atol=5e-5)
    assert [int(want["anchor"]), *got.tokens] == want["draft_ids"].tolist()


@torch.no_grad()
def test_a_proposal_reads_the_window_up_to_its_position_alone(setting: Setting) -> None:
    """So a ring of the window's size holds what a draft needs."""
    wanted = setting.propose(200)
    first = 200 + 1 - setting.config.window
    context = setting.draft.context(setting.taps)
    for outside in (slice(0, first), slice(201, None)):
        changed = [rows.clone() for rows in context]
        for rows in changed:
            rows[outside] = 7
        got = setting.draft.propose(changed, 200, int(setting.logits[200].argmax()))
        assert torch.equal(got.logits, wanted.logits)
    for edge in (first, 200):
        changed = [rows.clone() for rows in context]
        for rows in changed:
            rows[edge] = 7
        got = setting.draft.propose(changed, 200, int(setting.logits[200].argmax()))
        assert not torch.equal(got.logits, wanted.logits)


@torch.no_grad()
def test_context_rows_come_position_by_position(setting: Setting) -> None:
    """So a prompt that is read in chunks seeds them chunk by chunk."""
    whole = setting.draft.context(setting.taps)
    part = setting.draft.context(setting.taps[:90])
    for rows, start in zip(whole, part, strict=True):
        assert_close(rows[:90], start, rtol=0, atol=1e-5)


@torch.no_grad()
def test_every_proposal_follows_from_the_token_that_was_picked_before_it(setting: Setting) -> None:
    """Other picks change the logits behind them, not the ones before and not the base."""
    context, anchor = setting.draft.context(setting.taps), int(setting.logits[40].argmax())
    greedy = setting.draft.propose(context, 40, anchor)
    seen: list[int] = []

    def second_best(logits: Tensor, position: int) -> int:
        seen.append(position)
        best = 1 if position == 44 else 0
        return int(logits.topk(2).indices[best])

    other = setting.draft.propose(context, 40, anchor, second_best)
    assert seen == [42, 43, 44, 45, 46]
    assert torch.equal(other.base_logits, greedy.base_logits)
    same = [torch.equal(a, b) for a, b in zip(other.logits, greedy.logits, strict=True)]
    assert same == [True, True, True, False, same[4]]
    assert other.tokens[:2] == greedy.tokens[:2]
    assert other.tokens[2] != greedy.tokens[2]


@torch.no_grad()
def test_every_tensor_of_the_draft_matters_but_the_bias_for_images(setting: Setting) -> None:
    wanted = setting.propose(60)
    anchor = int(setting.logits[60].argmax())
    for name, tensor in setting.draft.tensors.items():
        if not name.startswith("mtp.") or ".experts." in name:
            continue
        noise = 10 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(2))
        draft = ReferenceDraft(setting.config, {**setting.draft.tensors, name: tensor + noise})
        got = draft.propose(draft.context(setting.taps[:61]), 60, anchor)
        changed = got.logits if "confidence" not in name else got.confidence
        before = wanted.logits if "confidence" not in name else wanted.confidence
        assert ((changed - before).abs().max() < 1e-5) == ("bias_vl" in name), name
