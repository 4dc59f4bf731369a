"""How long each part of a run took."""

from __future__ import annotations

import time


class Timeline:
    """Parts one after the other; a part ends when the next one begins."""

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}
        self._current: str | None = None
        self._since = time.monotonic()

    @property
    def current(self) -> str | None:
        """The part that is going on."""
        return self._current

    @property
    def elapsed_seconds(self) -> float:
        """Time in the current part."""
        return time.monotonic() - self._since

    def begin(self, part: str) -> None:
        """End the current part and begin another; no effect for the current one."""
        if part == self._current:
            return
        self.end()
        self._current = part

    def end(self) -> None:
        """End the current part."""
        now = time.monotonic()
        if self._current is not None:
            self._parts[self._current] = self._parts.get(self._current, 0.0) + now - self._since
        self._current, self._since = None, now

    def parts(self) -> dict[str, float]:
        """Seconds of each part that has ended, in order."""
        return dict(self._parts)
