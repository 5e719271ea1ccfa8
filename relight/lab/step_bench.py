"""What the step benchmark measures, and a network with full caches to measure it on. Knows no
timing."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from relight.base.specs import ModelConfig
from relight.base.tensors import backbone_tensors
from relight.cache.layout import PAGE_TOKENS
from relight.cache.pool import Pool
from relight.engine.assemble import choose_numerics
from relight.engine.fast import chosen_kernels, give_kernels
from relight.engine.plan import PageWrite, Rows, SetLength, StepPlan
from relight.engine.runner import Runner
from relight.kernels.device import free_bytes
from relight.lab.clock import Clock
from relight.lab.random_model import SIZES, cut, fill_caches, narrow, random_weights
from relight.lab.roof import Roof
from relight.model.inputs import Segment
from relight.model.network import Network, network

Found = dict[str, Any]
PEER_BYTES = 16 * 2**30
"""Of weights that are unpacked for a peer."""
FAR = 1000.0
"""Above all scores of a router."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is measured. `layers`, of V4: so many if they fit, 0: as many as do. The op tables are
    of all widths at `context` and of the least width at the others. `first` are the widths that
    come before all else, the last of them once more with all rows on the same experts."""

    models: Sequence[str] = tuple(SIZES)
    widths: Sequence[int] = (1, 2, 4, 6, 8, 16)
    first: Sequence[int] = (1, 6)
    contexts: Sequence[int] = (1024, 8192, 32768, 131072)
    context: int = 8192
    chunks: Sequence[int] = (2048,)
    layers: int = 0
    kernels: str = "auto"
    rounds: int = 9
    seconds: float = 540.0
    small: bool = False
    peers: bool = True


SMALL = Wanted(widths=(1, 2), first=(1, 2), contexts=(256,), context=256, chunks=(64,), layers=4,
               rounds=2, small=True)  # fmt: skip


@dataclass
class Bench:
    """One network on its device. `left`: what there was no time for."""

    wanted: Wanted
    config: ModelConfig
    runner: Runner
    clock: Clock
    roof: Roof
    deadline_s: float
    left: list[str] = field(default_factory=list)

    @property
    def network(self) -> Network:
        return self.runner.model

    def in_time(self, what: str) -> bool:
        late = time.monotonic() > self.deadline_s
        if late:
            self.left.append(what)
        return not late


def build(
    name: str, wanted: Wanted, clock: Clock, roof: Roof, deadline_s: float, told: Found
) -> Bench:
    device, whole = clock.device, SIZES[name]
    config = narrow(whole) if wanted.small else whole
    fit = _layers_that_fit(config, device)
    config = cut(config, min(wanted.layers or fit, fit))
    numerics = choose_numerics("official", device)
    chosen = chosen_kernels(wanted.kernels, device)
    weights, selection, notes = give_kernels(chosen, random_weights(config, device), device)
    slots, longest = max(wanted.widths), max((*wanted.contexts, *wanted.chunks))
    pages = 1 + -(-(longest + 1) // PAGE_TOKENS)
    pool = Pool(
        config, numerics, device, num_pages=1 + slots * pages, num_slots=slots, num_records=1
    )
    fill_caches(pool)
    runner = Runner(network(config, weights, numerics), pool, max_context=pages * PAGE_TOKENS)
    owned = [range(1 + slot * pages, 1 + (slot + 1) * pages) for slot in range(slots)]
    writes = tuple(PageWrite(slot, 0, tuple(own)) for slot, own in enumerate(owned))
    runner.execute(StepPlan(0, pages=writes))
    told.update(
        layers_of_model=whole.num_layers,
        layers_here=config.num_layers,
        kinds=[layer.attention for layer in config.layers],
        numerics=numerics.name,
        kernels=str(selection),
        notes=list(notes),
        weight_bytes=weights.nbytes,
        layers=[],
        ops=[],
        prefill=[],
        transformers=[],
    )
    return Bench(wanted, config, runner, clock, roof, deadline_s)


def _layers_that_fit(config: ModelConfig, device: torch.device) -> int:
    """In four fifths of what is free; the rest is for caches, peers and scratch."""
    one = cut(config, 2)
    each = sum(t.nbytes for t in backbone_tensors(one) if t.name.startswith("layers.")) // 2
    room = free_bytes(device) * 4 // 5 - PEER_BYTES * (device.type != "cpu")
    return max(2, min(config.num_layers, room // each))


def made_segment(runner: Runner, rows: int, context: int) -> Segment:
    """A row each of so many sequences that have so many tokens."""
    lengths = tuple(SetLength(slot, context) for slot in range(rows))
    runner.execute(StepPlan(0, lengths=lengths))
    vocab = runner.model.config.vocab_size
    return runner.batch.segment(
        "step", [Rows(slot, context, (slot * 997 % vocab,), sample=True) for slot in range(rows)]
    )


def given_segment(runner: Runner, rows: int) -> Segment:
    """The first rows of one sequence."""
    runner.execute(StepPlan(0, lengths=(SetLength(0, 0),)))
    vocab = runner.model.config.vocab_size
    tokens = tuple(i * 997 % vocab for i in range(rows))
    return runner.batch.segment("prefill", [Rows(0, 0, tokens, sample=True)])


@contextmanager
def same_experts(net: Network) -> Iterator[None]:
    """Meanwhile all rows choose the same experts of a layer, others in each, by its bias, which
    tells nothing of their weights."""
    config, kept = net.config, []
    for block in net.blocks:
        bias = block.moe.weights.router.bias
        assert bias is not None, "a table of tokens chooses here"
        kept.append((bias, bias.clone()))
        chosen = torch.randperm(config.num_experts)[: config.experts_per_token]
        bias[chosen.to(bias.device)] += FAR
    try:
        yield
    finally:
        for bias, before in kept:
            bias.copy_(before)
