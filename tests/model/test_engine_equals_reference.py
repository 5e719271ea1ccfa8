"""The network over cached state against the float32 network without one, in reference numerics.

What is compared: logits of every row, and the lists of selected entries where the reference's
margin says that there was a choice to get right.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.numerics import REFERENCE
from relight.kernels import index
from relight.lab.synth import synth
from relight.model.reference import ReferenceModel
from relight.model.weights import load_weights
from tests.model.harness import GOLDEN, Driver
from tests.model.official import dequantised
from tests.model.oracle import tiny_config
from tests.model.pair import Pair

MARGIN = 1e-4  # of index scores: below it either choice is right

CONFIGS = {
    "golden": None,
    "short HCA groups, clamped experts": tiny_config(hca_ratio=16, window=128, swiglu_limit=0.5),
    "window of 16, top 3": tiny_config(hca_ratio=32, window=16, index_topk=3),
}


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS)
def pair(
    request: pytest.FixtureRequest, device: str, tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    folder: Path = GOLDEN / "v4" / "checkpoint"
    if request.param is not None:
        folder = tmp_path_factory.mktemp("reference") / "checkpoint"
        synth(request.param, folder, seed=5, tokenizer=None)
    model = open_model(folder)
    weights = load_weights(model, torch.device(device))
    driver = Driver(model.config, weights, REFERENCE, num_slots=6, context=768, device=device)
    return Pair(model.config, driver, ReferenceModel(model.config, dequantised(folder)))


def test_every_length_mod_128_gives_the_reference_logits(pair: Pair) -> None:
    """One prompt, read in pieces that end at every length from 1 to 128 and on beyond 256."""
    tokens = pair.tokens(1, 280)
    pair.driver.set_length(0, 0)
    cuts = [*range(1, 140), 255, 256, 257, 258]
    pair.check(pair.driver.given(0, tokens, cuts), tokens)


def test_decoding_from_every_remainder_gives_the_reference_logits(pair: Pair) -> None:
    tokens = pair.tokens(2, 410)
    pair.driver.set_length(1, 0)
    pair.check(pair.driver.given(1, tokens[:150]), tokens)
    pair.check(pair.driver.made(1, tokens[150:]), tokens, 150)


def test_sequences_of_different_lengths_share_steps_in_any_order(pair: Pair) -> None:
    lengths = {0: 1, 1: 5, 2: 127, 3: 128, 4: 300, 5: 47}
    texts = {slot: pair.tokens(10 + slot, length + 12) for slot, length in lengths.items()}
    for order in (sorted(lengths), sorted(lengths, reverse=True), [3, 0, 5, 1, 4, 2]):
        for slot in order:
            pair.driver.set_length(slot, 0)
        rows = pair.driver.step(given={s: texts[s][: lengths[s]] for s in order})
        for slot in order:
            pair.check(rows[slot], texts[slot])
        # Then all of them decode, some one row and some two a step, while one goes on reading.
        for i in range(0, 12, 2):
            at = {s: lengths[s] + i for s in order}
            made = {s: texts[s][at[s] : at[s] + 2] for s in order[1:]}
            given = {s: texts[s][at[s] : at[s] + 2] for s in order[:1]}
            for slot, got in pair.driver.step(made=made, given=given).items():
                pair.check(got, texts[slot], at[slot])


def test_selected_entries_equal_the_reference_where_there_is_a_margin(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists: list[Tensor] = []
    select = index.select

    def watch(*args: object, placed: bool) -> Tensor:
        lists.append(select(*args))  # type: ignore[arg-type]
        return select(*args, placed=placed)  # type: ignore[arg-type]

    monkeypatch.setattr(index, "select", watch)
    tokens = pair.tokens(3, 500)
    _, trace = pair.expected(tokens)
    pair.driver.set_length(2, 0)
    pair.driver.given(2, tokens)
    chosen = [layer.selection for layer in trace.layers if layer.selection]
    assert len(lists) == len(chosen)
    binding = 0
    for got, want in zip(lists, chosen, strict=True):
        entries, margin = want.entries[0], want.margin[0]
        short = got.shape[1] - entries.shape[1]
        assert (got[:, entries.shape[1] :] == -1).all() if short > 0 else short == 0
        alike = (got.cpu()[:, : entries.shape[1]] == entries).all(1)
        assert alike[margin > MARGIN].all()
        binding += int((margin.isfinite() & (margin > MARGIN)).sum())
    assert binding > 300  # the top-k binds on most rows
