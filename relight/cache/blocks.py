"""Hands out the pages of the paged store and counts who holds them. Knows no token and no tensor.

A page is in one of three states, and changes it only here:

    free     nobody holds it, and what is in it means nothing
    held     one or more sequences hold it
    cached   nobody holds it, but the prefix index can find it

so `num_free + num_held + num_cached = total` at every moment. A page may be written only by its one
holder, and only until it is indexed: what others may read never changes.
"""

from collections import OrderedDict

NULL_PAGE = 0
"""Where rows go that nobody will read. Never handed out, never counted."""


class BlockPool:
    """Pages 1 … num_pages − 1 of a store that has `num_pages`, the null page among them."""

    def __init__(self, num_pages: int) -> None:
        assert num_pages >= 2, "a store needs the null page and at least one other"
        self.total = num_pages - 1
        self._free = list(range(num_pages - 1, NULL_PAGE, -1))
        self._holders = [0] * num_pages
        self._indexed = bytearray(num_pages)
        self._cached: OrderedDict[int, None] = OrderedDict()  # the longest unused first

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_held(self) -> int:
        return self.total - len(self._free) - len(self._cached)

    @property
    def num_available(self) -> int:
        """Pages that a sequence can get: the free ones, and the cached ones by eviction."""
        return len(self._free) + len(self._cached)

    def allocate(self) -> int | None:
        """A free page, now with one holder; None if none is free."""
        if not self._free:
            return None
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """One more holder of a page that is held or cached."""
        assert self._holders[page] or page in self._cached, f"page {page} is free"
        if not self._holders[page]:
            del self._cached[page]
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """One holder less. A sequence releases its pages from the last to the first, so that of the
        cached pages those deep in a prefix are always older than those that they depend on."""
        assert self._holders[page] > 0, f"page {page} is not held"
        self._holders[page] -= 1
        if self._holders[page]:
            return
        if self._indexed[page]:
            self._cached[page] = None
        else:
            self._free.append(page)

    def is_held(self, page: int) -> bool:
        return self._holders[page] > 0

    def is_writable(self, page: int) -> bool:
        """True for the one holder of a page, who is the only one that can ask."""
        return self._holders[page] == 1 and not self._indexed[page]

    def index(self, page: int) -> None:
        """From now on the prefix index can find the page."""
        assert self.is_writable(page), f"page {page} is shared, indexed or free"
        self._indexed[page] = 1

    def oldest_cached(self) -> int | None:
        """The cached page that was released first; None if there is none."""
        return next(iter(self._cached), None)

    def forget(self, page: int) -> None:
        """The prefix index has dropped a cached page: it is free."""
        del self._cached[page]
        self._indexed[page] = 0
        self._free.append(page)

    def check(self) -> None:
        """Raises AssertionError unless every page is in exactly one state."""
        states = [*self._free, *self._cached]
        states += [page for page, holders in enumerate(self._holders) if holders]
        assert sorted(states) == list(range(1, self.total + 1))
        assert all(self._indexed[page] for page in self._cached)
        assert not any(self._indexed[page] for page in self._free)
