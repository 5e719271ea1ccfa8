"""Finds the pages and boundary records of a token prefix that was computed before. Knows no request
and no tensor.

A prefix is a chain of pages. Its key is a hash over the key of the page before, the exact token ids
and a mark that says whether the page holds or follows a made token; the chain starts at the
identity of the operators that computed it, so nothing is ever reused across weights or kernels. A
hit is verified by the ids, and the roles of the tokens stand beside them: two prefixes with equal
ids and different roles may differ in bits, and never mix.

Pages alone do not make a prefix reusable: the rows that live in rings come from a boundary record,
so a prefix can be continued only where a page boundary has one.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from relight.cache.blocks import BlockPool
from relight.cache.layout import PAGE_TOKENS

GIVEN, MADE = 0, 1
"""The role of a token, one byte each: came in a request, or was sampled here."""

TOKEN_TYPE = "I"
"""Token ids are kept in arrays of this type, at least 32 bits and unsigned."""


@dataclass(slots=True, eq=False)
class Entry:
    """An indexed page. The root of a chain is an entry without a page."""

    key: bytes
    parent: "Entry | None" = None
    ids: bytes = b""
    roles: bytes = b""
    marked: bool = False
    page: int = -1
    record: int | None = None
    num_children: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    """The known pages of a prefix, and how many of them end at the last boundary with a record."""

    entries: Sequence[Entry] = ()
    num_usable: int = 0

    @property
    def usable(self) -> Sequence[Entry]:
        return self.entries[: self.num_usable]


class RecordPool:
    """The slots for boundary records: free, held by a sequence that has not finished with them, or
    indexed. The indexed one that was used least recently makes room for a new one."""

    def __init__(self, num_records: int) -> None:
        self.total = num_records
        self._free = list(range(num_records - 1, -1, -1))
        self._indexed: OrderedDict[int, Entry] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_indexed(self) -> int:
        return len(self._indexed)

    @property
    def num_held(self) -> int:
        return self.total - len(self._free) - len(self._indexed)

    def allocate(self) -> int | None:
        """A record that nothing else uses, now held; None if all are held."""
        if not self._free and not self.evict():
            return None
        return self._free.pop()

    def evict(self) -> bool:
        """Frees the indexed record that was used least recently. False if there is none."""
        if not self._indexed:
            return False
        record, entry = self._indexed.popitem(last=False)
        entry.record = None
        self._free.append(record)
        return True

    def drop(self, record: int) -> None:
        """A held record becomes free."""
        assert record not in self._indexed, f"record {record} is not held"
        self._free.append(record)

    def index(self, record: int, entry: Entry) -> None:
        """A held record becomes that of `entry`, or free if the entry has one: both are equal."""
        if entry.record is not None:
            self.touch(entry)
            self.drop(record)
            return
        entry.record = record
        self._indexed[record] = entry

    def touch(self, entry: Entry) -> None:
        """The record of `entry` was used."""
        assert entry.record is not None
        self._indexed.move_to_end(entry.record)

    def forget(self, entry: Entry) -> None:
        """The page of `entry` leaves the index, and its record with it."""
        if entry.record is not None:
            del self._indexed[entry.record]
            self._free.append(entry.record)
            entry.record = None


class PrefixIndex:
    """The chains of all indexed pages of a pool.

    `reuse_generated` false: a prefix with made tokens is not found, except by the very sequence
    that made them (which asks with roles).
    """

    def __init__(
        self,
        pool: BlockPool,
        records: RecordPool,
        identity: str,
        *,
        page_tokens: int = PAGE_TOKENS,
        reuse_generated: bool = True,
    ) -> None:
        self.pool = pool
        self.records = records
        self.page_tokens = page_tokens
        self._identity = identity
        self._reuse_generated = reuse_generated
        self._entries: dict[bytes, Entry] = {}
        self._by_page: dict[int, Entry] = {}
        self._all_given = bytes(page_tokens)

    def root(self, salt: str) -> Entry:
        """Where the chains of all requests with this cache salt begin."""
        return Entry(blake2b(f"{self._identity}\0{salt}".encode(), digest_size=16).digest())

    def match(
        self, root: Entry, tokens: "array[int]", limit: int, roles: bytearray | None = None
    ) -> Match:
        """The longest known chain of at most `limit` of the tokens. With `roles` every token must
        have been computed in the role given there; without, any role will do."""
        size = self.page_tokens
        entries: list[Entry] = []
        usable = 0
        parent = root
        for start in range(0, limit - size + 1, size):
            ids = tokens[start : start + size].tobytes()
            page_roles = None if roles is None else bytes(roles[start : start + size])
            entry = self._find(parent, ids, page_roles)
            if entry is None:
                break
            entries.append(entry)
            if entry.record is not None:
                usable = len(entries)
            parent = entry
        return Match(entries, usable)

    def _find(self, parent: Entry, ids: bytes, roles: bytes | None) -> Entry | None:
        if roles is not None:
            entry = self._get(parent, ids, parent.marked or MADE in roles)
            return entry if entry and entry.roles == roles else None
        entry = None if parent.marked else self._get(parent, ids, marked=False)
        if entry is None and self._reuse_generated:
            entry = self._get(parent, ids, marked=True)
        return entry

    def _get(self, parent: Entry, ids: bytes, marked: bool) -> Entry | None:
        entry = self._entries.get(chain_key(parent, ids, marked))
        # The hash only says where to look: the ids, and those of all pages before, must be equal.
        if entry is None or entry.ids != ids or entry.parent is None:
            return None
        return entry if entry.parent.key == parent.key else None

    def insert(
        self, parent: Entry, tokens: "array[int]", roles: bytearray, page: int
    ) -> Entry | None:
        """The entry of a page whose last token is committed. If the index knows an equal page the
        entry has that one, and the caller should hold it instead of its own. None if the index
        knows a page with the same ids and other roles: then the caller's cannot be found."""
        ids = tokens.tobytes()
        made = MADE in roles
        marked = parent.marked or made
        key = chain_key(parent, ids, marked)
        page_roles = bytes(roles) if made else self._all_given
        entry = self._entries.get(key)
        if entry is None:
            entry = Entry(key, parent, ids, page_roles, marked, page)
            self.pool.index(page)
            self._entries[key] = self._by_page[page] = entry
            parent.num_children += 1
            return entry
        return entry if self._get(parent, ids, marked) and entry.roles == page_roles else None

    def allocate(self) -> int | None:
        """A page with one holder: a free one, or else the cached one that was unused for longest.
        None if all pages are held."""
        page = self.pool.allocate()
        if page is None and self.evict():
            page = self.pool.allocate()
        return page

    def evict(self) -> bool:
        """Frees the cached page that was unused for longest. False if no page is cached."""
        page = self.pool.oldest_cached()
        if page is None:
            return False
        entry = self._by_page[page]
        assert entry.num_children == 0, "a page was older than one that depends on it"
        self._remove(entry)
        return True

    def discard(self, top: Entry) -> None:
        """Frees a page and all that depend on it, since what they hold is not to be trusted; those
        that are held stay, and so do those that these depend on."""
        doomed = {top.key}
        for entry in self._by_page.values():  # a page stands after the one that it depends on
            if entry.parent is not None and entry.parent.key in doomed:
                doomed.add(entry.key)
        for entry in reversed([e for e in self._by_page.values() if e.key in doomed]):
            if not entry.num_children and not self.pool.is_held(entry.page):
                self._remove(entry)

    def _remove(self, entry: Entry) -> None:
        assert entry.parent is not None
        entry.parent.num_children -= 1
        del self._by_page[entry.page]
        del self._entries[entry.key]
        self.records.forget(entry)
        self.pool.forget(entry.page)

    def check(self) -> None:
        """Raises AssertionError unless index, pages and records agree."""
        self.pool.check()
        records = self.records
        indexed = {entry.record: entry for entry in self._by_page.values()}
        indexed.pop(None, None)
        assert len(indexed) == records.num_indexed
        assert records.num_free + records.num_held + records.num_indexed == records.total
        children: dict[bytes, int] = {}
        for page, entry in self._by_page.items():
            assert entry.page == page
            assert self._entries[entry.key] is entry
            assert entry.parent is not None
            assert entry.parent.page < 0 or self._entries.get(entry.parent.key) is entry.parent
            children[entry.parent.key] = children.get(entry.parent.key, 0) + 1
        for entry in self._by_page.values():
            assert entry.num_children == children.get(entry.key, 0)


def chain_key(parent: Entry, ids: bytes, marked: bool) -> bytes:
    """The name of a page wherever it is stored: 16 bytes over all tokens up to its end."""
    return blake2b(parent.key + (b"\1" if marked else b"\0") + ids, digest_size=16).digest()
