"""Official numerics against the official code's own numbers, block by block.

Each block is fed the golden streams in front of it, with streams and activations rounded to bf16
where the official code rounds them. What may differ, and by how much, is said in
tests/golden/README.md; the counts are printed (`pytest -s`).
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.numerics import OFFICIAL, OFFICIAL_BF16, REFERENCE, Family, Numerics
from relight.cache.layout import INDEX_KEYS, WINDOW, compressed
from relight.engine.plan import Rows
from relight.kernels import index, store
from relight.model import moe
from relight.model.attention import addresses
from relight.model.inputs import Segment
from relight.model.weights import ModelWeights, load_weights
from tests.model.harness import GOLDEN, Driver
from tests.model.roundings import Listed, check_codes, check_streams, step_of

V4 = GOLDEN / "v4"
PROMPTS = (5, 37, 133, 256, 301)
LAYERS = range(4)
CSA = (1, 3)


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return load_file(V4 / "official_prefill.safetensors")


@pytest.fixture(scope="module")
def ids() -> dict[str, list[int]]:
    prompts: dict[str, list[int]] = json.loads((V4 / "prompts.json").read_text())
    return prompts


@pytest.fixture(scope="module")
def model(device: str) -> tuple[Any, ModelWeights]:
    opened = open_model(V4 / "checkpoint")
    return opened.config, load_weights(opened, torch.device(device))


def driver(model: tuple[Any, ModelWeights], numerics: Numerics, device: str) -> Driver:
    return Driver(*model, numerics, num_slots=1, context=384, device=device)


@dataclass
class Seen:
    """What the ops were called with: rows before rounding, lists, routes."""

    stored: list[Tensor] = field(default_factory=list)
    lists: list[Listed] = field(default_factory=list)
    routes: list[tuple[Tensor, Tensor]] = field(default_factory=list)


@contextmanager
def watching() -> Iterator[Seen]:
    seen = Seen()
    put, select, route = store.put, index.select, moe.route

    def see_put(rows: Any, at: Tensor, values: Tensor) -> None:
        seen.stored.append(values.float().cpu())
        put(rows, at, values)

    def see_select(asked: index.Asked, *args: Any, placed: bool) -> Tensor:
        entries = select(asked, *args)
        magnitude = index.scores(replace(asked, weights=asked.weights.abs()))
        noise = 3 * 2.0**-9 * magnitude.clamp(min=0).cpu()
        noise = torch.nn.functional.pad(noise, (0, 80 - noise.shape[1]))
        seen.lists.append(Listed(entries.cpu(), noise))
        return select(asked, *args, placed=placed)

    def see_route(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        seen.routes.append(route(*args, **kwargs))
        return seen.routes[-1]

    store.put, index.select, moe.route = see_put, see_select, see_route
    try:
        yield seen
    finally:
        store.put, index.select, moe.route = put, select, route


class Block:
    """One layer, run over golden streams."""

    def __init__(self, run: Driver, layer: int, streams: Tensor, tokens: list[int]) -> None:
        self.run, self.layer, self.tokens = run, layer, tokens
        self.streams = streams.to(run.pool.device)
        run.set_length(0, 0)

    def rows(self, start: int, stop: int, family: Family) -> tuple[Tensor, Seen]:
        """Streams after the block of rows [start, stop), in one call."""
        run = self.run
        tokens = tuple(self.tokens[start:stop])
        segment: Segment = run.runner.batch.segment(family, [Rows(0, start, tokens)])
        boundary = run.runner.model.boundary
        with watching() as seen, torch.inference_mode():
            block = run.runner.model.blocks[self.layer]
            out = block.forward(
                self.streams[start:stop].to(boundary),
                segment,
                addresses(run.config, segment),
                run.runner.states[self.layer],
            )
        run.runner.lengths[0] = stop
        return block.mhc.whole(out).cpu().float(), seen


def before(golden: dict[str, Tensor], run: Driver, name: str, layer: int, tokens: list[int]) -> Any:
    """The golden streams in front of a layer."""
    if layer:
        return golden[f"{name}/h.{layer - 1}"]
    ids = torch.tensor(tokens, device=run.pool.device)
    return run.runner.model.embed(ids)


def check_lists(
    name: str, seen: Sequence[Listed], scores: Tensor, want: Tensor, margin: Tensor
) -> Tensor:
    """Selected entries. Returns the rows that swap some.

    The official scores are bf16 after each of three roundings (dot, weighted, summed over heads),
    ours are float32: so a golden score is off by up to 3 half steps of the sum of its terms'
    magnitudes, and entries that lie closer to the cut than that, or than one bf16 step, may change
    places.
    """
    rows = torch.cat([listed.entries for listed in seen])
    noise = torch.cat([listed.noise for listed in seen])[:, : scores.shape[1]]
    swapped, beyond = torch.zeros(want.shape[0], dtype=torch.bool), 0
    for row in range(want.shape[0]):
        ours = {e for e in rows[row].tolist() if e >= 0}
        theirs = {e for e in want[row].tolist() if e >= 0}
        if ours == theirs:
            continue
        swapped[row] = True
        cut = scores[row, list(theirs)].float().min()
        moved = sorted(ours ^ theirs)
        near = torch.maximum(step_of(cut), 2 * noise[row, moved])
        distance = (scores[row, moved].float() - cut).abs()
        assert (distance <= near).all(), f"{name}: row {row} swapped {distance} from the cut"
        beyond += int(margin[row] > step_of(cut))
    print(
        f"{name}: {int(swapped.sum())} of {len(want)} lists swap entries, {beyond} at over a step"
    )
    assert swapped.float().mean() <= 0.08
    return swapped


@pytest.mark.parametrize("layer", LAYERS)
def test_a_block_gives_the_official_streams_lists_and_codes(
    golden: dict[str, Tensor],
    ids: dict[str, list[int]],
    model: tuple[Any, ModelWeights],
    device: str,
    layer: int,
) -> None:
    """The median is over the rows of all prompts: five rows alone have no steady one."""
    run, worst = driver(model, OFFICIAL_BF16, device), []
    for prompt in (5, 37, 133, 301):
        name, tokens = f"p{prompt}", ids[f"prefill_{prompt}"]
        block = Block(run, layer, before(golden, run, name, layer, tokens), tokens)
        out, seen = block.rows(0, prompt, "prefill")
        worst.append(
            _compare(golden, f"{name} layer {layer}", out, [seen], name, layer, slice(None))
        )
        if f"{name}/window_kv.{layer}" in golden:
            _check_memory(golden, run, seen, name, layer, prompt)
    assert torch.cat(worst).median() <= 0.1


def _compare(
    golden: dict[str, Tensor],
    label: str,
    out: Tensor,
    seen: list[Seen],
    name: str,
    layer: int,
    rows: slice,
) -> Tensor:
    """Lists, routes and streams of some rows of a golden prompt."""
    swapped = torch.zeros(out.shape[0], dtype=torch.bool)
    lists = [listed for one in seen for listed in one.lists]
    if lists:
        have = sum(listed.entries.shape[0] for listed in lists)  # rows without entries ask for none
        keys = ("index_scores", "index_topk", "index_margin")
        swapped[-have:] = check_lists(
            label, lists, *(golden[f"{name}/{key}.{layer}"][rows][-have:] for key in keys)
        )
    routes = torch.cat([one.routes[0][0].cpu() for one in seen])
    margin = golden.get(f"{name}/route_margin.{layer}")
    return check_streams(
        label,
        out[~swapped],
        golden[f"{name}/h.{layer}"][rows][~swapped],
        routes[~swapped],
        golden[f"{name}/route_ids.{layer}"][rows][~swapped],
        None if margin is None else margin[rows][~swapped],
    )


def _check_memory(
    golden: dict[str, Tensor], run: Driver, seen: Seen, name: str, layer: int, length: int
) -> None:
    kept = range(max(0, length - 128), length)
    window = golden[f"{name}/window_kv.{layer}"]
    state = run.runner.states[layer]
    stored = seen.stored
    if len(stored) == 3:
        stored = [*stored[1:], stored[0]]  # index keys come first
    raw = stored[0][kept.start :]
    ring = torch.tensor([p % state.window.count for p in kept], device=run.pool.device)
    got = store.get(state.window, ring % 144).cpu()
    want = window[[p % 128 for p in kept]]
    _check_kv(f"{name} {WINDOW}.{layer}", got, want, raw)
    ratio = run.config.layers[layer].ratio
    if not ratio or not length // ratio:
        return
    places = torch.arange(length // ratio, device=run.pool.device) + 128 // ratio
    assert state.compressed is not None
    got = store.get(state.compressed, places).cpu()
    _check_kv(
        f"{name} {compressed(ratio)}.{layer}",
        got,
        golden[f"{name}/compressed_kv.{layer}"],
        stored[1],
    )
    if ratio != 4:
        return
    assert state.keys is not None
    got = store.get(state.keys, places).cpu()
    want = golden[f"{name}/index_keys.{layer}"]
    check_codes(f"{name} {INDEX_KEYS}.{layer}", got, want, stored[2], 32, fp4=True)


def _check_kv(name: str, got: Tensor, want: Tensor, raw: Tensor) -> None:
    """FP8 dims by the rule of codes; rotary dims, which are bf16, within one step of the larger of
    their pair, since a rotation mixes the two."""
    check_codes(name, got[:, :64], want[:, :64], raw[:, :64], 64)
    rope, expected = got[:, 64:], want[:, 64:].float()
    pair = expected.abs().unflatten(1, (-1, 2)).amax(2, keepdim=True).expand(-1, -1, 2).flatten(1)
    assert ((rope - expected).abs() <= step_of(pair)).all(), f"{name}: rotary dims differ"


@pytest.mark.parametrize("layer", LAYERS)
def test_a_block_decodes_what_it_prefills(
    golden: dict[str, Tensor],
    ids: dict[str, list[int]],
    model: tuple[Any, ModelWeights],
    device: str,
    layer: int,
) -> None:
    """Rows 0 … N−1 of the 301-token prompt in one call, then 51 rows one a call."""
    run, tokens, worst = driver(model, OFFICIAL_BF16, device), ids["prefill_301"], []
    block = Block(run, layer, before(golden, run, "p301", layer, tokens), tokens)
    for length in (3, 120, 250):
        run.set_length(0, 0)
        block.rows(0, length, "prefill")
        stop = length + 51
        steps = [block.rows(row, row + 1, "step") for row in range(length, stop)]
        out, seen = torch.cat([out for out, _ in steps]), [seen for _, seen in steps]
        label, rows = f"d{length} layer {layer}", slice(length, stop)
        worst.append(_compare(golden, label, out, seen, "p301", layer, rows))
    assert torch.cat(worst).median() <= 0.1


@pytest.mark.parametrize("prompt", [37, 133, 301])
def test_the_head_gives_the_official_logits(
    golden: dict[str, Tensor], model: tuple[Any, ModelWeights], device: str, prompt: int
) -> None:
    run, name = driver(model, OFFICIAL_BF16, device), f"p{prompt}"
    want = golden[f"{name}/logits_last"]
    streams = golden[f"{name}/h.3"][-want.shape[0] :].to(run.pool.device)
    segment = run.runner.batch.segment("prefill", [Rows(0, 0, (0,) * want.shape[0])])
    got = run.runner.model.head(streams, replace(segment, sample_rows=segment.positions)).cpu()
    assert (got - want).abs().max() <= 0.1
    assert (got.argmax(1) == want.argmax(1)).float().mean() >= 0.98


@pytest.mark.parametrize("prompt", PROMPTS)
def test_float32_numerics_equal_the_float32_goldens_end_to_end(
    ids: dict[str, list[int]], model: tuple[Any, ModelWeights], device: str, prompt: int
) -> None:
    want = load_file(V4 / "float32_prefill.safetensors")
    run = driver(model, REFERENCE, device)
    logits = run.given(0, ids[f"prefill_{prompt}"]).cpu()
    last = want[f"p{prompt}/logits_last"]
    assert (logits[-last.shape[0] :] - last).abs().max() <= 5e-5
    top = want[f"p{prompt}/top8_values"]
    assert (logits.topk(8).values - top).abs().max() <= 5e-5


@pytest.mark.parametrize("length", [3, 120, 250])
def test_float32_decode_equals_the_float32_goldens_end_to_end(
    ids: dict[str, list[int]], model: tuple[Any, ModelWeights], device: str, length: int
) -> None:
    want = load_file(V4 / "float32_decode.safetensors")
    run, tokens = driver(model, REFERENCE, device), ids["decode_and_draft"]
    run.given(0, tokens[:length])
    logits = run.made(0, tokens[length : length + 24]).cpu()
    assert (logits - want[f"d{length}/logits"]).abs().max() <= 5e-5


@pytest.mark.parametrize("numerics", [OFFICIAL, OFFICIAL_BF16], ids=lambda n: n.name)
def test_official_decode_end_to_end_is_printed(
    ids: dict[str, list[int]], model: tuple[Any, ModelWeights], device: str, numerics: Numerics
) -> None:
    """No bar: near-ties of bf16 index scores flip, and everything after them differs."""
    want = load_file(V4 / "official_decode.safetensors")
    tokens = ids["decode_and_draft"]
    for length in (3, 120, 250):
        run = driver(model, numerics, device)
        run.given(0, tokens[:length])
        logits = run.made(0, tokens[length : length + 24]).cpu()
        expected = want[f"d{length}/logits"]
        alike = (logits.argmax(1) == expected.argmax(1)).float().mean()
        worst = (logits - expected).abs().max()
        print(f"{numerics.name} d{length}: argmax equal in {alike:.0%}, logits within {worst:.2f}")
        assert logits.isfinite().all()
