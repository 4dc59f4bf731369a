"""How fast a run goes of late: from looks at its counters, pure but for what it remembers."""

from __future__ import annotations

from collections import deque

from common.run_state import Progress

#: The rate is taken over the longer of this time and this many arrivals, so that it follows what happens without
#: jumping with every batch.
WINDOW_SECONDS = 300.0
WINDOW_ARRIVALS = 8
#: Silence of so many usual pauses between arrivals is taken for a slower rate.
_LATE = 3.0
_LATE_SECONDS = 10.0


class Pace:
    """Tokens per second, counted from one arrival of whole batches to another.

    Between two arrivals a counter stands still: a rate that is counted up to now would sink until the next
    batch comes and then jump.
    """

    def __init__(self) -> None:
        #: (clock, tokens) right after each arrival.
        self._arrivals: deque[tuple[float, int]] = deque()
        #: Batches and time of the last arrival as Redis said at the last look; None before the first.
        self._seen: tuple[int, float] | None = None
        self._now = 0.0

    def look(self, now: float, progress: Progress) -> None:
        """Take note of the counters; `now` is any clock that never goes back, in seconds."""
        self._now, seen = now, (progress.batches, progress.last_at)
        batches, last_at = self._seen or seen
        # Batches found in the store count without having arrived; a Redis that was wiped counts anew.
        if progress.batches < batches or (progress.batches > batches and progress.last_at == last_at):
            self._arrivals.clear()
        elif progress.batches > batches:
            self._arrivals.append((now, progress.tokens))
        while len(self._arrivals) > WINDOW_ARRIVALS + 1 and self._arrivals[1][0] <= now - WINDOW_SECONDS:
            self._arrivals.popleft()
        self._seen = seen

    @property
    def rate(self) -> float | None:
        """Tokens per second; None before two arrivals."""
        if len(self._arrivals) < 2:
            return None
        (first, before), (last, tokens) = self._arrivals[0], self._arrivals[-1]
        end = self._now if self.late else last
        return (tokens - before) / (end - first)

    @property
    def late(self) -> bool:
        """Whether no batch has arrived for much longer than is usual; False before two arrivals tell what is."""
        if len(self._arrivals) < 2:
            return False
        (first, _), (last, _) = self._arrivals[0], self._arrivals[-1]
        return self._now - last > max(_LATE * (last - first) / (len(self._arrivals) - 1), _LATE_SECONDS)
