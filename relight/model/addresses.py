"""Where the rows of a segment lie: rings, pages and lists of keys, derived from positions. Knows no
values and no weights.

Every place is arithmetic on an absolute position, so there is no bookkeeping to save or to restore:
a ring row is `position mod ring`, a compressed entry is `position div ratio` through the page
table.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from relight.cache.layout import PAGE_TOKENS
from relight.kernels.peek import looks_are_free
from relight.model.inputs import Segment

KEY_BLOCK = 64
"""Keys are cut at absolute positions: multiples of 64 tokens in the window, of 64 in lists of
entries.
"""

NO_KEY = -1


@dataclass(frozen=True, slots=True)
class RingAddresses:
    """How the rows of one kind of ring are reached from a segment.

    The step family stores its rows first and then reads the rings: a step is at most as wide as the
    rows that a ring has to spare. The prefill family may bring more rows than a ring has, so it
    reads a scratch: `history` ring rows of every sequence, then the segment's own rows.
    """

    ring: int
    history: int
    kept: Tensor  # [kept] segment rows that are stored
    places: Tensor  # [kept] ring row of each, slot * ring + position mod ring
    past: Tensor | None  # [sequences * history] ring rows for the scratch; prefill only

    def source(self, segment: Segment, sequence: Tensor, positions: Tensor) -> Tensor:
        """Rows of what is read (rings or scratch) that hold `positions` [m, w] of `sequence` [m].

        A position before the sequence's start gives NO_KEY.
        """
        if self.past is None:
            at = segment.slots[sequence].unsqueeze(1) * self.ring + positions % self.ring
        else:
            start = segment.starts[sequence].unsqueeze(1)
            new = positions - start
            own = segment.num_sequences * self.history + segment.first_rows[sequence].unsqueeze(1)
            old = (sequence.unsqueeze(1) + 1) * self.history
            at = torch.where(new >= 0, own + new, old + new)
        return torch.where(positions >= 0, at, NO_KEY)


def ring_addresses(segment: Segment, ring: int, history: int) -> RingAddresses:
    """Addresses of rings of `ring` rows, of which `history` before a segment's rows are read."""
    kept = segment.kept_rows[ring]
    slots = segment.slots[segment.sequence[kept]]
    places = slots * ring + segment.positions[kept] % ring
    if segment.family == "step":
        return RingAddresses(ring, history, kept, places, None)
    back = torch.arange(-history, 0, device=kept.device)
    past = segment.slots.unsqueeze(1) * ring + (segment.starts.unsqueeze(1) + back) % ring
    return RingAddresses(ring, history, kept, places, past.flatten())


def window_keys(
    segment: Segment, rings: RingAddresses, window: int, since: Tensor | None = None
) -> Tensor:
    """For each row the sources of its window [rows, blocks * 64], in blocks cut at multiples of 64.

    A window of 128 keys touches at most three blocks; keys outside it, and those in front of
    position `since` [sequences], are NO_KEY.
    """
    blocks = -(-(window - 1) // KEY_BLOCK) + 1
    last_block = segment.positions // KEY_BLOCK
    first = (last_block - blocks + 1) * KEY_BLOCK
    span = torch.arange(blocks * KEY_BLOCK, device=first.device)
    keys = first.unsqueeze(1) + span  # [rows, keys]
    position = segment.positions.unsqueeze(1)
    inside = (keys <= position) & (keys > position - window)
    if since is not None:
        inside &= keys >= since[segment.sequence].unsqueeze(1)
    return rings.source(segment, segment.sequence, torch.where(inside, keys, NO_KEY))


@dataclass(frozen=True, slots=True)
class EntryAddresses:
    """The compressed entries of every sequence of a segment, for one ratio."""

    ratio: int
    places: Tensor  # [sequences, entries] row of the paged store
    visible: Tensor  # [rows] entries that a row may read
    group_sequence: Tensor  # [groups]
    group_entry: Tensor  # [groups] entry that the group makes
    group_place: Tensor  # [groups] row of the paged store; the null page's where it does not close


def entry_addresses(segment: Segment, ratio: int) -> EntryAddresses:
    """Entry e covers the `ratio` tokens from e * ratio on and is visible to the last of them."""
    per_page = PAGE_TOKENS // ratio
    count = segment.max_length // ratio
    entries = torch.arange(count, device=segment.positions.device)
    pages = segment.page_table[:, entries // per_page]
    places = pages * per_page + entries % per_page
    rows = segment.closing_rows[ratio]
    position, sequence = segment.positions[rows], segment.sequence[rows]
    entry = position // ratio
    closes = (position + 1) % ratio == 0
    if looks_are_free(closes):  # else what does not close makes an entry that nobody reads
        position, sequence, entry = position[closes], sequence[closes], entry[closes]
        closes = closes[closes]
    page = segment.page_table[sequence, entry // per_page]
    place = torch.where(closes, page * per_page + entry % per_page, 0)
    visible = (segment.positions + 1) // ratio
    return EntryAddresses(ratio, places, visible, sequence, entry, place)


def all_entries(segment: Segment, addresses: EntryAddresses) -> Tensor:
    """For each row the places of all entries that it sees, ascending, padded with NO_KEY to a
    multiple of 64: [rows, keys]."""
    count = addresses.places.shape[1]
    listed = torch.arange(count, device=addresses.places.device)
    seen = listed < addresses.visible.unsqueeze(1)
    places = addresses.places[segment.sequence]
    return pad_keys(torch.where(seen, places, NO_KEY))


def pad_keys(keys: Tensor) -> Tensor:
    """Pads lists [rows, k] with NO_KEY to a multiple of 64."""
    short = -keys.shape[1] % KEY_BLOCK
    if not short:
        return keys
    return torch.nn.functional.pad(keys, (0, short), value=NO_KEY)
