"""Hyper-connections on CUDA devices: which kernels there are. Knows no sublayer, and not whether it
is chosen."""

from dataclasses import replace

import torch

from relight.kernels.block import Block, block_of, rounded_by, short
from relight.kernels.build import Kernel
from relight.kernels.forms import Form

SOURCE = "hyper/rows.cu"

HC = 4
SLICE = 128
PARTS = 32
"""Of the source: values that a block of `mix_parts` sums, and what it leaves for each row."""

PEERS = 8
"""Blocks that end the mix of a row together, where a device has clusters: as many as any has."""

LET_FIRST = ("mix_parts", "spread_parts")
"""These let the next one begin before they wait: the end of a mix, which until it waits reads
weights alone."""

PIECES = 3
"""Of bf16, whose sum a float32 is: 24 bits are three times eight."""

CUTS, CUT_ROWS = 8, 128
"""Of the projection of given rows, so that few rows are many tiles, too, and rows of each."""

WIDTHS, ACT_BLOCKS = (4096, 5120), (128, 32)
"""Of V4-Flash and V4.1-Flash."""


def block(width: int) -> Block | None:
    """How a row's collapsed stream is held, if it can be."""
    return block_of(width)


def mix_parts(form: Form, block: Block, boundary: torch.dtype, outputs: int) -> Kernel:
    return _kernel("mix-parts", "mix_parts", form, block, boundary, outputs)


def spread_parts(form: Form, block: Block, boundary: torch.dtype) -> Kernel:
    return _kernel("spread-parts", "spread_parts", form, block, boundary, HC * (2 + HC))


def mix_end(
    form: Form,
    block: Block,
    boundary: torch.dtype,
    outputs: int,
    act_block: int = 0,
    pieces: int = 0,
) -> Kernel:
    """`act_block`: what is read is also rounded for products that take so many values by a
    scale. `pieces`: of weights, with which the matrix unit has multiplied."""
    what = "mix-end" if not pieces else f"mix-end of {pieces} pieces"
    return _kernel(what, "mix_end", form, block, boundary, outputs, act_block, pieces)


def mix_end_by_peers(
    form: Form, block: Block, boundary: torch.dtype, outputs: int, act_block: int = 0
) -> Kernel:
    made = _kernel(
        "mix-end by peers", "mix_end_by_peers", form, block, boundary, outputs, act_block
    )
    return replace(made, macros=(*made.macros, ("PEERS", PEERS)))


def peer_threads(form: Form, width: int) -> int:
    """Of a block of `mix_end_by_peers`; 0 where there is none."""
    chunks, left = divmod(width, 128 * PEERS)
    return 64 * chunks if form.clusters and 0 < chunks <= 16 and not left else 0


def split_weights(form: Form, block: Block, boundary: torch.dtype, outputs: int) -> Kernel:
    return _kernel("split", "split_weights", form, block, boundary, outputs, pieces=PIECES)


def balance(form: Form) -> Kernel:
    """Of streams of any width, and of any boundary."""
    held = block(WIDTHS[0])
    assert held is not None
    return _kernel("balance", "balance", form, held, torch.float32, HC * (2 + HC))


def spread(form: Form, block: Block, boundary: torch.dtype) -> Kernel:
    return _kernel("spread", "spread", form, block, boundary, HC * (2 + HC))


def read_streams(form: Form, block: Block, boundary: torch.dtype) -> Kernel:
    return _kernel("read", "read_streams", form, block, boundary, HC * (2 + HC))


def _kernel(
    what: str,
    entry: str,
    form: Form,
    block: Block,
    boundary: torch.dtype,
    outputs: int,
    act_block: int = 0,
    pieces: int = 0,
) -> Kernel:
    held = block.macros(form, boundary, boundary)
    first = ("LET_FIRST", int(entry in LET_FIRST))
    macros = (*held, ("OUTPUTS", outputs), ("ROUNDS", act_block), ("PIECES", pieces), first)
    head = " of the head" if outputs == HC else ""
    name = f"hyper {what}{head} D={block.width} {short(boundary)}{rounded_by(act_block)}"
    return Kernel(name, SOURCE, entry, macros)


def kernels(form: Form) -> list[Kernel]:
    """V4.1 has no head of its own."""
    boundary = torch.bfloat16 if form.bf16 else torch.float32
    found = [balance(form)]
    of_models = zip(WIDTHS, ((HC * (2 + HC), HC), (HC * (2 + HC),)), ACT_BLOCKS, strict=True)
    for width, outputs, act_block in of_models:
        held = block(width)
        assert held is not None
        end = mix_end_by_peers if peer_threads(form, width) else mix_end
        made = (form, held, boundary)
        found += [make(*made, count) for make in (mix_parts, end) for count in outputs]
        found.append(end(*made, outputs[0], act_block))
        if form.bf16:
            given = (form, held, boundary, outputs[0])
            found += [split_weights(*given), mix_end(*given, act_block, PIECES)]
        found += [make(form, held, boundary) for make in (spread, spread_parts, read_streams)]
    return found
