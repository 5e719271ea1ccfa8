"""Gets a sequence its pages and records, makes them findable, and gives them back. Knows no batch
and no other sequence.

What a sequence computed becomes findable only once it is committed: until then nothing in a page or
record is certain. What it leaves behind is found by the next prompt that begins alike, and by the
sequence itself if it was preempted.
"""

from dataclasses import dataclass

from relight.cache.prefix import GIVEN, Match, PrefixIndex
from relight.engine.plan import RecordMove
from relight.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Take:
    """A record that a step takes. When the step is committed, a provisional one replaces that of
    its sequence, and another is indexed."""

    move: RecordMove
    provisional: bool


class Holdings:
    """`enabled` false: nothing is found and nothing is indexed. `record_interval`: a record is
    taken and kept at every multiple of so many tokens. `replay_rows`: of given tokens in a row, how
    many run through all layers, 0: all do. Of the others a record holds no more than the encoder's
    rows, so nothing goes on behind it with fewer given tokens than that."""

    def __init__(
        self, index: PrefixIndex, *, enabled: bool, record_interval: int, replay_rows: int = 0
    ) -> None:
        self.enabled = enabled
        self.index = index
        self.pool = index.pool
        self.records = index.records
        self.page_tokens = index.page_tokens
        self.record_interval = record_interval
        self.replay_rows = replay_rows

    def find(self, sequence: Sequence) -> Match:
        """What is known of its tokens. One token must run, so the last is never found; and what a
        sequence has computed once is only found in the roles that it had then."""
        if not self.enabled:
            return Match()
        roles = sequence.roles if sequence.num_preemptions else None
        limit, rows = len(sequence.tokens) - 1, self.replay_rows
        match = self.index.match(sequence.root, sequence.tokens, limit, roles)
        usable = match.num_usable
        while rows and usable and not self._goes_on(sequence, match, usable):
            usable -= 1
        return Match(match.entries, usable)

    def _goes_on(self, sequence: Sequence, match: Match, num_pages: int) -> bool:
        boundary = num_pages * self.page_tokens
        has_record = match.entries[num_pages - 1].record is not None
        return has_record and sequence.may_go_on_at(boundary, self.replay_rows)

    def acquire(self, sequence: Sequence, match: Match) -> RecordMove | None:
        """Holds the usable pages of `match`: they count as computed. Returns the record to restore,
        None if nothing is reused."""
        usable = match.usable
        for entry in usable:
            self.pool.hold(entry.page)
        sequence.pages = [entry.page for entry in usable]
        sequence.path = list(usable)
        sequence.shares = self.enabled
        sequence.computed = sequence.planned = len(usable) * self.page_tokens
        if self.enabled:
            branch = len(match.entries) * self.page_tokens
            least_rows = max(1, self.replay_rows)
            sequence.plan_records(self.page_tokens, self.record_interval, branch, least_rows)
        if not usable:
            return None
        sequence.roles[: sequence.computed] = b"".join(entry.roles for entry in usable)
        record = usable[-1].record
        assert record is not None
        self.records.touch(usable[-1])
        return RecordMove(sequence.slot, record, sequence.computed)

    def grow(self, sequence: Sequence, end: int) -> int:
        """Allocates pages for tokens [0, end); returns how many tokens its pages can hold."""
        pages, size = sequence.pages, self.page_tokens
        while len(pages) * size < end:
            page = self.index.allocate()
            if page is None:
                break
            pages.append(page)
        return len(pages) * size

    def take(self, sequence: Sequence, role: int, end: int) -> Take | None:
        """The record to take in a step that computes the sequence up to `end`, if any.

        Given rows end exactly where one is planned. Made rows take one at each boundary that they
        pass, since nobody knows where they will end.
        """
        boundary = end // self.page_tokens * self.page_tokens
        if boundary <= sequence.planned:
            return None  # as in most steps
        boundaries = sequence.boundaries
        planned = boundary in boundaries or boundary % self.record_interval == 0
        while boundaries and boundaries[-1] <= end:
            boundaries.pop()
        if not sequence.shares or (role == GIVEN and not planned):
            return None
        # A step whose input is not known may turn out to be void, so it must not spoil the record
        # that there is.
        if planned or sequence.record is None or end > sequence.num_known:
            record = self.records.allocate()
        else:
            record = sequence.record
        if record is None:
            return None
        return Take(RecordMove(sequence.slot, record, boundary), provisional=not planned)

    def commit(self, sequence: Sequence, end: int, take: Take | None) -> None:
        """Tokens [0, end) are computed: indexes the pages that are complete by that, and `take` if
        it lies no further."""
        sequence.computed, size = end, self.page_tokens
        while sequence.shares and (len(sequence.path) + 1) * size <= end:
            self._index_next_page(sequence)
        if take is None:
            return
        record, boundary = take.move.record, take.move.boundary
        if boundary > end:
            self.cancel(sequence, take)
            return
        if not take.provisional:
            self._index_record(sequence, record, boundary)
            return
        if sequence.record is not None and sequence.record != record:
            self.records.drop(sequence.record)
        sequence.record, sequence.record_boundary = record, boundary

    def _index_next_page(self, sequence: Sequence) -> None:
        number, size = len(sequence.path), self.page_tokens
        part = slice(number * size, number * size + size)
        parent = sequence.path[-1] if sequence.path else sequence.root
        page = sequence.pages[number]
        entry = self.index.insert(parent, sequence.tokens[part], sequence.roles[part], page)
        if entry is None:
            sequence.shares = False
            return
        sequence.path.append(entry)
        if entry.page != page:
            # Another sequence was first to compute the same rows: hold its page, so that all pages
            # of a chain in the index are held while a page after them is.
            self.pool.hold(entry.page)
            self.pool.release(page)
            sequence.pages[number] = entry.page
            sequence.num_sent_pages = min(sequence.num_sent_pages, number)

    def _index_record(self, sequence: Sequence, record: int, boundary: int) -> None:
        number = boundary // self.page_tokens
        if 0 < number <= len(sequence.path):
            self.records.index(record, sequence.path[number - 1])
        else:
            self.records.drop(record)

    def cancel(self, sequence: Sequence, take: Take | None) -> None:
        """The step is void: so is what it took, and a provisional record that it wrote over."""
        if take is None:
            return
        if take.move.record == sequence.record:
            sequence.record_boundary = 0
        else:
            self.records.drop(take.move.record)

    def release(self, sequence: Sequence) -> None:
        """Gives everything back, the last page first. What is committed stays findable."""
        if sequence.record is not None:
            self._index_record(sequence, sequence.record, sequence.record_boundary)
        for page in reversed(sequence.pages):
            self.pool.release(page)
        sequence.record, sequence.record_boundary = None, 0
        sequence.pages, sequence.path, sequence.boundaries = [], [], []
        sequence.num_sent_pages = sequence.computed = sequence.planned = 0
