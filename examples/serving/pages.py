"""Which pages of a cache are whose: an allocator with reference counts, and pages that prompts with one beginning share."""

import itertools
from collections import OrderedDict


class NoPages(Exception):
    """Every page belongs to a sequence."""


class Pages:
    """`count` pages of `size` rows. A page that holds `size` tokens of a prompt is known by them and by all in front of them, and
    another sequence that begins so may share it. One that nobody holds stays known until its room is needed."""

    def __init__(self, count, size):
        if count < 1 or size < 1:
            raise ValueError(f"{count} pages of {size} rows; accepted: 1 or more of each")
        self.count, self.size = count, size
        self._free = list(range(count - 1, -1, -1))
        self._holders = [0] * count
        self._known, self._key = {}, {}  # (number of the beginning in front, tokens) → (page, number of this one); page → key
        self._numbers = itertools.count(1)
        self._idle = OrderedDict()  # known pages that nobody holds, the longest unused first

    @property
    def free(self):
        """Pages that can be had."""
        return len(self._free) + len(self._idle)

    def allocate(self):
        """A page for one holder. Raises NoPages."""
        if not self._free and not self._idle:
            raise NoPages(f"all {self.count} pages are held")
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            del self._known[self._key.pop(page)]
        self._holders[page] = 1
        return page

    def release(self, pages):
        for page in reversed(pages):  # the end of a prompt is less worth than its beginning
            if self._holders[page] < 1:
                raise ValueError(f"page {page} is held by nobody")
            self._holders[page] -= 1
            if self._holders[page] == 0:
                if page in self._key:
                    self._idle[page] = None
                else:
                    self._free.append(page)

    def _parts(self, tokens):
        return (tuple(tokens[begin:begin + self.size]) for begin in range(0, len(tokens) - self.size + 1, self.size))

    def shared(self, tokens):
        """Holds the known pages of the longest beginning, of whole pages; their list."""
        found, number = [], 0
        for part in self._parts(tokens):
            page, number = self._known.get((number, part), (None, 0))
            if page is None:
                break
            self._holders[page] += 1
            self._idle.pop(page, None)
            found.append(page)
        return found

    def learn(self, pages, tokens):
        """These pages now hold the rows of these tokens. Where others do already, those stay known."""
        number = 0
        for page, part in zip(pages, self._parts(tokens)):
            key = number, part
            if key not in self._known and page not in self._key:
                self._known[key], self._key[page] = (page, next(self._numbers)), key
            if key not in self._known:
                break
            number = self._known[key][1]

    def check(self, held):
        """Raises AssertionError where the books do not balance; held: all lists of pages that sequences have."""
        counts = [0] * self.count
        for pages in held:
            for page in pages:
                counts[page] += 1
        assert counts == self._holders, "reference counts"
        free, idle = set(self._free), set(self._idle)
        assert len(free) == len(self._free) and not free & idle, "a page is free twice"
        assert free | idle == {page for page, n in enumerate(counts) if n == 0}, "a page is lost"
        assert {page: key for key, (page, _) in self._known.items()} == self._key, "known pages"
