"""Words for people, the same everywhere: binary sizes, durations, rates, one and many, what was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def visible_text(text: str) -> str:
    """The same as one line in which nothing moves the cursor or colours a terminal: it may quote data, or names of files."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def size_text(size_bytes: float) -> str:
    """`1.5 GiB`; whole bytes below 1 KiB."""
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def size_rate_text(bytes_per_second: float | None) -> str:
    """`12.3 MiB/s`; `-` for None."""
    return "-" if bytes_per_second is None else f"{size_text(bytes_per_second)}/s"


def duration_text(seconds: float | None) -> str:
    """`42 s`, `3 min 05 s` or `7 h 10 min`; `-` for None."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def time_left_text(seconds: float, low_seconds: float, high_seconds: float) -> str:
    """`about 2 h 05 min left (1 h 58 min to 2 h 12 min)`"""
    return (
        f"about {duration_text(seconds)} left ({duration_text(low_seconds)} to {duration_text(high_seconds)})"
    )


def count_text(number: int, one: str, many: str | None = None) -> str:
    """`1 file`, `2,000 files`; `many` is `one` with an s when not given."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def nearest_text(given: str, known: Iterable[str]) -> str:
    """`; did you mean last-turn?` for the known word most like `given`, capitals aside; "" if none is like it."""
    folded = {word.lower(): word for word in known}
    found = difflib.get_close_matches(given.strip().lower(), folded, n=1)
    return f"; did you mean {folded[found[0]]}?" if found else ""
