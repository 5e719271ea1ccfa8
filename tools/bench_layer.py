"""Times one V4-Flash layer of real size with the reference ops, beside transformers' layer.

    python tools/bench_layer.py --folder DIR [--device cuda] [--context 1024] [--no-peer]

Weights are random, written to the folder in the official layout (3.8 GB) and loaded from it. Prints
one JSON line: medians in milliseconds of a decode step (one made row, streams in, streams out) and
of reading `--chunk` given tokens, with the smallest and largest of the repeats. The peer is the
same layer in transformers, bfloat16 with unpacked experts (13 GB); its repeats take turns with
ours.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.config import DraftSpec
from relight.base.official import V4_FLASH, schedule
from relight.cache.pool import Pool
from relight.engine.assemble import choose_numerics
from relight.engine.plan import PageWrite, Rows, SetLength, StepPlan
from relight.engine.runner import Runner
from relight.lab.peer import VOCABULARY, Peer, wait
from relight.lab.synth import synth
from relight.model.attention import addresses
from relight.model.transformer import Block, Transformer
from relight.model.weights import load_weights

CSA_ONLY = replace(
    V4_FLASH,
    vocab_size=VOCABULARY,
    layers=schedule((4,), num_hash=0),
    draft=DraftSpec("none"),
)


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of one run, device work included."""
    wait(device)
    begun = time.perf_counter()
    run()
    wait(device)
    return 1e3 * (time.perf_counter() - begun)


def spread(samples: list[float]) -> dict[str, float]:
    return {
        "median_ms": round(statistics.median(samples), 3),
        "least_ms": round(min(samples), 3),
        "most_ms": round(max(samples), 3),
    }


class Ours:
    """One block over a pool that holds `context` tokens."""

    def __init__(self, folder: Path, device: torch.device, context: int, chunk: int) -> None:
        model = open_model(folder)
        config = model.config
        weights = load_weights(model, device)
        pages = -(-(context + 2 * chunk) // 128) + 1
        numerics = choose_numerics("official", device)
        pool = Pool(config, numerics, device, num_pages=pages + 1, num_slots=1, num_records=1)
        self.runner = Runner(Transformer(config, weights, numerics), pool, max_context=pages * 128)
        self.runner.execute(StepPlan(0, pages=(PageWrite(0, 0, tuple(range(1, pages + 1))),)))
        self.context = context
        for start in range(0, context, chunk):
            self.read(min(chunk, context - start), start)

    def read(self, rows: int, start: int) -> None:
        """Given rows, from the embedding's streams to the layer's."""
        self._run("prefill", start, rows)
        self.runner.lengths[0] = start + rows

    def step(self) -> None:
        """One made row after the context."""
        self._run("step", self.context, 1)

    def _run(self, family: str, start: int, rows: int) -> Tensor:
        runner = self.runner
        runner.execute(StepPlan(0, lengths=(SetLength(0, start),)))
        tokens = tuple((7 * i) % 1000 for i in range(start, start + rows))
        segment = runner.batch.segment(family, [Rows(0, start, tokens)])  # type: ignore[arg-type]
        with torch.inference_mode():
            streams = runner.model.embed(segment.token_ids)
            where = addresses(runner.model.config, segment)
            block = runner.model.blocks[0]
            assert isinstance(block, Block)
            assert isinstance(streams, Tensor)
            out = block.forward(streams, segment, where, runner.states[0])
            return block.mhc.whole(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument(
        "--experts",
        type=int,
        default=V4_FLASH.num_experts,
        help="of both layers; fewer take less memory, and a decode step reads six all the same",
    )
    args = parser.parse_args()
    device = torch.device(args.device)
    if not (args.folder / "config.json").exists():
        synth(replace(CSA_ONLY, num_experts=args.experts), args.folder, seed=1, tokenizer=None)
    begun = time.perf_counter()
    ours = Ours(args.folder, device, args.context, args.chunk)
    loaded_s = time.perf_counter() - begun
    steps: dict[str, list[float]] = {"ours": []}
    reads: dict[str, list[float]] = {"ours": []}
    peer = None if args.no_peer else Peer(device, args.context, args.experts)
    for repeat in range(args.repeats + 2):
        got = {"ours": timed(ours.step, device)}
        if peer:
            got["transformers"] = peer.step()
        if repeat >= 2:  # two rounds warm up
            for name, value in got.items():
                steps.setdefault(name, []).append(value)
    for repeat in range(4):
        got = {"ours": timed(lambda: ours.read(args.chunk, 0), device)}
        if peer:
            got["transformers"] = peer.read(args.chunk)
        if repeat:
            for name, value in got.items():
                reads.setdefault(name, []).append(value)
    print(
        json.dumps(
            {
                "what": "one V4-Flash CSA layer of real size, random weights",
                "device": device_name(device),
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "numerics": ours.runner.model.numerics.name,
                "context": args.context,
                "experts": args.experts,
                "load_and_read_context_s": round(loaded_s, 1),
                "decode_step": {name: spread(values) for name, values in steps.items()},
                f"read_{args.chunk}_tokens": {n: spread(values) for n, values in reads.items()},
            }
        )
    )


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.get_device_module(device).get_device_name(device))
    return f"{device.type}: {platform.processor() or platform.machine()}"


if __name__ == "__main__":
    main()
