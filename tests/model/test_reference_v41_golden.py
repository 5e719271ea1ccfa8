"""Compares the float32 network of V4.1 with what the official code computes in float32
(tests/golden), and its parts with published vectors."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from relight.base.config import read_config
from relight.base.engram import multipliers, table_primes
from relight.base.official import V4_FLASH, V41_FLASH
from relight.base.specs import CandidateSpec
from relight.model.reference_engram import gated, ngram_rows
from relight.model.reference_parts import LayerTrace, Selection, Trace, rope_frequencies
from relight.model.reference_v41 import ReferenceV41, best_blocks
from tests.model.official import dequantised, fp8
from tests.model.traces import (
    CLEAR,
    check_entries,
    check_logits,
    check_routing,
    prompts_of,
    with_prefix,
)

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDER = GOLDEN / "v41"
PROMPTS = prompts_of(FOLDER)


@pytest.fixture(scope="module")
def model() -> ReferenceV41:
    checkpoint = FOLDER / "checkpoint"
    token_map = json.loads((FOLDER / "engram.json").read_text())["token_map"]
    config = read_config(checkpoint).config
    return ReferenceV41(config, dequantised(checkpoint, 32), torch.tensor(token_map))


@pytest.fixture(scope="module")
def ops() -> dict[str, Tensor]:
    return load_file(GOLDEN / "ops" / "ops.safetensors")


def run(model: ReferenceV41, ids: Tensor) -> tuple[Tensor, list[LayerTrace]]:
    trace = Trace()
    with torch.no_grad():
        return model.forward(ids, trace), trace.layers


def check_layer(golden: dict[str, Tensor], index: int, done: LayerTrace, first: int) -> None:
    """Compares what the golden holds of this layer with the rows from position `first` on."""
    for name, got in (
        (f"h.{index}", done.streams),
        (f"pre_mix.{index}", done.pre),
        (f"engram_out.{index}", done.entered),
    ):
        if name in golden:
            assert got is not None
            assert_close(got[0, first:], golden[name], rtol=0, atol=1e-4)

    check_routing(golden, index, done, first)

    for name, stored in (
        (f"compressed_kv.{index}", done.memory.compressed),
        (f"index_keys.{index}", done.memory.index_keys),
    ):
        if name in golden:
            assert stored is not None
            assert_close(stored[0], golden[name], rtol=0, atol=2e-5)
    assert (f"index_topk.{index}" in golden) == (done.selection is not None)
    if done.selection is not None:
        check_selection(golden, index, done.selection, first)


def check_selection(golden: dict[str, Tensor], index: int, got: Selection, first: int) -> None:
    check_entries(golden, index, got, first)
    if got.candidates is not None:
        assert got.candidate_margin is not None
        blocks = golden[f"candidate_blocks.{index}"].bool()
        starts = 8 * torch.arange(got.candidates.shape[-1])
        positions = torch.arange(first, got.candidates.shape[1])
        there = starts <= positions[:, None]  # the golden pads other blocks in either way
        got_blocks = got.candidates[0, first:]
        assert not got_blocks[~there].any()
        sure = got.candidate_margin[0, first:] > CLEAR
        assert torch.equal((got_blocks & there)[sure], (blocks & there)[sure])


@pytest.mark.parametrize("length", [5, 37, 133, 256, 301])
def test_prompt_equals_the_official_code_in_float32(model: ReferenceV41, length: int) -> None:
    golden = with_prefix(load_file(FOLDER / "float32_prefill.safetensors"), f"p{length}/")
    ids = PROMPTS[f"prefill_{length}"]
    logits, layers = run(model, ids)
    check_logits(logits, golden)
    for index, done in enumerate(layers):
        check_layer(golden, index, done, first=0)
    for layer in model.config.layers:
        if layer.engram_rows:
            rows = model.hashes.rows(layer, ids[None])[0]
            assert torch.equal(rows, golden[f"engram_hash.{layer.index}"].long())


@pytest.mark.parametrize("first", [3, 120, 250])
def test_official_single_token_steps_equal_one_long_call(model: ReferenceV41, first: int) -> None:
    golden = with_prefix(load_file(FOLDER / "float32_decode.safetensors"), f"d{first}/")
    logits, layers = run(model, PROMPTS["decode_and_draft"][: first + 24])
    assert_close(logits[first:], golden["logits"], rtol=0, atol=5e-5)
    for index, done in enumerate(layers):
        check_layer(golden, index, done, first)


def test_golden_choices_are_mostly_clear_and_often_bind(model: ReferenceV41) -> None:
    """Else the comparisons above would say little."""
    _, layers = run(model, PROMPTS["prefill_301"])
    for done in layers:
        assert (done.routing.margin > CLEAR).float().mean() > 0.99
        if done.selection is not None:
            assert (done.selection.margin > CLEAR).float().mean() > 0.99
            assert done.selection.margin.isfinite().float().mean() > 0.5
    source, reindexed = layers[3].selection, layers[5].selection
    assert source is not None
    assert reindexed is not None
    assert source.candidates is not None
    assert source.candidate_margin is not None
    assert source.candidate_margin.isfinite().float().mean() > 0.8
    blocks = reindexed.entries.clamp(min=0) // 8
    assert source.candidates.gather(-1, blocks)[reindexed.entries >= 0].all()
    assert not source.candidates[..., : 301 // 8].all()


def test_candidate_blocks_equal_the_official_masks(ops: dict[str, Tensor]) -> None:
    golden = with_prefix(ops, "candidates/")
    scores, visible = ops["indexer/scores"].float()[None], ops["indexer/visible"].long()
    scores = scores.masked_fill(torch.arange(60) >= visible[:, None], -torch.inf)
    for size, count in ((8, 3), (4, 5)):
        mask = golden[f"mask_block{size}_top{count}"].bool()
        blocks, margin = best_blocks(scores, visible, CandidateSpec(0, count, size))
        entries = blocks.repeat_interleave(size, -1)[0, :, : mask.shape[1]]
        untied = margin[0] > 0  # a tie goes to the lowest block here, and either way there
        assert untied.sum() >= len(untied) - 1
        assert torch.equal(entries[untied], mask[untied])


def test_table_rows_equal_the_official_hashes(ops: dict[str, Tensor]) -> None:
    golden = with_prefix(ops, "engram_hash/")
    classes = golden["compressed_ids"].long()[None]
    for table in range(2):
        rows = ngram_rows(
            classes,
            torch.tensor(2),
            tuple(golden["multipliers"][table].tolist()),
            tuple(map(tuple, golden["primes"][table].tolist())),
        )
        assert torch.equal(rows[0], golden["hash_ids"][:, table].long())


def test_published_table_rows() -> None:
    engram = V41_FLASH.engram
    assert engram is not None
    classes = torch.tensor([[7, 11, 13, 17, 99091, 0]])
    rows = {
        layer: ngram_rows(classes, torch.tensor(3), multipliers(engram, layer), primes)[0].tolist()
        for layer, primes in zip((1, 14), table_primes(engram, 2), strict=True)
    }
    # fmt: off
    assert rows[1][0] == [
        9467399, 19422684, 47964314, 52296844, 74797776, 92965386, 102049295, 127603176,
        135373022, 145529091, 165564155, 183933113, 192146598, 220254500, 230416711, 252543918,
        261988000, 279300261, 302533683, 314150550, 321895184, 349512628, 359087903, 374068472,
    ]
    assert rows[14][4] == [
        4638160, 20030499, 39019663, 50538662, 65556331, 93556986, 111429532, 113837035,
        138052115, 145896612, 160379874, 181729656, 199055325, 222711612, 235874011, 245410691,
        263899671, 281221490, 293990134, 318608183, 334347139, 339183363, 364556212, 382559244,
    ]
    # fmt: on


def test_engram_gate_equals_the_official_one_but_for_rounding(ops: dict[str, Tensor]) -> None:
    golden = with_prefix(ops, "engram_gate/")
    table = fp8(golden["embed.weight"], golden["embed.scale"], 32, 1)
    rows = table[golden["rows"].long()].flatten(-2)
    mapped = (rows @ fp8(golden["wkv.weight"], golden["wkv.scale"], 32).T)[None]
    streams = golden["streams"].float()[None]
    keys, value = mapped[..., :128].unflatten(-1, (4, 32)), mapped[..., 128:]
    gain = golden["q_weight"].float() * golden["k_weight"].float()
    out = streams + gated(streams, keys, value, gain, 1e-20)
    assert_close(out[0], golden["out"].float(), rtol=0.03, atol=0.06)


def test_published_frequencies_also_for_ratio_1() -> None:
    frequencies = rope_frequencies(V41_FLASH, compressed=True)
    published = {
        0: 1.0,
        1: 0.687656045,
        8: 0.05,
        15: 0.00363553851,
        16: 0.00226562493,
        20: 0.000296977785,
        24: 1.95312532e-05,
        25: 5.37231244e-06,
        31: 5.6805294e-07,
    }
    for pair, value in published.items():
        assert float(frequencies[pair]) == pytest.approx(value, rel=1e-6)
    assert torch.equal(frequencies, rope_frequencies(V4_FLASH, compressed=True))
    plain = rope_frequencies(V41_FLASH, compressed=False)
    assert float(plain[31]) == pytest.approx(10000 ** (-62 / 64), rel=1e-6)
