"""Splits the memory that is left after the weights into slots, records and pages. Knows no torch.

Pages are filled up last: slots and records cost the same whatever is asked of them, and pages are
what the number of tokens in the cache depends on.
"""

from dataclasses import dataclass

from relight.base.config import ModelConfig
from relight.base.errors import CannotFit
from relight.base.settings import Settings
from relight.cache.layout import PAGE_TOKENS, Layout

SPARE_RECORDS = 64
"""Boundary records beside one provisional record a slot: about a turn of that many conversations.
"""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Blocks of each kind, page 0 included, and the longest sequence that they allow."""

    num_slots: int
    num_records: int
    num_pages: int
    max_context: int


def capacity(config: ModelConfig, layout: Layout, settings: Settings, free_bytes: int) -> Capacity:
    """What fits in `free_bytes` under `settings`; `CannotFit` names the largest settings that
    would."""
    slots = settings.num_slots * layout.slot.bytes
    records = settings.record_bytes // layout.record.bytes
    if settings.prefix_cache == "off":
        records = 0  # nothing would be found by them
    elif not settings.record_bytes:
        records = settings.num_slots + SPARE_RECORDS
    elif records < settings.num_slots:
        raise CannotFit(
            f"record_bytes is {settings.record_bytes:,}, room for {records} boundary records; "
            f"{settings.num_slots} slots need one each: set record_bytes to at least "
            f"{settings.num_slots * layout.record.bytes:,} or num_slots to {max(records, 1)}",
            param="record_bytes",
        )
    left = free_bytes - slots - records * layout.record.bytes
    wanted_context = settings.max_context or config.max_position
    if wanted_context > config.max_position:
        raise CannotFit(
            f"max_context is {wanted_context:,}; the model was made for at most "
            f"{config.max_position:,}: lower max_context",
            param="max_context",
        )
    per_sequence = -(-wanted_context // PAGE_TOKENS)
    useful = 1 + settings.num_slots * per_sequence  # more could never be held at once
    page_bytes = max(layout.page.bytes, 1)  # sliding layers alone put nothing into pages
    pages = min(settings.cache_bytes or left, useful * page_bytes) // page_bytes
    if pages * page_bytes > left or pages < 2:
        fitting = max(left, 0) // page_bytes
        raise CannotFit(
            f"{free_bytes:,} bytes are free; {settings.num_slots} slots take {slots:,} and "
            f"{records} records {records * layout.record.bytes:,}, which leaves room for {fitting} "
            f"pages of {layout.page.bytes:,}: {_largest(layout, settings, free_bytes, fitting)}",
            param="cache_bytes",
        )
    context = (pages - 1) * PAGE_TOKENS
    if settings.max_context > context:
        raise CannotFit(
            f"max_context is {settings.max_context:,}; the {pages - 1} pages that fit hold "
            f"{context:,} tokens: set max_context to at most that, or free memory",
            param="max_context",
        )
    return Capacity(settings.num_slots, records, pages, min(wanted_context, context))


def _largest(layout: Layout, settings: Settings, free_bytes: int, fitting_pages: int) -> str:
    """The remedy: the largest settings that would fit."""
    page = max(layout.page.bytes, 1)
    if settings.cache_bytes // page >= 2 and fitting_pages >= 2:
        return f"set cache_bytes to at most {fitting_pages * page:,}"
    if settings.cache_bytes and settings.cache_bytes // page < 2:
        return f"set cache_bytes to at least {2 * page:,}"
    each, fixed = layout.slot.bytes, 2 * page + settings.record_bytes
    if settings.prefix_cache == "on" and not settings.record_bytes:
        each += layout.record.bytes
        fixed += SPARE_RECORDS * layout.record.bytes
    slots = (free_bytes - fixed) // each
    if slots < 1:
        return f"not even one slot fits; free {each + fixed - free_bytes:,} bytes more"
    return f"set num_slots to at most {slots}"
