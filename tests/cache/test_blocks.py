from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relight.cache.blocks import NULL_PAGE, BlockPool

TOTAL = 6


class PoolAgainstModel(RuleBasedStateMachine):
    """The model: a counter of holders, a set of indexed pages, a list of cached ones by age."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL + 1)
        self.holders: Counter[int] = Counter()
        self.indexed: set[int] = set()
        self.cached: list[int] = []

    def pick(self, data: st.DataObject, pages: list[int]) -> int:
        return data.draw(st.sampled_from(sorted(pages)))

    @rule()
    def allocate(self) -> None:
        page = self.pool.allocate()
        used = set(+self.holders) | set(self.cached)
        assert (page is None) == (len(used) == TOTAL)
        if page is not None:
            assert page != NULL_PAGE
            assert page not in used
            self.holders[page] = 1

    @precondition(lambda self: +self.holders or self.cached)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        page = self.pick(data, [*+self.holders, *self.cached])
        self.pool.hold(page)
        self.holders[page] += 1
        self.cached = [other for other in self.cached if other != page]

    @precondition(lambda self: +self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = self.pick(data, list(+self.holders))
        self.pool.release(page)
        self.holders[page] -= 1
        if not self.holders[page] and page in self.indexed:
            self.cached.append(page)

    @rule(data=st.data())
    def index(self, data: st.DataObject) -> None:
        writable = [page for page in +self.holders if self.pool.is_writable(page)]
        if writable:
            page = self.pick(data, writable)
            self.pool.index(page)
            self.indexed.add(page)

    @precondition(lambda self: self.cached)
    @rule()
    def forget_the_oldest(self) -> None:
        page = self.pool.oldest_cached()
        assert page == self.cached.pop(0)
        self.pool.forget(page)
        self.indexed.remove(page)

    @invariant()
    def pages_are_all_there(self) -> None:
        pool = self.pool
        pool.check()
        assert pool.num_held == len(+self.holders)
        assert pool.num_cached == len(self.cached)
        assert pool.num_free + pool.num_held + pool.num_cached == TOTAL
        for page, count in (+self.holders).items():
            assert pool.is_writable(page) == (count == 1 and page not in self.indexed)


PoolAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_pool_agrees_with_a_model = PoolAgainstModel.TestCase


def test_a_shared_or_free_page_cannot_be_indexed() -> None:
    pool = BlockPool(3)
    page = pool.allocate()
    assert page is not None
    pool.hold(page)
    with pytest.raises(AssertionError, match="shared, indexed or free"):
        pool.index(page)
    pool.release(page)
    pool.release(page)
    with pytest.raises(AssertionError, match="shared, indexed or free"):
        pool.index(page)


def test_a_page_cannot_be_released_more_often_than_held() -> None:
    pool = BlockPool(2)
    page = pool.allocate()
    assert page is not None
    pool.release(page)
    with pytest.raises(AssertionError, match="is not held"):
        pool.release(page)
