import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.config import LayerSpec, ModelConfig
from relight.base.errors import CannotFit
from relight.base.numerics import OFFICIAL
from relight.base.official import V4_FLASH, V41_FLASH
from relight.base.settings import Settings
from relight.base.tensors import backbone_tensors
from relight.cache.layout import PAGE_TOKENS, Layout, layout
from relight.engine.capacity import Capacity, capacity
from relight.engine.memory import (
    check_weights_fit,
    check_weights_fit_in_ram,
    layers_that_fit,
    model_notes,
    setting_notes,
    state_rows,
    weight_notes,
    weight_rows,
)
from relight.kernels.device import available_bytes

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


@given(
    free=st.integers(0, 2**33),
    slots=st.integers(1, 64),
    cache=st.one_of(st.just(0), st.integers(0, 2**34)),
    records=st.one_of(st.just(0), st.integers(64 * 2**22, 2**31)),
)
def test_a_refusal_names_the_largest_settings_that_would_fit(
    free: int, slots: int, cache: int, records: int
) -> None:
    spec = layout(V4_FLASH, OFFICIAL)
    settings = Settings(model="m", num_slots=slots, cache_bytes=cache, record_bytes=records)
    try:
        capacity(V4_FLASH, spec, settings, free)
        return
    except CannotFit as error:
        message = error.message
    if found := re.search(r"set (\w+) to at (?:most|least) ([\d,]+)$", message):
        change = {found[1]: int(found[2].replace(",", ""))}
        remedied = msgspec.structs.replace(settings, **change)
        if remedied.cache_bytes and "least" not in message and "num_slots" in change:
            remedied = msgspec.structs.replace(remedied, cache_bytes=0)
        again = ""  # one thing at a time: another setting may be the next
        try:
            capacity(V4_FLASH, spec, remedied, free)
        except CannotFit as error:
            again = error.message
        assert again != message
        if "at most" in message and found[1] == "num_slots" and not cache:
            more = msgspec.structs.replace(settings, num_slots=change["num_slots"] + 1)
            with pytest.raises(CannotFit):
                capacity(V4_FLASH, spec, more, free)
    else:
        assert re.search(r"not even one slot fits; free [\d,]+ bytes more$", message)


def test_a_v4_flash_table_adds_up_to_what_is_granted() -> None:
    spec = layout(V4_FLASH, OFFICIAL)
    fitted = capacity(V4_FLASH, spec, Settings(model="m"), 2**35)
    assert sum(size for _, size in state_rows(spec, fitted, 0)) == bytes_of(fitted, spec)
    weights = dict(weight_rows(V4_FLASH))
    assert sum(weights.values()) == sum(t.nbytes for t in backbone_tensors(V4_FLASH))
    assert weights["weights: routed experts"] > 0.9 * sum(weights.values())


def test_weights_that_a_device_cannot_hold_are_refused_before_they_are_read() -> None:
    with pytest.raises(
        CannotFit,
        match=r"the weights take .* and 85,899,345,920 are free .*room for 23 of 43 layers",
    ):
        check_weights_fit(V4_FLASH, 80 * 2**30)
    check_weights_fit(V4_FLASH, 200 * 2**30)


def test_what_would_fit_is_counted_in_layers() -> None:
    whole = sum(size for _, size in weight_rows(V4_FLASH))
    assert layers_that_fit(V4_FLASH, whole) == 43
    assert layers_that_fit(V4_FLASH, whole - 1) == 42
    assert layers_that_fit(V4_FLASH, 0) == 0
    tables = 264 * (384_006_168 + 384_016_682)
    elsewhere = sum(size for _, size in weight_rows(V41_FLASH)) - tables
    assert layers_that_fit(V41_FLASH, elsewhere, "host") == 40
    assert layers_that_fit(V41_FLASH, elsewhere) < 40


def test_weights_that_ram_cannot_hold_are_refused_or_said_to_be_slow() -> None:
    """Experts are copied, so they must fit; the rest is mapped and may be read again."""
    experts = dict(weight_rows(V4_FLASH))["weights: routed experts"]
    everything = sum(size for _, size in weight_rows(V4_FLASH))
    with pytest.raises(CannotFit, match=f"experts take {experts:,} bytes.* {experts - 1:,} are"):
        check_weights_fit_in_ram(V4_FLASH, experts - 1)
    assert check_weights_fit_in_ram(V4_FLASH, experts) == experts
    (note,) = weight_notes(V4_FLASH, everything - 1)
    assert f"take {everything:,} bytes and {everything - 1:,} of RAM" in note
    assert not weight_notes(V4_FLASH, everything)


def test_settings_without_effect_are_said() -> None:
    spec = layout(V4_FLASH, OFFICIAL)
    page = spec.page.bytes

    def notes(**changes: object) -> list[str]:
        settings = Settings(model="m", num_slots=2, max_context=1024, **changes)  # type: ignore
        fitted = capacity(V4_FLASH, spec, settings, 2**35)
        return list(setting_notes(settings, spec, fitted))

    assert not notes()
    assert not notes(cache_bytes=17 * page), "two slots of eight pages, and the null page"
    (note,) = notes(cache_bytes=18 * page)
    assert f"of cache_bytes {18 * page:,} only {17 * page:,} are used: 2 slots of 1,024" in note
    (note,) = notes(record_bytes=2**30, prefix_cache="off")
    assert "record_bytes has no effect" in note


def test_a_container_leaves_what_its_limit_says(tmp_path: Path) -> None:
    """Pages of files count as used there, and can be had."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    assert available_bytes(meminfo, tmp_path) == 4000 * 1024
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 100000\nfile 600000\nkernel 1\n")
    for limit, left in (("max\n", 4000 * 1024), ("1000000\n", 900_000), (f"{10**9}\n", 4096_000)):
        (tmp_path / "memory.max").write_text(limit)
        assert available_bytes(meminfo, tmp_path) == left


def test_n_gram_tables_elsewhere_are_not_counted_on_the_device() -> None:
    tables = 264 * (384_006_168 + 384_016_682)
    everything = sum(size for _, size in weight_rows(V41_FLASH))
    for place in ("host", "mmap"):
        rows = dict(weight_rows(V41_FLASH, place))
        elsewhere = {name: size for name, size in rows.items() if "n-gram tables" in name}
        assert list(elsewhere.values()) == [tables]
        assert sum(rows.values()) == everything
        assert check_weights_fit(V41_FLASH, 320 * 2**30, place) == everything - tables
    with pytest.raises(CannotFit, match="set engram to host or mmap") as caught:
        check_weights_fit(V41_FLASH, 320 * 2**30)
    assert caught.value.param == "device"
    with pytest.raises(CannotFit) as caught:
        check_weights_fit(V41_FLASH, 80 * 2**30, "mmap")
    assert "engram" not in caught.value.message


def test_n_gram_tables_in_ram_are_counted_there() -> None:
    experts = dict(weight_rows(V41_FLASH))["weights: routed experts"]
    assert check_weights_fit_in_ram(V41_FLASH, experts) == experts
    with pytest.raises(CannotFit, match="experts and n-gram tables"):
        check_weights_fit_in_ram(V41_FLASH, experts, "host")
    assert check_weights_fit_in_ram(V41_FLASH, experts, "mmap") == experts


def test_a_layout_of_prompts_that_does_not_fit_the_model_is_noted() -> None:
    def notes(config: ModelConfig, **changes: object) -> list[str]:
        return list(model_notes(config, Settings(model="", **changes)))  # type: ignore[arg-type]

    assert not notes(V4_FLASH)
    assert not notes(V4_FLASH, encoding="v4-first")
    assert not notes(V41_FLASH, encoding="v4.1", engram="device")
    assert not notes(V41_FLASH, engram="device")
    (note,) = notes(V41_FLASH, engram="mmap")
    assert "of which a token reads 48 rows" in note
    (note,) = notes(V41_FLASH, encoding="v4")
    assert "set encoding to v4.1" in note
    (note,) = notes(V4_FLASH, encoding="v4.1")
    assert "set encoding to v4" in note
    (note,) = notes(V4_FLASH, engram="host")
    assert "no n-gram tables" in note
