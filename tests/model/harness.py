"""Drives a model over its cached state by hand: no scheduler, every slot has pages of its own."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from relight.base.config import ModelConfig
from relight.base.numerics import Family, Numerics
from relight.cache.layout import (
    INDEX_KEYS,
    INDEX_PARTIAL,
    OVERLAP_RATIO,
    PAGE_TOKENS,
    TOKENS,
    WINDOW,
    compressed,
    index_keys,
    partial,
)
from relight.cache.pool import Blocks, Pool
from relight.engine.plan import PageWrite, Rows, SetLength, StepPlan
from relight.engine.runner import Runner
from relight.kernels.device import upload
from relight.model.network import AnyWeights, network

GOLDEN = Path(__file__).parents[1] / "golden"
ROLES: dict[str, Family] = {"given": "prefill", "made": "step"}

Work = Mapping[int, Sequence[int]]  # slot -> new tokens


class Driver:
    """Slots that are written and read row by row. `step` gives the logits of every row."""

    def __init__(
        self,
        config: ModelConfig,
        weights: AnyWeights,
        numerics: Numerics,
        *,
        num_slots: int = 4,
        context: int = 640,
        num_records: int = 4,
        device: str = "cpu",
        draft: bool = False,
    ) -> None:
        self.config = config
        per_slot = -(-context // PAGE_TOKENS)
        self.pool = Pool(
            config,
            numerics,
            torch.device(device),
            num_pages=1 + num_slots * per_slot,
            num_slots=num_slots,
            num_records=num_records,
            draft=draft,
        )
        # State that was never written must not matter: poison it.
        for blocks in (self.pool.pages, self.pool.slots, self.pool.records):
            blocks.bytes.random_(0, 255)
        self.runner = Runner(network(config, weights, numerics), self.pool, max_context=context)
        pages = tuple(
            PageWrite(s, 0, tuple(range(1 + s * per_slot, 1 + (s + 1) * per_slot)))
            for s in range(num_slots)
        )
        self.runner.execute(StepPlan(0, pages=pages))

    def length(self, slot: int) -> int:
        return int(self.runner.lengths[slot])

    def set_length(self, slot: int, length: int) -> None:
        """Admission, or a rewind."""
        self.runner.execute(StepPlan(0, lengths=(SetLength(slot, length),)))

    def step(self, *, given: Work | None = None, made: Work | None = None) -> dict[int, Tensor]:
        """One step; logits [rows, V] by slot."""
        out: dict[int, Tensor] = {}
        for work, family in ((made, "step"), (given, "prefill")):
            if not work:
                continue
            rows = [Rows(s, self.length(s), tuple(t), sample=True) for s, t in work.items()]
            segment = self.runner.batch.segment(family, rows)
            everything = torch.arange(segment.num_rows, device=self.pool.device)
            segment = replace(segment, sample_rows=everything)
            logits = self.runner.model.forward(segment, self.runner.states)
            counts = [len(r.tokens) for r in rows]
            self.runner.lengths[segment.slots] += upload(counts, self.pool.device)
            out |= dict(zip(work, logits.split(counts), strict=True))
        return out

    def given(self, slot: int, tokens: Sequence[int], cuts: Sequence[int] = ()) -> Tensor:
        """Logits of `tokens` given in chunks that end at `cuts`."""
        edges = [0, *[c for c in cuts if 0 < c < len(tokens)], len(tokens)]
        return torch.cat(
            [self.step(given={slot: tokens[a:b]})[slot] for a, b in itertools.pairwise(edges)]
        )

    def made(self, slot: int, tokens: Sequence[int], width: int = 1) -> Tensor:
        """Logits of `tokens` made `width` rows a step."""
        return torch.cat(
            [
                self.step(made={slot: tokens[i : i + width]})[slot]
                for i in range(0, len(tokens), width)
            ]
        )

    def readable(self, slot: int) -> dict[str, Tensor]:
        """Every byte that a later row of the slot may read, by kind and layer."""
        n, config = self.length(slot), self.config
        if config.generation == "v4.1":
            return self._readable_v41(slot, n)
        out = {}
        for spec in config.layers:
            window = range(max(0, n - config.window + 1), n)
            out[f"{WINDOW}.{spec.index}"] = self._ring(WINDOW, spec.index, slot, window)
            if not spec.ratio:
                continue
            ratio, names = spec.ratio, [compressed(spec.ratio)]
            opened = range(n // ratio * ratio, n)
            out[f"partial.{spec.index}"] = self._ring(partial(ratio), spec.index, slot, opened)
            if ratio == OVERLAP_RATIO:
                names.append(INDEX_KEYS)
                before = range(max(0, opened.start - ratio), opened.start)
                for name in (partial(ratio), INDEX_PARTIAL):
                    rows = self._ring(name, spec.index, slot, before)
                    halves = rows.unflatten(1, (4, -1))[:, [0, 2]]  # A values, A gates
                    out[f"{name}.before.{spec.index}"] = halves
                out[f"{INDEX_PARTIAL}.{spec.index}"] = self._ring(
                    INDEX_PARTIAL, spec.index, slot, opened
                )
            for name in names:
                out[f"{name}.{spec.index}"] = self._paged(name, spec.index, slot, n // ratio)
        return {name: rows.clone() for name, rows in out.items()}

    def _readable_v41(self, slot: int, n: int) -> dict[str, Tensor]:
        out, config = {}, self.config
        if config.engram:
            ids = range(max(0, n - config.engram.max_ngram + 1), n)
            out[TOKENS] = self._ring(TOKENS, 0, slot, ids)
        for spec in config.layers:
            window = range(max(0, n - config.window + 1), n)
            out[f"{WINDOW}.{spec.index}"] = self._ring(WINDOW, spec.index, slot, window)
            if spec.attention != "full":
                continue
            ratio = spec.ratio
            if ratio > 1:
                opened = range(n // ratio * ratio, n)
                out[f"partial.{spec.index}"] = self._ring(partial(ratio), spec.index, slot, opened)
            for name in (compressed(ratio), index_keys(ratio)):
                out[f"{name}.{spec.index}"] = self._paged(name, spec.index, slot, n // ratio)
        return {name: rows.clone() for name, rows in out.items()}

    def _ring(self, name: str, layer: int, slot: int, positions: range) -> Tensor:
        data, scales = _parts(self.pool.slots, name, layer)
        at = torch.arange(positions.start, positions.stop, device=data.device) % data.shape[1]
        return torch.cat([data[slot, at], scales[slot, at]], dim=1)

    def _paged(self, name: str, layer: int, slot: int, count: int) -> Tensor:
        data, scales = _parts(self.pool.pages, name, layer)
        entry = torch.arange(count, device=data.device)
        page = self.runner.page_table[slot, entry // data.shape[1]]
        at = entry % data.shape[1]
        return torch.cat([data[page, at], scales[page, at]], dim=1)


def _parts(blocks: Blocks, name: str, layer: int) -> tuple[Tensor, Tensor]:
    field = blocks.spec.field(name)
    at = field.layers.index(layer)
    return blocks.data(field)[:, at], blocks.scales(field)[:, at]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal in every bit, NaN included."""
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))
    )


def differing(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    """Names under which two readable states differ. A device is waited for once."""
    assert a.keys() == b.keys()
    assert all(a[name].dtype == b[name].dtype == torch.uint8 for name in a)
    unlike = [name for name in a if a[name].shape != b[name].shape]
    alike = [name for name in a if name not in unlike]
    other = torch.stack([(a[name] != b[name]).any() for name in alike]).tolist() if alike else []
    return unlike + [name for name, differs in zip(alike, other, strict=True) if differs]
