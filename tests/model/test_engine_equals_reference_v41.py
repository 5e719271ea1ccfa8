"""The V4.1 network over cached state against the float32 network without one, in reference
numerics: logits of every row, from any cut of a sequence into given and made rows."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.config import ModelConfig, read_config
from relight.base.engram import table_rows
from relight.base.numerics import REFERENCE
from relight.base.schedule import csa2_schedule
from relight.base.specs import CandidateSpec, DraftSpec
from relight.lab.synth import synth
from relight.model.network import load
from relight.model.reference_parts import Trace
from relight.model.reference_v41 import ReferenceV41
from tests.model.harness import GOLDEN, Driver
from tests.model.official import dequantised

TOLERANCE = 1e-4  # on logits of scale 7
NOISE = 5e-6  # of margins in float32: below it the two may choose apart

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


class Pair:
    """The same weights as a cached model and as a reference."""

    def __init__(self, folder: Path, device: str) -> None:
        model = open_model(folder)
        self.config = model.config
        weights = load(model, torch.device(device))
        self.driver = Driver(
            self.config, weights, REFERENCE, num_slots=6, context=768, device=device
        )
        classes = json.loads((GOLDEN / "v41" / "engram.json").read_text())["token_map"]
        tensors = dequantised(folder, 32)
        self.reference = ReferenceV41(self.config, tensors, torch.tensor(classes))
        self.total = self.skipped = 0

    def expected(self, tokens: tuple[int, ...]) -> tuple[Tensor, Trace]:
        trace = Trace()
        with torch.inference_mode():
            return self.reference.forward(torch.tensor(tokens), trace), trace

    def check(self, got: Tensor, tokens: tuple[int, ...], start: int = 0) -> None:
        """Logits of rows `start` on. The first row that differs must be one whose choice of entries
        or experts hangs on the last digits; the rest of its sequence follows from it."""
        want, trace = self.expected(tokens)
        want = want[start : start + got.shape[0]]
        scale = max(1.0, float(want.abs().max()) / 7)
        difference = (got.cpu() - want).abs().amax(1)
        self.total += got.shape[0]
        wrong = (difference > TOLERANCE * scale).nonzero().flatten().tolist()
        if not wrong:
            return
        margins = [layer.routing.margin[0] for layer in trace.layers]
        for selection in (layer.selection for layer in trace.layers if layer.selection):
            margins.append(selection.margin[0])
            if selection.candidate_margin is not None:
                margins.append(selection.candidate_margin[0])
        row = start + wrong[0]
        flipped = torch.stack(margins).amin(0)[: row + 1].min()
        assert flipped < NOISE, f"row {row} differs by {difference[wrong[0]]:.1e} at {flipped:.1e}"
        self.skipped += got.shape[0] - wrong[0]
        assert self.skipped < 0.15 * self.total, f"{self.skipped} rows hang on the last digits"

    def tokens(self, seed: int, count: int) -> tuple[int, ...]:
        draw = random.Random(seed)
        return tuple(draw.randrange(self.config.vocab_size) for _ in range(count))


@pytest.fixture(scope="module", params=["golden", "short window and few candidates"])
def pair(
    request: pytest.FixtureRequest, device: str, tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    if request.param == "golden":
        return Pair(CHECKPOINT, device)
    folder = tmp_path_factory.mktemp("v41")
    synth(other_config(), folder, seed=5, tokenizer=None)
    shutil.copy(CHECKPOINT / "tokenizer.json", folder)
    return Pair(folder, device)


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
