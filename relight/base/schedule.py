"""Turns lists of ratios and sources into the roles of layers. Knows no file; checks nothing."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from relight.base.specs import AttentionKind, LayerSpec


def schedule(ratios: tuple[int, ...], num_hash: int) -> tuple[LayerSpec, ...]:
    """V4 layers of these compression ratios, the first `num_hash` of them routed by table."""
    return tuple(
        LayerSpec(
            index,
            "sliding" if ratio == 0 else "csa" if ratio == 4 else "hca",
            ratio,
            "hash" if index < num_hash else "bias",
        )
        for index, ratio in enumerate(ratios)
    )


def csa2_schedule(
    ratios: Sequence[int],
    kv_sources: Sequence[int],
    index_sources: Sequence[int],
    engram_rows: Mapping[int, int],
) -> tuple[LayerSpec, ...]:
    """V4.1 layers. A layer reads from the last source at or before itself; sources ascend."""
    layers = []
    for index, ratio in enumerate(ratios):
        kv_source = _last(kv_sources, index) if ratio else None
        index_source = _last(index_sources, index) if ratio else None
        layers.append(
            LayerSpec(
                index,
                _role(index, kv_source, index_source),
                ratio,
                "bias",
                kv_source,
                index_source,
                engram_rows.get(index, 0),
            )
        )
    return tuple(layers)


def _last(sources: Sequence[int], index: int) -> int | None:
    place = bisect_right(sources, index)
    return sources[place - 1] if place else None


def _role(index: int, kv_source: int | None, index_source: int | None) -> AttentionKind:
    if kv_source is None:
        return "sliding"
    if kv_source == index:
        return "full"
    return "reindex" if index_source == index else "reuse"
