"""The pool as the network sees it: the rows that each layer remembers. Knows no sequence."""

from dataclasses import dataclass

import torch
from torch import Tensor

from relight.base.config import ModelConfig
from relight.cache.layout import (
    INDEX_KEYS,
    INDEX_PARTIAL,
    OVERLAP_RATIO,
    WINDOW,
    compressed,
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


def layer_states(config: ModelConfig, pool: Pool) -> tuple[LayerState, ...]:
    """The state of every layer of `config` in `pool`."""
    return tuple(_layer(index, spec.ratio, pool) for index, spec in enumerate(config.layers))


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


def _rows(blocks: Blocks, name: str, layer: int) -> Rows:
    field = blocks.spec.field(name)
    at = field.layers.index(layer)
    return Rows(field.format, blocks.data(field)[:, at], blocks.scales(field)[:, at])


def _floats(blocks: Blocks, name: str, layer: int) -> Tensor:
    return _rows(blocks, name, layer).data.view(torch.float32)
