import random
from array import array

import pytest

from relight.cache.blocks import BlockPool
from relight.cache.prefix import GIVEN, MADE, TOKEN_TYPE, Entry, PrefixIndex, RecordPool

PAGE = 4


def make_index(
    num_pages: int = 8, num_records: int = 4, *, reuse_generated: bool = True
) -> PrefixIndex:
    pool, records = BlockPool(num_pages + 1), RecordPool(num_records)
    return PrefixIndex(pool, records, "weights", page_tokens=PAGE, reuse_generated=reuse_generated)


def tokens_of(text: str) -> "array[int]":
    return array(TOKEN_TYPE, list(text.lower().encode()))


def roles_of(text: str) -> bytearray:
    """Capital letters are made tokens."""
    return bytearray(MADE if letter.isupper() else GIVEN for letter in text)


class Holder:
    """A sequence reduced to what the index sees of it: computes a text and indexes its pages."""

    def __init__(self, index: PrefixIndex, text: str, salt: str = "") -> None:
        self.index, self.text = index, text
        self.tokens, self.roles = tokens_of(text), roles_of(text)
        self.path: list[Entry] = [index.root(salt)]
        self.pages: list[int] = []

    def compute(self, records: bool = True) -> "Holder":
        """All whole pages, each with a record at its end where there is room for one."""
        for start in range(0, len(self.tokens) - PAGE + 1, PAGE):
            page = self.index.allocate()
            if page is None:
                return self
            part = slice(start, start + PAGE)
            entry = self.index.insert(self.path[-1], self.tokens[part], self.roles[part], page)
            if entry is None:
                self.index.pool.release(page)
                return self
            if entry.page != page:
                self.index.pool.hold(entry.page)
                self.index.pool.release(page)
            self.path.append(entry)
            self.pages.append(entry.page)
            record = self.index.records.allocate() if records else None
            if record is not None:
                self.index.records.index(record, entry)
        return self

    def release(self) -> None:
        for page in reversed(self.pages):
            self.index.pool.release(page)
        self.pages = []


def found(index: PrefixIndex, text: str, *, exact: bool = False, salt: str = "") -> int:
    """Tokens of the text that a look-up finds."""
    roles = roles_of(text) if exact else None
    match = index.match(index.root(salt), tokens_of(text), len(text), roles)
    return PAGE * len(match.entries)


def usable(index: PrefixIndex, text: str, limit: int | None = None) -> int:
    tokens = tokens_of(text)
    limit = len(tokens) if limit is None else limit
    return PAGE * index.match(index.root(""), tokens, limit).num_usable


def test_only_equal_whole_pages_are_found() -> None:
    index = make_index()
    Holder(index, "abcdefghij").compute()
    assert found(index, "abcdefghij") == 8
    assert found(index, "abcdefgX") == 4
    assert found(index, "abc") == 0
    assert found(index, "Xbcdefgh") == 0


def test_equal_pages_after_other_pages_are_not_found() -> None:
    index = make_index()
    Holder(index, "aaaabbbb").compute()
    assert found(index, "bbbbaaaa") == 0


def test_salt_and_identity_part_the_index() -> None:
    index = make_index()
    Holder(index, "aaaabbbb", salt="mine").compute()
    assert found(index, "aaaabbbb", salt="mine") == 8
    assert found(index, "aaaabbbb", salt="yours") == 0
    other = PrefixIndex(index.pool, index.records, "other weights", page_tokens=PAGE)
    assert other.root("mine").key != index.root("mine").key


def test_a_prefix_is_usable_up_to_its_last_record_within_the_limit() -> None:
    index = make_index(num_records=2)
    Holder(index, "aaaabbbbcccc").compute()  # the two records end at 8 and 12
    assert usable(index, "aaaabbbbcccc") == 12
    assert usable(index, "aaaabbbbcccc", limit=11) == 8
    assert usable(index, "aaaabbbbcccc", limit=7) == 0
    assert index.records.evict()
    assert usable(index, "aaaabbbbcccc", limit=11) == 0
    assert found(index, "aaaabbbbcccc") == 12


def test_a_made_page_is_found_after_the_unmarked_one() -> None:
    index = make_index()
    Holder(index, "aaBBcccc").compute()
    match = index.match(index.root(""), tokens_of("aaBBcccc"), 8)
    assert [entry.marked for entry in match.entries] == [True, True], "a page after made rows"
    recomputed = Holder(index, "aaBBcccc")
    recomputed.roles = bytearray(8)
    recomputed.compute()
    match = index.match(index.root(""), tokens_of("aaBBcccc"), 8)
    assert [entry.marked for entry in match.entries] == [False, False]


def test_made_pages_are_not_found_without_reuse_except_by_their_own_sequence() -> None:
    index = make_index(reuse_generated=False)
    Holder(index, "aaaaBBBBcccc").compute()
    assert found(index, "aaaaBBBBcccc") == 4
    assert found(index, "aaaaBBBBcccc", exact=True) == 12


def test_equal_tokens_of_other_roles_do_not_mix() -> None:
    index = make_index()
    first = Holder(index, "aaBBCCCC").compute()
    second = Holder(index, "aaBBCCCC")
    second.roles = roles_of("aaaBCCCC")
    second.compute()
    assert len(first.pages) == 2
    assert second.pages == []
    match = index.match(index.root(""), first.tokens, 8, second.roles)
    assert not match.entries


def test_sequences_that_compute_the_same_pages_end_up_sharing_them() -> None:
    index = make_index()
    first, second = Holder(index, "aaaabbbb").compute(), Holder(index, "aaaabbbb").compute()
    assert first.pages == second.pages
    assert index.pool.num_held == 2


def test_a_page_is_evicted_after_the_pages_that_depend_on_it() -> None:
    index = make_index(num_pages=6)
    Holder(index, "aaaabbbbcccc").compute().release()
    Holder(index, "aaaadddd").compute().release()
    lengths = []
    while index.evict():
        lengths.append((found(index, "aaaabbbbcccc"), found(index, "aaaadddd")))
        index.check()
    assert lengths == [(8, 8), (4, 8), (4, 4), (0, 0)]


def test_what_is_discarded_leaves_with_all_that_depends_on_it_but_for_what_is_held() -> None:
    index = make_index(num_pages=12, num_records=12)
    whole = Holder(index, "aaaabbbbcccc").compute()
    branch = Holder(index, "aaaadddd").compute()
    Holder(index, "eeee").compute().release()
    whole.release()
    index.discard(whole.path[2])
    index.check()
    texts = ("aaaabbbbcccc", "aaaadddd", "eeee")
    assert [found(index, text) for text in texts] == [4, 8, 4]
    index.discard(branch.path[1])
    assert [found(index, text) for text in texts] == [4, 8, 4], "they are held"
    branch.release()
    index.discard(branch.path[1])
    index.check()
    assert [found(index, text) for text in texts] == [0, 0, 4]
    assert (index.pool.num_cached, index.records.num_indexed) == (1, 1)


def test_a_record_leaves_with_its_page_and_a_page_stays_without_its_record() -> None:
    index = make_index(num_records=2)
    Holder(index, "aaaabbbb").compute().release()
    assert index.records.evict()
    assert index.records.num_indexed == 1
    assert found(index, "aaaabbbb") == 8
    assert index.evict()
    assert index.records.num_free == 2


def test_a_hash_collision_is_not_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    index = make_index()
    monkeypatch.setattr("relight.cache.prefix.chain_key", lambda parent, ids, marked: b"same")
    Holder(index, "aaaa").compute()
    assert found(index, "aaaa") == 4
    assert found(index, "bbbb") == 0
    assert Holder(index, "bbbb").compute().pages == []


@pytest.mark.parametrize("num_pages", [3, 6, 40])
@pytest.mark.parametrize("num_records", [0, 2, 40])
def test_random_use_agrees_with_a_model(num_pages: int, num_records: int) -> None:
    """The model: the set of texts, case and all, whose last page is known."""
    rng = random.Random(f"{num_pages} {num_records}")
    for _ in range(25):
        index = make_index(num_pages, num_records)
        known: set[str] = set()
        running: list[Holder] = []
        for _ in range(40):
            choice = rng.random()
            if choice < 0.5:
                text = "".join(rng.choices(["aaaa", "aaaB", "bbbb", "c"], k=rng.randint(1, 5)))
                enough = index.pool.num_available >= len(text) // PAGE
                holder = Holder(index, text).compute(records=rng.random() < 0.5)
                running.append(holder)
                if enough and not other_roles(text, known):
                    assert len(holder.pages) == len(text) // PAGE
                known |= {text[: PAGE * n] for n in range(1, len(holder.pages) + 1)}
            elif choice < 0.8 and running:
                running.pop(rng.randrange(len(running))).release()
            elif choice < 0.9:
                index.records.evict()
            elif choice < 0.98 or not running:
                index.evict()
            elif len(path := rng.choice(running).path) > 1:
                index.discard(path[1])
            known = {text for text in known if found(index, text, exact=True) == len(text)}
            assert index.pool.num_held + index.pool.num_cached == len(known)
            held = {page for holder in running for page in holder.pages}
            assert index.pool.num_held == len(held)
            for holder in running:
                size = PAGE * len(holder.pages)
                assert found(index, holder.text[:size], exact=True) == size
            index.check()


def other_roles(text: str, known: set[str]) -> set[str]:
    """Known texts that begin this one but for the roles of some letters."""
    return {
        other
        for other in known
        if text.lower().startswith(other.lower()) and not text.startswith(other)
    }
