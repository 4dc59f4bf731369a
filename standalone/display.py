"""What a person sees while a run goes on: one line renewed in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import time
from typing import TextIO

_CLEAR_LINE = "\r\x1b[K"
#: Of a terminal that does not tell.
_WIDTH = 80
#: Without a terminal the state is said this often at most.
_PLAIN_SECONDS = 5.0


class Display:
    """Lines that stay and one that does not. Not for several threads."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM", "") != "dumb"
        self._status = ""
        self._said_at = float("-inf")

    def say(self, line: str = "") -> None:
        """A line that stays."""
        self._write(f"{_CLEAR_LINE if self._live and self._status else ''}{line}\n")
        if self._live and self._status:
            self._write(self._cut(self._status))

    def status(self, line: str) -> None:
        """Where things stand; replaces the previous one."""
        if line == self._status:
            return
        if self._live:
            self._write(f"{_CLEAR_LINE}{self._cut(line)}")
        elif time.monotonic() - self._said_at >= _PLAIN_SECONDS:
            self._said_at = time.monotonic()
            self._write(f"{line}\n")
        else:
            return  # and not taken for said: it may stay as it is for long
        self._status = line

    def clear(self) -> None:
        """Take the status away."""
        if self._live and self._status:
            self._write(_CLEAR_LINE)
        self._status = ""

    def _cut(self, line: str) -> str:
        # A line that wraps cannot be renewed in place.
        try:
            width = os.get_terminal_size(self._stream.fileno()).columns or _WIDTH
        except OSError:
            width = _WIDTH
        return line if len(line) < width else line[: max(1, width - 2)] + "…"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
