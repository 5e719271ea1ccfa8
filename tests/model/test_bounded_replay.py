"""Bounded replay on the real network: the encoder is exact, the decoder runs one window of a prompt
and sees no further, and neither chunks nor mates change a bit."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.numerics import OFFICIAL, REFERENCE, Numerics
from relight.cache.layout import TOKENS, WINDOW
from relight.engine.bounded import part
from relight.engine.plan import Rows
from relight.model.csa2 import Csa2
from relight.model.network import load
from relight.model.reference_parts import LayerTrace
from relight.model.reference_v41 import ReferenceV41
from tests.model.harness import GOLDEN, Driver, differing, same_bits
from tests.model.official import dequantised
from tests.model.pair import Pair

CHECKPOINT = GOLDEN / "v41" / "checkpoint"
SPAN = 128
"""The window."""

Prompts = dict[int, Sequence[int]]
"""By slot."""


class Bounded(Driver):
    def read(self, prompts: Prompts, cuts: Sequence[int] = ()) -> dict[int, Tensor]:
        """Reads prompts side by side from their starts, in chunks that end at `cuts`; logits of the
        rows that ran through all layers."""
        for slot in prompts:
            self.set_length(slot, 0)
        longest = max(map(len, prompts.values()))
        edges = [0, *[cut for cut in cuts if cut < longest], longest]
        found: dict[int, list[Tensor]] = {slot: [] for slot in prompts}
        for a, b in itertools.pairwise(edges):
            chunk = [
                Rows(slot, a, tuple(prompt[a:b]), whole_from=max(0, len(prompt) - SPAN))
                for slot, prompt in prompts.items()
                if a < len(prompt)
            ]
            for slot, logits in self._run(chunk).items():
                found[slot].append(logits)
        return {slot: torch.cat(parts) for slot, parts in found.items()}

    def _run(self, chunk: Sequence[Rows]) -> dict[int, Tensor]:
        heads, whole = part(chunk)
        with torch.inference_mode():
            if heads:
                self.runner._encode(heads)
            if not whole:
                return {}
            segment = self.runner.batch.segment("prefill", whole)
            everything = torch.arange(segment.num_rows, device=self.pool.device)
            segment = replace(segment, sample_rows=everything)
            logits = self.runner.model.forward(segment, self.runner.states)
            self.runner._advance(segment)
        counts = [len(rows.tokens) for rows in whole]
        return dict(zip([rows.slot for rows in whole], logits.split(counts), strict=True))


class Blinkered(ReferenceV41):
    """The float32 network whose decoder sees no window row before `since`."""

    since = 0

    def block(self, layer, *rest) -> LayerTrace:  # type: ignore
        assert self.config.candidates is not None
        self.decodes = layer.index > self.config.candidates.source
        return super().block(layer, *rest)

    def window_visible(self, x: Tensor) -> Tensor:
        visible = super().window_visible(x)
        if not self.decodes:
            return visible
        own = torch.eye(x.shape[-2], dtype=torch.bool)  # a row without any key would be no number
        return visible & ((torch.arange(x.shape[-2]) >= self.since) | own)


def driver(numerics: Numerics, device: str) -> Bounded:
    model = open_model(CHECKPOINT)
    weights = load(model, torch.device(device))
    return Bounded(model.config, weights, numerics, num_slots=5, context=768, device=device)


@pytest.fixture(scope="module")
def run(device: str) -> Bounded:
    return driver(OFFICIAL, device)


def prompt(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, 320, (count,), generator=generator).tolist()


PROMPT = prompt(1, 300)


@pytest.mark.parametrize("length", [1, 77, SPAN])
def test_a_prompt_of_up_to_a_window_is_exact(run: Bounded, length: int) -> None:
    found = run.read({0: PROMPT[:length]})[0]
    run.set_length(1, 0)
    assert same_bits(found, run.given(1, PROMPT[:length]))
    assert not differing(run.readable(0), run.readable(1))


def test_all_that_the_encoder_keeps_is_exact_and_the_decoder_is_not(run: Bounded) -> None:
    """If the decoder agreed, too, there would be nothing approximate to name."""
    found = run.read({0: PROMPT})[0]
    run.set_length(1, 0)
    exact = run.given(1, PROMPT)
    assert found.shape[0] == SPAN
    assert not same_bits(found, exact[-SPAN:])
    source = run.config.candidates.source
    # What the first layer of the decoder reads is exact; what it makes of it is not.
    late = {f"{WINDOW}.{layer}" for layer in range(source + 2, run.config.num_layers)}
    different = differing(run.readable(0), run.readable(1))
    assert set(different) == late
    assert TOKENS in run.readable(0)


@pytest.mark.parametrize(
    "cuts",
    [
        list(range(1, 20)),
        list(range(17, 300, 17)),
        [128, 256],
        [172],  # where the window begins
        [171, 173],
        [299],
    ],
    ids=["one by one", "by 17", "by 128", "at the window", "around it", "all but one"],
)
def test_any_cut_into_chunks_gives_the_same_bits(run: Bounded, cuts: list[int]) -> None:
    whole = run.read({0: PROMPT})[0]
    assert same_bits(run.read({1: PROMPT}, cuts)[1], whole)
    assert not differing(run.readable(1), run.readable(0))


def test_mates_of_other_lengths_change_no_bit(run: Bounded) -> None:
    """A step holds rows that go no further beside rows that do, of prompts and of answers."""
    prompts = {0: PROMPT, 1: prompt(2, 20), 2: prompt(3, 129), 3: prompt(4, 290)}
    alone = {slot: run.read({slot: text})[slot] for slot, text in prompts.items()}
    states = {slot: run.readable(slot) for slot in prompts}
    for order in ([3, 1, 0, 2], [0, 1, 2, 3]):
        together = run.read({slot: prompts[slot] for slot in order}, [100, 200])
        for slot in prompts:
            assert same_bits(together[slot], alone[slot])
            assert not differing(run.readable(slot), states[slot])


@pytest.mark.parametrize("length", [SPAN + 1, 300, 700])
def test_no_more_than_a_window_of_a_prompt_runs_through_the_decoder(
    run: Bounded, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    rows = dict.fromkeys(range(run.config.num_layers), 0)
    share = Csa2.share

    def watch(self, x, *rest):  # type: ignore[no-untyped-def]
        rows[self.layer.index] += x.shape[0]
        return share(self, x, *rest)

    monkeypatch.setattr(Csa2, "share", watch)
    run.read({0: prompt(5, length)}, [250, 500])
    source = run.config.candidates.source
    assert [rows[layer] for layer in range(source)] == [length] * source
    assert [rows[layer] for layer in range(source, len(rows))] == [SPAN] * (len(rows) - source)


def test_rows_equal_those_of_the_float32_network_that_sees_no_further(device: str) -> None:
    """Of the prompt's last window, and of what is made behind it."""
    run = driver(REFERENCE, device)
    classes = json.loads((GOLDEN / "v41" / "engram.json").read_text())["token_map"]
    reference = Blinkered(run.config, dequantised(CHECKPOINT, 32), torch.tensor(classes))
    for length in (150, 300):
        reference.since = length - SPAN
        pair = Pair(run.config, run, reference)
        tokens = tuple(prompt(length, length + 20))
        found = run.read({0: tokens[:length]}, [97, 211])[0]
        pair.check(torch.cat([found, run.made(0, tokens[length:], 3)]), tokens, length - SPAN)
