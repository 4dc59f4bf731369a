"""Requests to end: Ctrl-C, SIGTERM, a closed terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):  # noqa: N818 - a request, not an error
    """Somebody asked the runner to end."""


class StopRequest:
    """Whether, and how often, somebody asked this process to end."""

    def __init__(self) -> None:
        self._event = Event()
        self.count = 0

    @property
    def asked(self) -> bool:
        """Whether to end."""
        return self._event.is_set()

    @property
    def impatient(self) -> bool:
        """Whether to end at once: asked a second time."""
        return self.count > 1

    def ask(self) -> None:
        """Ask for the end, as a signal does."""
        self.count += 1
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the request, `seconds` at most; whether it has come."""
        return self._event.wait(seconds)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take signals as requests in place of whatever they did before."""

        def note(number: int, frame: FrameType | None) -> None:
            self.ask()

        before = {number: signal.signal(number, note) for number in _NUMBERS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
