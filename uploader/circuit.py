"""One look at a store that is away instead of many: after some failures in a row, one file at a time tries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum

#: So many files in a row that the store did not take are an outage.
FAILURES_OF_AN_OUTAGE = 5
#: From one try to the next, doubled after each that fails: soon enough to notice that an outage is over.
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 5.0


class Pass(Enum):
    """How a file may go to the store."""

    #: Like all others.
    FREE = "free"
    #: As the one that finds out whether the store is back.
    TRIAL = "trial"
    #: Not now.
    NONE = "none"


class Circuit:
    """What one process knows of its store's health. Safe to use from many threads.

    An outage costs no attempt and delays no file beyond it: files that meet it go back to the head
    of their queue, nobody takes them while it lasts, and the first success lets all of them go.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._reason = ""
        self._pause = FIRST_PAUSE_SECONDS
        #: When the next try may be; None while all is well.
        self._open_until: float | None = None
        self._trial = False

    def why_not(self) -> str | None:
        """Why no file should be taken now; None if one may be."""
        with self._lock:
            if self._open_until is None:
                return None
            if self._trial:
                return f"one file tries whether the store is back ({self._reason})"
            if self._clock() < self._open_until:
                return f"the store is away ({self._reason})"
            return None

    def enter(self) -> Pass:
        """Ask to go; whoever got a pass ends it with `succeeded`, `failed` or `left`."""
        with self._lock:
            if self._open_until is None:
                return Pass.FREE
            if self._trial or self._clock() < self._open_until:
                return Pass.NONE
            self._trial = True
            return Pass.TRIAL

    def succeeded(self) -> bool:
        """The store took a file; returns whether that ends an outage."""
        with self._lock:
            was_open = self._open_until is not None
            self._failures, self._open_until, self._trial = 0, None, False
            self._pause = FIRST_PAUSE_SECONDS
            return was_open

    def failed(self, used: Pass, reason: str) -> bool:
        """The store did not take a file, for now; returns whether that begins an outage."""
        with self._lock:
            self._failures += 1
            self._reason = reason
            if used is Pass.TRIAL:
                self._trial = False
                self._pause = min(LONGEST_PAUSE_SECONDS, 2 * self._pause)
                self._open_until = self._clock() + self._pause
                return False
            if self._open_until is None and self._failures >= FAILURES_OF_AN_OUTAGE:
                self._open_until = self._clock() + self._pause
                return True
            return False

    def left(self, used: Pass) -> None:
        """A file went its way without telling anything of the store."""
        with self._lock:
            if used is Pass.TRIAL:
                self._trial = False

    @property
    def is_open(self) -> bool:
        """Whether there is an outage."""
        with self._lock:
            return self._open_until is not None
