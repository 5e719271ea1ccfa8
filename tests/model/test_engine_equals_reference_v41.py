"""The V4.1 network over cached state against the float32 network without one, in reference
numerics: logits of every row, from any cut of a sequence into given and made rows."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from relight.base.checkpoint import open_model
from relight.base.config import ModelConfig, read_config
from relight.base.engram import table_rows
from relight.base.numerics import REFERENCE
from relight.base.schedule import csa2_schedule
from relight.base.specs import CandidateSpec, DraftSpec
from relight.lab.synth import synth
from relight.model.network import load
from relight.model.reference_v41 import ReferenceV41
from tests.model.harness import GOLDEN, Driver
from tests.model.official import dequantised
from tests.model.pair import Pair

CHECKPOINT = GOLDEN / "v41" / "checkpoint"


def other_config() -> ModelConfig:
    """A window of 16, small blocks of which few are candidates, two tables in other layers, a
    ratio-2 source whose entries one layer chooses from anew."""
    base = read_config(CHECKPOINT).config
    assert base.engram is not None
    engram = replace(base.engram, max_ngram=3, vocab_size=100)
    rows = table_rows(engram, 2)
    return replace(
        base,
        window=16,
        index_topk=6,
        layers=csa2_schedule(
            (2, 2, 0, 1, 1, 1),
            kv_sources=(0, 3),
            index_sources=(0, 1, 3, 4),
            engram_rows=dict(zip((0, 5), rows, strict=True)),
        ),
        candidates=CandidateSpec(source=3, topk_blocks=7, block_size=2),
        engram=engram,
        draft=DraftSpec("none"),
    )


@pytest.fixture(scope="module", params=["golden", "short window and few candidates"])
def pair(
    request: pytest.FixtureRequest, device: str, tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    folder = CHECKPOINT
    if request.param != "golden":
        folder = tmp_path_factory.mktemp("v41")
        synth(other_config(), folder, seed=5, tokenizer=None)
        shutil.copy(CHECKPOINT / "tokenizer.json", folder)
    model = open_model(folder)
    weights = load(model, torch.device(device))
    driver = Driver(model.config, weights, REFERENCE, num_slots=6, context=768, device=device)
    classes = json.loads((GOLDEN / "v41" / "engram.json").read_text())["token_map"]
    reference = ReferenceV41(model.config, dequantised(folder, 32), torch.tensor(classes))
    return Pair(model.config, driver, reference)


def test_every_length_gives_the_reference_logits(pair: Pair) -> None:
    """One prompt, read in pieces that end at every length from 1 to 24, around pages and beyond:
    inside groups of 2, and with n-grams across every border."""
    tokens = pair.tokens(1, 280)
    pair.driver.set_length(0, 0)
    cuts = [*range(1, 24), *range(126, 131), 255, 256, 257]
    pair.check(pair.driver.given(0, tokens, cuts), tokens)


def test_decoding_from_every_remainder_gives_the_reference_logits(pair: Pair) -> None:
    tokens = pair.tokens(2, 290)
    for first in (121, 250):
        pair.driver.set_length(1, 0)
        pair.check(pair.driver.given(1, tokens[:first]), tokens)
        pair.check(pair.driver.made(1, tokens[first : first + 20]), tokens, first)


def test_decoding_from_the_first_token_on_gives_the_reference_logits(pair: Pair) -> None:
    tokens = pair.tokens(3, 40)
    pair.driver.set_length(1, 0)
    pair.check(pair.driver.made(1, tokens, 3), tokens)


def test_sequences_of_different_lengths_share_steps_in_any_order(pair: Pair) -> None:
    lengths = {0: 1, 1: 5, 2: 127, 3: 128, 4: 300, 5: 47}
    texts = {slot: pair.tokens(10 + slot, length + 8) for slot, length in lengths.items()}
    for order in (sorted(lengths), [3, 0, 5, 1, 4, 2]):
        for slot in order:
            pair.driver.set_length(slot, 0)
        rows = pair.driver.step(given={s: texts[s][: lengths[s]] for s in order})
        for slot in order:
            pair.check(rows[slot], texts[slot])
        # Then all of them decode, some one row and some two a step, while one goes on reading.
        for i in range(0, 8, 2):
            at = {s: lengths[s] + i for s in order}
            made = {s: texts[s][at[s] : at[s] + 2] for s in order[1:]}
            given = {s: texts[s][at[s] : at[s] + 2] for s in order[:1]}
            for slot, got in pair.driver.step(made=made, given=given).items():
                pair.check(got, texts[slot], at[slot])


def test_candidates_bind_in_what_was_compared(pair: Pair) -> None:
    _, trace = pair.expected(pair.tokens(1, 280))
    source = pair.config.candidates
    assert source is not None
    published = trace.layers[source.source].selection
    assert published is not None
    assert published.candidate_margin is not None
    assert published.candidate_margin.isfinite().float().mean() > 0.8
    later = [layer.selection for layer in trace.layers[source.source + 1 :] if layer.selection]
    assert later
    for selection in later:
        assert selection.margin.isfinite().float().mean() > 0.5
