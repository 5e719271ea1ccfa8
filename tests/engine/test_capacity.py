from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.config import LayerSpec, ModelConfig
from relight.base.errors import CannotFit
from relight.base.numerics import OFFICIAL
from relight.base.official import V4_FLASH
from relight.base.settings import Settings
from relight.cache.layout import PAGE_TOKENS, Layout, layout
from relight.engine.capacity import Capacity, capacity

SLIDING = replace(
    V4_FLASH, layers=tuple(LayerSpec(index, "sliding", 0, "bias") for index in range(2))
)


def bytes_of(fitted: Capacity, spec: Layout) -> int:
    return (
        fitted.num_slots * spec.slot.bytes
        + fitted.num_records * spec.record.bytes
        + fitted.num_pages * spec.page.bytes
    )


@given(
    free=st.integers(0, 2**34),
    slots=st.integers(1, 64),
    context=st.integers(0, 2**18),
    cache=st.integers(0, 2**34),
    records=st.integers(0, 2**32),
)
@pytest.mark.parametrize("config", [V4_FLASH, SLIDING], ids=["flash", "sliding"])
def test_what_is_granted_fits_and_holds_a_whole_context(
    config: ModelConfig, free: int, slots: int, context: int, cache: int, records: int
) -> None:
    spec = layout(config, OFFICIAL)
    settings = Settings(
        model="m",
        num_slots=slots,
        max_context=context,
        cache_bytes=cache,
        record_bytes=records,
    )
    try:
        fitted = capacity(config, spec, settings, free)
    except CannotFit:
        return
    assert bytes_of(fitted, spec) <= free
    assert fitted.num_slots == slots
    assert fitted.num_records >= slots
    assert 0 < fitted.max_context <= (fitted.num_pages - 1) * PAGE_TOKENS
    assert fitted.max_context == context or not context
    if cache and spec.page.bytes:
        assert fitted.num_pages * spec.page.bytes <= cache


def test_a_context_that_the_model_was_not_made_for_is_refused() -> None:
    settings = Settings(model="m", max_context=2**20)
    config = replace(V4_FLASH, max_position=2**17)
    with pytest.raises(CannotFit, match="at most 131,072"):
        capacity(config, layout(config, OFFICIAL), settings, 2**40)


def test_without_a_prefix_cache_records_cost_nothing() -> None:
    spec = layout(V4_FLASH, OFFICIAL)
    cached, uncached = (
        capacity(V4_FLASH, spec, Settings(model="m", prefix_cache=state), 2**32)  # type: ignore[arg-type]
        for state in ("on", "off")
    )
    assert cached.num_records > 0
    assert uncached.num_records == 0
    assert uncached.num_pages > cached.num_pages
