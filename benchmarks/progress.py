"""What a benchmark is at: some take half an hour, and say nothing else until their end."""

from __future__ import annotations

import sys
import time

from hiddenfeed.words import duration_text

_BEGAN = time.monotonic()


def doing(what: str) -> None:
    """Print a line to stderr: how long the benchmark has been running, and what comes now."""
    print(f"[{duration_text(time.monotonic() - _BEGAN)}] {what} ...", file=sys.stderr, flush=True)
