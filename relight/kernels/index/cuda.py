"""The indexer on CUDA devices: which kernels there are. Knows no layer, and not
whether it is chosen."""

from relight.kernels.block import plain
from relight.kernels.build import Kernel, Macros
from relight.kernels.forms import Form

SOURCE, TOP_SOURCE = "index/rows.cu", "index/topk.cu"

DIM = 128
HEADS = (16, 32, 64)
"""What there are kernels for; V4-Flash has 64 heads and V4.1-Flash 32."""

ENTRIES, FEWER_ENTRIES, PROCESSORS = 256, (64, 128), 132
"""What a block of `index_scores` takes at least; fewer where all blocks run at once."""

MANY_BLOCKS, MOST_SPANS = 2048, 8
"""From so many blocks on, four for each time that every processor of an H200 takes four, a block
takes more entries, and stages its queries, 32 KB of a row, less often."""

SCORE_THREADS = 256

TOP_THREADS = 1024
"""Of the block that has a row."""


def scores(form: Form, heads: int) -> Kernel:
    return Kernel(f"index scores {heads}x{DIM}", SOURCE, "index_scores", _macros(form, heads))


def topk(form: Form) -> Kernel:
    """What is chosen does not hang on what was scored."""
    macros = (*plain(form), ("THREADS", TOP_THREADS))
    return Kernel("index top-k", TOP_SOURCE, "index_topk", macros)


def span(rows: int, entries: int) -> int:
    """Entries of a block."""
    for few in FEWER_ENTRIES:
        if rows * -(-entries // few) <= PROCESSORS:
            return few
    blocks = rows * -(-entries // ENTRIES)
    return ENTRIES * max(1, min(MOST_SPANS, blocks // MANY_BLOCKS))


def _macros(form: Form, heads: int) -> Macros:
    return (
        ("STEP_FORM", form.number),
        ("OPERAND", '"bf16"' if form.bf16 else '"f16"'),
        ("X_BF16", int(form.bf16)),
        ("PDL", int(form.early)),
        ("MATRIX", int(form.bf16)),
        ("HEADS", heads),
        ("PLAIN", DIM),
    )


def kernels(form: Form) -> list[Kernel]:
    """Those of V4-Flash and V4.1-Flash."""
    return [scores(form, 64), scores(form, 32), topk(form)]
