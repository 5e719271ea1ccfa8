"""What an engine's memory is spent on: predicted from shapes, kind by kind, to stand beside what
was measured. Knows no torch."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from relight.base.config import ModelConfig
from relight.base.errors import CannotFit
from relight.base.settings import Settings
from relight.base.tensors import backbone_tensors
from relight.cache.layout import PAGE_TOKENS, BlockLayout, Layout
from relight.engine.capacity import Capacity

Rows = tuple[tuple[str, int], ...]
"""What it is, and its bytes."""


ELSEWHERE = {"host": "n-gram tables in RAM", "mmap": "n-gram tables in the checkpoint"}
"""By where they lie: names of what takes nothing of the device."""


UNPACKED = "weights: also in float32"


def room_to_unpack(available_bytes: int) -> int:
    """What a processor's products may keep decoded: a model of which that is little decodes no
    weight twice, and a large one is not read before it is needed."""
    return available_bytes // 16


def weight_rows(config: ModelConfig, engram: str = "device") -> Rows:
    """The parts of the backbone as they are stored; norms take twice that, since they become
    float32. `engram` says where n-gram tables lie."""
    parts: Counter[str] = Counter()
    for tensor in backbone_tensors(config):
        if tensor.is_table and engram in ELSEWHERE:
            parts[ELSEWHERE[engram]] += tensor.nbytes
        else:
            parts[f"weights: {tensor.part}"] += tensor.nbytes
    return tuple(parts.items())


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


def weight_bytes(config: ModelConfig, engram: str = "device") -> int:
    """What the device holds."""
    rows = weight_rows(config, engram)
    return sum(size for name, size in rows if name not in ELSEWHERE.values())


def check_weights_fit(config: ModelConfig, free_bytes: int, engram: str = "device") -> int:
    """Before they are read, where all are copied: raises `CannotFit`, or returns how many bytes
    they will take."""
    needed = weight_bytes(config, engram)
    if needed > free_bytes:
        remedy = "choose a device with more memory, or a smaller checkpoint"
        if needed > weight_bytes(config, "host"):
            remedy = "set engram to host or mmap, or " + remedy
        raise CannotFit(
            f"the weights take {needed:,} bytes and {free_bytes:,} are free on the device, room "
            f"for {layers_that_fit(config, free_bytes, engram)} of {config.num_layers} layers: "
            f"{remedy}",
            param="device",
        )
    return needed


def layers_that_fit(config: ModelConfig, free_bytes: int, engram: str = "device") -> int:
    """How many of the first layers there is room for, beside what belongs to none."""
    layers, left = [0] * config.num_layers, free_bytes
    for tensor in backbone_tensors(config):
        found = re.match(r"layers\.(\d+)\.", tensor.name)
        if tensor.is_table and engram in ELSEWHERE:
            continue
        if found:
            layers[int(found[1])] += tensor.nbytes
        else:
            left -= tensor.nbytes
    taken = itertools.accumulate(layers)
    return sum(size <= left for size in taken)


def check_weights_fit_in_ram(
    config: ModelConfig, available_bytes: int, engram: str = "device"
) -> int:
    """The same where only experts are copied, into stacks, and n-gram tables on request; the rest
    is mapped, and its pages are given back and read again as they are needed."""
    copied = sum(
        tensor.nbytes
        for tensor in backbone_tensors(config)
        if tensor.part == "routed experts" or (tensor.is_table and engram == "host")
    )
    if copied > available_bytes:
        tables = " and n-gram tables" if engram == "host" and config.engram else ""
        raise CannotFit(
            f"the routed experts{tables} take {copied:,} bytes of RAM, of {weight_bytes(config):,} "
            f"for all weights, and {available_bytes:,} are available: free memory, or choose a "
            "machine with more, or a smaller checkpoint",
            param="model",
        )
    return copied


def weight_notes(
    config: ModelConfig, available_bytes: int, engram: str = "device"
) -> tuple[str, ...]:
    """For weights that fit in RAM as above. Of n-gram tables a step reads some rows anyway."""
    needed = weight_bytes(config, "mmap" if engram == "mmap" else "device")
    if needed <= available_bytes:
        return ()
    return (
        f"the weights take {needed:,} bytes and {available_bytes:,} of RAM were available: what "
        "does not fit is read from disk again and again, which may be slow",
    )


def model_notes(config: ModelConfig, settings: Settings) -> Iterator[str]:
    """What of the settings does not fit the model."""
    is_other = (config.generation == "v4.1") != (settings.encoding == "v4.1")
    if settings.encoding != "auto" and is_other:
        kind = config.generation.upper()
        yield (
            f"the model is a {kind} and encoding is {settings.encoding}: it was trained on prompts "
            f"of another layout, so chats will be worse (set encoding to {config.generation})"
        )
    if settings.engram in ELSEWHERE:
        yield table_note(config, settings.engram)


def table_note(config: ModelConfig, engram: str) -> str:
    """Of n-gram tables that do not lie on the device."""
    tables = [tensor for tensor in backbone_tensors(config) if tensor.is_table]
    if config.engram is None:
        return f"engram {engram} has no effect: the model has no n-gram tables"
    columns = config.engram.columns
    read = sum(columns * tensor.nbytes // tensor.shape[0] for tensor in tables)
    return (
        f"{ELSEWHERE[engram]}: {sum(tensor.nbytes for tensor in tables):,} bytes, of which a token "
        f"reads {columns * len(tables) // 2} rows, {read:,} bytes, at most (relight:engram_* in "
        "/metrics)"
    )


def setting_notes(settings: Settings, spec: Layout, fitted: Capacity) -> Iterator[str]:
    """What of the settings has no effect."""
    used = fitted.num_pages * spec.page.bytes
    if settings.cache_bytes - used >= max(spec.page.bytes, 1):
        yield (
            f"of cache_bytes {settings.cache_bytes:,} only {used:,} are used: {fitted.num_slots} "
            f"slots of {fitted.max_context:,} tokens hold no more (num_slots, max_context)"
        )
    if settings.record_bytes and settings.prefix_cache == "off":
        yield "record_bytes has no effect: prefix_cache is off, so nothing is reused"
