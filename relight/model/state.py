"""The pool as the network sees it: the rows that each layer remembers. Knows no sequence."""

from dataclasses import dataclass

import torch
from torch import Tensor

from relight.base.config import LayerSpec, ModelConfig
from relight.cache.layout import (
    DRAFT,
    INDEX_KEYS,
    INDEX_PARTIAL,
    OVERLAP_RATIO,
    TOKENS,
    WINDOW,
    compressed,
    index_keys,
    partial,
)
from relight.cache.pool import Blocks, Pool
from relight.kernels.rows import Rows


@dataclass(frozen=True, slots=True)
class LayerState:
    """What one layer remembers, over all slots and pages: views into the pool."""

    window: Rows  # [slots, window ring]
    compressed: Rows | None = None  # [pages, 128 / ratio]
    partial: Tensor | None = None  # [slots, ring, values and gates] float32
    keys: Rows | None = None  # [pages, 32]
    index_partial: Tensor | None = None  # [slots, ring, values and gates] float32
    tokens: Tensor | None = None  # [slots, ring] int64; of layers with n-grams, one for all of them


def layer_states(config: ModelConfig, pool: Pool) -> tuple[LayerState, ...]:
    """The state of every layer of `config` in `pool`."""
    if config.generation == "v4.1":
        return tuple(_layer_v41(layer, pool) for layer in config.layers)
    return tuple(_layer(index, spec.ratio, pool) for index, spec in enumerate(config.layers))


def draft_rings(config: ModelConfig, pool: Pool) -> tuple[Rows, ...]:
    """The rings of the draft's stages [slots, window ring], in a pool that has them."""
    return tuple(_rows(pool.slots, DRAFT, stage) for stage in range(config.draft.num_stages))


def _layer(index: int, ratio: int, pool: Pool) -> LayerState:
    window = _rows(pool.slots, WINDOW, index)
    if not ratio:
        return LayerState(window)
    entries = _rows(pool.pages, compressed(ratio), index)
    raw = _floats(pool.slots, partial(ratio), index)
    if ratio != OVERLAP_RATIO:
        return LayerState(window, entries, raw)
    keys = _rows(pool.pages, INDEX_KEYS, index)
    return LayerState(window, entries, raw, keys, _floats(pool.slots, INDEX_PARTIAL, index))


def _layer_v41(layer: LayerSpec, pool: Pool) -> LayerState:
    """Entries and keys are those of the layer's source."""
    window, tokens = _rows(pool.slots, WINDOW, layer.index), None
    if layer.engram_rows:
        tokens = _rows(pool.slots, TOKENS, 0).data.view(torch.int64).squeeze(-1)
    if layer.kv_source is None:
        return LayerState(window, tokens=tokens)
    raw = None
    if layer.attention == "full" and layer.ratio > 1:
        raw = _floats(pool.slots, partial(layer.ratio), layer.index)
    return LayerState(
        window,
        _rows(pool.pages, compressed(layer.ratio), layer.kv_source),
        raw,
        _rows(pool.pages, index_keys(layer.ratio), layer.kv_source),
        tokens=tokens,
    )


def _rows(blocks: Blocks, name: str, layer: int) -> Rows:
    field = blocks.spec.field(name)
    at = field.layers.index(layer)
    return Rows(field.format, blocks.data(field)[:, at], blocks.scales(field)[:, at])


def _floats(blocks: Blocks, name: str, layer: int) -> Tensor:
    return _rows(blocks, name, layer).data.view(torch.float32)
