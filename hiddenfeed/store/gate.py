"""How many requests that carry data may be under way: a limit from outside, less where the store says that it is busy.

One gate per process. A store that answers `503 SlowDown` is given half as many requests; every
request that goes well after that allows a little more, until the limit from outside holds again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from hiddenfeed.store.deadline import NO_DEADLINE, Deadline

#: Replies to requests that were under way together are one complaint.
_ONE_COMPLAINT_SECONDS = 1.0
#: How long a request waits at most before it looks at the limit and its deadline again.
_LOOK_SECONDS = 0.5
_UNLIMITED = 1_000_000


class AdaptiveLimit:
    """Halve when told that the store is busy, then grow by one for as many successes as are allowed. Pure but for its state."""

    def __init__(self) -> None:
        #: None while the store has no complaint.
        self.limit: float | None = None
        self._cut_at = float("-inf")

    def busy(self, in_use: int, at: float) -> bool:
        """The store complained at `at` with `in_use` requests under way; returns whether that cut the limit."""
        if at - self._cut_at < _ONE_COMPLAINT_SECONDS:
            return False
        before = in_use if self.limit is None else min(self.limit, in_use)
        self.limit = max(1.0, before / 2)
        self._cut_at = at
        return True

    def fine(self, ceiling: int) -> None:
        """A request went well; at `ceiling` the store's limit is forgotten."""
        if self.limit is not None:
            self.limit += 1 / self.limit
            if self.limit >= ceiling:
                self.limit = None

    def under(self, ceiling: int) -> int:
        """The limit now, at least 1."""
        return max(1, ceiling if self.limit is None else min(ceiling, int(self.limit)))


class Usage(msgspec.Struct, frozen=True):
    """What a gate saw since it was last asked."""

    #: Most requests under way at a time.
    peak: int
    #: Whether a request had to wait.
    waited: bool


class RequestGate:
    """Lets requests pass while fewer than the limit are under way. Safe to use from many threads."""

    def __init__(
        self,
        limit: Callable[[], int] = lambda: _UNLIMITED,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit` is asked again for every request, so it may change."""
        self._outer, self._clock = limit, clock
        self._changed = threading.Condition()
        self._adaptive = AdaptiveLimit()
        self._in_use = self._peak = 0
        self._waited = False

    @property
    def limit(self) -> int:
        """Requests that may be under way now."""
        return self._adaptive.under(self._outer())

    @property
    def in_use(self) -> int:
        """Requests under way."""
        return self._in_use

    @contextmanager
    def request(self, deadline: Deadline = NO_DEADLINE) -> Iterator[None]:
        """Be one of them, as soon as there is room; raises TransientError if there is none in time."""
        with self._changed:
            while self._in_use >= self.limit:
                self._waited = True
                deadline.check()
                self._changed.wait(_LOOK_SECONDS)
            self._in_use += 1
            self._peak = max(self._peak, self._in_use)
        try:
            yield
        finally:
            with self._changed:
                self._in_use -= 1
                self._changed.notify()

    def busy(self) -> bool:
        """The store asked for fewer requests; returns whether there will be fewer than before."""
        with self._changed:
            return self._adaptive.busy(max(1, self._in_use), self._clock())

    def fine(self) -> None:
        """A request went well."""
        with self._changed:
            self._adaptive.fine(self._outer())

    def take_usage(self) -> Usage:
        """What happened since the last call."""
        with self._changed:
            usage = Usage(self._peak, self._waited)
            self._peak, self._waited = self._in_use, False
            return usage
