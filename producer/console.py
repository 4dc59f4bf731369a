"""What the producer says while it works: lines that stay, and one live line on a terminal.

Away from a terminal the live line becomes a log line now and then, so that a log file tells the
same story.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from common.logs import get_logger
from hiddenfeed.shell import say

#: Away from a terminal: a line about progress this often.
PLAIN_SECONDS = 10.0
#: On a terminal the live line is renewed no more often than this.
LIVE_SECONDS = 0.2


class Console:
    """Writes to stderr; what a command results in is printed to stdout by the command itself."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._log = get_logger("producer")
        #: Lines that only say how far it is: whoever reads the log can tell them from the others.
        self._progress_log = get_logger("progress")
        self._terminal = self._stream.isatty()
        self._shown_at: float | None = None
        self._live = ""

    def say(self, message: str, **fields: Any) -> None:
        """One line that stays."""
        self.clear()
        self._log.info(message, **fields)

    def warn(self, message: str, **fields: Any) -> None:
        """One line that stays, for something to look at."""
        self.clear()
        self._log.warning(message, **fields)

    def result(self, line: str) -> None:
        """One line of the command's result, to stdout."""
        self.clear()
        say(line)

    def progress(self, text: Callable[..., str], *arguments: object) -> None:
        """The live line; `text` is only called, with `arguments`, when it is time to show it."""
        now = self._clock()
        pause = LIVE_SECONDS if self._terminal else PLAIN_SECONDS
        if self._shown_at is not None and now - self._shown_at < pause:
            return
        self._shown_at = now
        if not self._terminal:
            self._progress_log.info(text(*arguments))
            return
        line = text(*arguments)[: max(20, shutil.get_terminal_size().columns - 1)]
        self._stream.write(f"\r{line:{len(self._live)}}")
        self._stream.flush()
        self._live = line

    def clear(self) -> None:
        """Take the live line away, before something else is written."""
        if self._live:
            self._stream.write(f"\r{'':{len(self._live)}}\r")
            self._stream.flush()
            self._live = ""
