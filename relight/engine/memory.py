"""What an engine's memory is spent on: predicted from shapes, kind by kind, to stand beside what
was measured. Knows no torch."""

from collections import Counter
from collections.abc import Iterable

from relight.base.config import ModelConfig
from relight.base.errors import CannotFit
from relight.base.tensors import backbone_tensors
from relight.cache.layout import PAGE_TOKENS, BlockLayout, Layout
from relight.engine.capacity import Capacity

Rows = tuple[tuple[str, int], ...]
"""What it is, and its bytes."""


def weight_rows(config: ModelConfig) -> Rows:
    """The parts of the backbone as they are stored; norms take twice that, since they become
    float32."""
    parts: Counter[str] = Counter()
    for tensor in backbone_tensors(config):
        parts[tensor.part] += tensor.nbytes
    return tuple((f"weights: {part}", size) for part, size in parts.items())


def state_rows(spec: Layout, fitted: Capacity, counts: int) -> Rows:
    """Pages, rings and records by what is in them, and what the sampler keeps."""
    tokens = (fitted.num_pages - 1) * PAGE_TOKENS
    return (
        *_kinds(f"pages, {tokens:,} tokens", spec.page, fitted.num_pages),
        *_kinds(f"rings, {fitted.num_slots} slots", spec.slot, fitted.num_slots),
        *_kinds(f"boundary records, {fitted.num_records}", spec.record, fitted.num_records),
        (f"counts for penalties, {fitted.num_slots} slots", counts),
    )


def _kinds(name: str, block: BlockLayout, count: int) -> Iterable[tuple[str, int]]:
    for field in block.fields:
        yield f"{name}: {field.name.replace('_', ' ')}", count * field.bytes
    padding = block.bytes - sum(field.bytes for field in block.fields)
    if padding:
        yield f"{name}: padding", count * padding


def scratch_bytes(config: ModelConfig, rows: int, draws: int) -> int:
    """About what a step needs for a while: residual streams before and after, queries, outputs and
    one more of their size, the widest rows of the experts, and logits with a copy, all float32."""
    heads = config.num_heads * config.head_dim
    experts = config.experts_per_token * 3 * config.moe_intermediate_size
    each = 2 * config.hc_mult * config.hidden_size + 3 * heads + experts
    return 4 * (rows * each + 2 * draws * config.vocab_size)


def check_weights_fit(config: ModelConfig, free_bytes: int) -> None:
    """Before they are read, where they are copied: raises `CannotFit`."""
    needed = sum(size for _, size in weight_rows(config))
    if needed > free_bytes:
        raise CannotFit(
            f"the weights take {needed:,} bytes and {free_bytes:,} are free on the device: choose "
            "a device with more memory, or a smaller checkpoint",
            param="device",
        )
