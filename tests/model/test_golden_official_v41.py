"""Official numerics of V4.1 against the official code's own numbers, block by block.

Each block is fed the golden streams and `pre` in front of it; layers that share a selection are fed
the golden one, so that a near-tie of one layer is no difference of the next. What may differ, and
by how much, is said in tests/golden/README.md; the counts are printed (`pytest -s`).
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.numerics import OFFICIAL, OFFICIAL_BF16, REFERENCE, Family, Numerics
from relight.cache.layout import compressed, index_keys
from relight.engine.plan import Rows
from relight.kernels import index, store
from relight.model import moe
from relight.model.addresses import pad_keys
from relight.model.attention import addresses
from relight.model.csa2 import Shared
from relight.model.network import AnyWeights, load
from relight.model.transformer_v41 import TransformerV41
from tests.model.harness import GOLDEN, Driver
from tests.model.roundings import Listed, check_codes, check_streams, step_of

V41 = GOLDEN / "v41"
LAYERS = range(7)
SOURCES = {1: 1, 2: 1, 3: 3, 4: 3, 5: 5, 6: 5}  # layer: whose selection it reads


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return load_file(V41 / "official_prefill.safetensors")


@pytest.fixture(scope="module")
def ids() -> dict[str, list[int]]:
    prompts: dict[str, list[int]] = json.loads((V41 / "prompts.json").read_text())
    return prompts


@pytest.fixture(scope="module")
def model(device: str) -> tuple[Any, AnyWeights]:
    opened = open_model(V41 / "checkpoint")
    return opened.config, load(opened, torch.device(device))


def driver(model: tuple[Any, AnyWeights], numerics: Numerics, device: str) -> Driver:
    return Driver(*model, numerics, num_slots=1, context=384, device=device)


@dataclass
class Seen:
    """What the ops of one layer were called with: rows before rounding, lists, routes."""

    stored: list[Tensor] = field(default_factory=list)
    lists: list[Listed] = field(default_factory=list)
    blocks: list[Tensor] = field(default_factory=list)
    routes: list[Tensor] = field(default_factory=list)


@contextmanager
def watching() -> Iterator[Seen]:
    seen = Seen()
    kept = store.put, index.select, index.select_and_publish, index.select_within, moe.route
    put, select, publish, within, route = kept

    def note(entries: Tensor, asked: index.Asked) -> None:
        magnitude = index.scores(replace(asked, weights=asked.weights.abs())).clamp(min=0).cpu()
        noise = torch.nn.functional.pad(3 * 2.0**-9 * magnitude, (0, 301 - magnitude.shape[1]))
        seen.lists.append(Listed(entries.cpu(), noise))

    def see_put(rows: Any, at: Tensor, values: Tensor) -> None:
        seen.stored.append(values.float().cpu())
        put(rows, at, values)

    def see_publish(asked: index.Asked, *args: Any, placed: bool) -> tuple[Tensor, Tensor]:
        entries, blocks = publish(asked, *args)
        seen.blocks.append(blocks.cpu())
        note(entries, asked)
        return publish(asked, *args, placed=placed)

    def see_select(asked: index.Asked, *args: Any, placed: bool) -> Tensor:
        note(select(asked, *args), asked)
        return select(asked, *args, placed=placed)

    def see_within(asked: index.Asked, *args: Any, placed: bool) -> Tensor:
        note(within(asked, *args), asked)
        return within(asked, *args, placed=placed)

    def see_route(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        ids, weights = route(*args, **kwargs)
        seen.routes.append(ids.cpu())
        return ids, weights

    store.put, moe.route, index.select_and_publish = see_put, see_route, see_publish
    index.select, index.select_within = see_select, see_within
    try:
        yield seen
    finally:
        store.put, index.select, index.select_and_publish, index.select_within, moe.route = kept


class Blocks:
    """All layers, each run over golden rows of one prompt."""

    def __init__(self, run: Driver, golden: dict[str, Tensor], name: str, tokens: list[int]):
        self.run, self.golden, self.name, self.tokens = run, golden, name, tokens
        network = run.runner.model
        assert isinstance(network, TransformerV41)
        self.network = network
        run.set_length(0, 0)

    def rows(self, start: int, stop: int, family: Family) -> list[tuple[Tensor, Seen]]:
        """Streams after each layer of rows [start, stop), in one call."""
        run, network, device = self.run, self.network, self.run.pool.device
        tokens = tuple(self.tokens[start:stop])
        segment = run.runner.batch.segment(family, [Rows(0, start, tokens)])
        where, shared, out = addresses(run.config, segment), Shared(), []
        with torch.inference_mode():
            recalled = network.recall(segment, run.runner.states)
            first = network.embed(segment.token_ids)
            for layer, block in enumerate(network.blocks):
                streams, pre = (
                    (
                        self._rows(f"h.{layer - 1}", start, stop),
                        self._rows(f"pre_mix.{layer - 1}", start, stop),
                    )
                    if layer
                    else first
                )
                state = run.runner.states[layer]
                with watching() as seen:
                    streams = streams.to(device, network.boundary)
                    after, _ = block.forward(
                        block.recall(streams, recalled[layer], segment),
                        pre.to(device),
                        segment,
                        where,
                        state,
                        shared,
                    )
                out.append((block.mhc.whole(after).cpu().float(), seen))
                self._share(layer, start, stop, segment, where, shared)
        run.runner.lengths[0] = stop
        return out

    def _rows(self, key: str, start: int, stop: int) -> Tensor:
        return self.golden[f"{self.name}/{key}"][start:stop]

    def _share(
        self, layer: int, start: int, stop: int, segment: Any, where: Any, shared: Shared
    ) -> None:
        """Replaces what the layer published by what the official code did."""
        if SOURCES.get(layer) != layer or shared.places[layer] is None:
            return
        device = self.run.pool.device
        lists = self._rows(f"index_topk.{layer}", start, stop).long().to(device)
        entries = where.entries[self.run.config.layers[layer].ratio]
        known = F.pad(entries.places, (0, 1), value=-1)  # where index -1 finds it
        shared.places[layer] = pad_keys(known[segment.sequence.unsqueeze(1), lists])
        if layer == 3:
            chosen = self._rows("candidate_blocks.3", start, stop).bool()
            numbers = (
                torch.where(chosen, torch.arange(chosen.shape[1]), 10**6).sort(1).values[:, :4]
            )
            shared.candidates = numbers.masked_fill(numbers == 10**6, -1).to(device)


def compare(
    golden: dict[str, Tensor],
    label: str,
    name: str,
    layer: int,
    done: list[tuple[Tensor, Seen]],
    rows: slice,
) -> Tensor:
    """Lists, routes and streams of some rows of a golden prompt: each row's largest difference, NaN
    for those that select otherwise."""
    out = torch.cat([streams for streams, _ in done])
    swapped = torch.zeros(out.shape[0], dtype=torch.bool)
    lists = [listed for _, seen in done for listed in seen.lists]
    if lists:
        have = sum(listed.entries.shape[0] for listed in lists)  # rows without entries ask for none
        keys = ("index_scores", "index_topk", "index_margin")
        wanted = (golden[f"{name}/{key}.{layer}"][rows][-have:] for key in keys)
        swapped[-have:] = check_lists(label, lists, *wanted)
    routes = torch.cat([seen.routes[0] for _, seen in done])
    worst = check_streams(
        label,
        out[~swapped],
        golden[f"{name}/h.{layer}"][rows][~swapped],
        routes[~swapped],
        golden[f"{name}/route_ids.{layer}"][rows][~swapped],
        golden[f"{name}/route_margin.{layer}"][rows][~swapped],
    )
    return torch.cat([worst, torch.full((int(swapped.sum()),), torch.nan)])


def check_pooled(worst: dict[int, list[Tensor]]) -> None:
    """Over the rows of all prompts: few have no steady median."""
    for layer, parts in worst.items():
        rows = torch.cat(parts)
        assert rows.isnan().float().mean() <= 0.08, layer
        assert rows.nanmedian() <= 0.1, layer


def test_blocks_give_the_official_streams_lists_and_codes(golden, ids, model, device) -> None:
    run = driver(model, OFFICIAL_BF16, device)
    worst: dict[int, list[Tensor]] = {layer: [] for layer in LAYERS}
    for prompt in (5, 37, 133, 301):
        name, tokens = f"p{prompt}", ids[f"prefill_{prompt}"]
        done = Blocks(run, golden, name, tokens).rows(0, prompt, "prefill")
        for layer in LAYERS:
            label = f"{name} layer {layer}"
            worst[layer].append(compare(golden, label, name, layer, [done[layer]], slice(None)))
            if f"{name}/window_kv.{layer}" in golden:
                check_memory(golden, run, done[layer][1], name, layer, prompt)
        check_candidates(golden, name, done[3][1])
    check_pooled(worst)


def test_blocks_decode_what_they_prefill(golden, ids, model, device) -> None:
    """Rows 0 … N−1 of the 301-token prompt in one call, then 25 rows one a call."""
    run, tokens = driver(model, OFFICIAL_BF16, device), ids["prefill_301"]
    worst: dict[int, list[Tensor]] = {layer: [] for layer in LAYERS}
    for length in (3, 120, 250):
        blocks = Blocks(run, golden, "p301", tokens)
        blocks.rows(0, length, "prefill")
        rows = range(length, length + 25)
        steps = [blocks.rows(row, row + 1, "step") for row in rows]
        for layer in LAYERS:
            done = [step[layer] for step in steps]
            label = f"d{length} layer {layer}"
            worst[layer].append(
                compare(golden, label, "p301", layer, done, slice(rows.start, rows.stop))
            )
    check_pooled(worst)


def check_lists(
    name: str, seen: Sequence[Listed], scores: Tensor, want: Tensor, margin: Tensor
) -> Tensor:
    """Selected entries. Returns the rows that swap some: entries whose scores are as close as the
    roundings of an official score, of any of those that change places or are at the cut."""
    rows = torch.cat([listed.entries for listed in seen])
    noise = torch.cat([listed.noise for listed in seen])
    swapped = torch.zeros(want.shape[0], dtype=torch.bool)
    for row in range(want.shape[0]):
        ours = {e for e in rows[row].tolist() if e >= 0}
        theirs = {e for e in want[row].tolist() if e >= 0}
        if ours == theirs:
            continue
        swapped[row] = True
        cut = min(theirs, key=lambda entry: float(scores[row, entry]))
        moved = sorted(ours ^ theirs)
        distance = (scores[row, moved].float() - scores[row, cut].float()).abs()
        near = torch.maximum(step_of(scores[row, cut]), 2 * noise[row, [*moved, cut]].amax())
        assert (distance <= near).all(), f"{name}: row {row} swapped {distance} from the cut"
    print(f"{name}: {int(swapped.sum())} of {len(want)} lists swap entries")
    return swapped


def check_candidates(golden: dict[str, Tensor], name: str, seen: Seen) -> None:
    """Blocks may change places where an official score is closer to the cut than its rounding."""
    want = golden[f"{name}/candidate_blocks.3"].bool()
    listed = seen.blocks[0][: len(want)]
    got = torch.zeros(len(want), want.shape[1] + 1, dtype=torch.bool)
    got.scatter_(1, torch.where(listed < 0, want.shape[1], listed), True)
    other = (got[:, :-1] != want).any(1)
    noise = 2 * seen.lists[0].noise.amax(1)
    margin = golden[f"{name}/candidate_margin.3"].float()
    print(f"{name}: {int(other.sum())} of {len(want)} rows publish other blocks")
    assert (margin[other] <= noise[other]).all()
    assert other.float().mean() <= 0.1


def check_memory(
    golden: dict[str, Tensor], run: Driver, seen: Seen, name: str, layer: int, length: int
) -> None:
    state, spec = run.runner.states[layer], run.config.layers[layer]
    kept = range(max(0, length - 128), length)
    ring = torch.tensor([p % 144 for p in kept], device=run.pool.device)
    got = store.get(state.window, ring).cpu()
    want = golden[f"{name}/window_kv.{layer}"][[p % 128 for p in kept]]
    check_codes(f"{name} window.{layer}", got, want, seen.stored[0][kept.start :], 32)
    if spec.attention != "full":
        return
    ratio = spec.ratio
    places = torch.arange(length // ratio, device=run.pool.device) + 128 // ratio
    assert state.compressed is not None
    assert state.keys is not None
    keys, entries = seen.stored[-2:]  # keys are stored first
    got = store.get(state.keys, places).cpu()
    label = f"{name} {index_keys(ratio)}.{layer}"
    check_codes(label, got, golden[f"{name}/index_keys.{layer}"], keys, 32, fp4=True)
    got = store.get(state.compressed, places).cpu()
    label = f"{name} {compressed(ratio)}.{layer}"
    check_fine_codes(label, got, golden[f"{name}/compressed_kv.{layer}"].float(), entries)


def check_fine_codes(name: str, got: Tensor, want: Tensor, raw: Tensor) -> None:
    """FP4 in groups of 16 with E4M3 scales. Where a value differs it lies within one bf16 step of a
    tie, which moves it by one code, or its group's largest value does, which moves the scale by one
    E4M3 step of at most an eighth."""
    same = got == want
    print(f"{name}: {int((~same).sum())} of {got.numel()} codes differ")
    assert same.float().mean() > 0.97
    largest = raw.unflatten(-1, (-1, 16)).abs().amax(-1).repeat_interleave(16, -1)
    assert ((got - want).abs() <= largest / 2.9).all()  # the widest step is from 4 to 6 of 6


@pytest.mark.parametrize("prompt", [37, 133, 301])
def test_the_head_gives_the_official_logits(golden, ids, model, device, prompt: int) -> None:
    run, name = driver(model, OFFICIAL_BF16, device), f"p{prompt}"
    want = golden[f"{name}/logits_last"]
    last = slice(prompt - want.shape[0], prompt)
    segment = run.runner.batch.segment("prefill", [Rows(0, 0, (0,) * want.shape[0])])
    network = run.runner.model
    assert isinstance(network, TransformerV41)
    streams = golden[f"{name}/h.6"][last].to(run.pool.device)
    got = network.head(streams, golden[f"{name}/pre_mix.6"][last].to(run.pool.device), segment)
    assert (got.cpu() - want).abs().max() <= 0.1
    assert (got.cpu().argmax(1) == want.argmax(1)).float().mean() >= 0.98


@pytest.mark.parametrize("prompt", [5, 37, 133, 256, 301])
def test_float32_numerics_equal_the_float32_goldens_end_to_end(ids, model, device, prompt) -> None:
    want = load_file(V41 / "float32_prefill.safetensors")
    logits = driver(model, REFERENCE, device).given(0, ids[f"prefill_{prompt}"]).cpu()
    last = want[f"p{prompt}/logits_last"]
    assert (logits[-last.shape[0] :] - last).abs().max() <= 5e-5
    top = want[f"p{prompt}/top8_values"]
    assert (logits.topk(8).values - top).abs().max() <= 5e-5


@pytest.mark.parametrize("length", [3, 120, 250])
def test_float32_decode_equals_the_float32_goldens_end_to_end(ids, model, device, length) -> None:
    want = load_file(V41 / "float32_decode.safetensors")
    run, tokens = driver(model, REFERENCE, device), ids["decode_and_draft"]
    run.given(0, tokens[:length])
    logits = run.made(0, tokens[length : length + 24]).cpu()
    assert (logits - want[f"d{length}/logits"]).abs().max() <= 5e-5


def test_official_numerics_are_finite_in_both_boundaries(ids, model, device) -> None:
    for numerics in (OFFICIAL, OFFICIAL_BF16):
        run = driver(model, numerics, device)
        assert run.given(0, ids["prefill_133"]).isfinite().all()
        assert run.made(0, ids["prefill_37"][:5]).isfinite().all()
