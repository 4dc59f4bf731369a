"""Numbers of the monitor as people read them; sizes and durations are `hiddenfeed.words`'."""

from __future__ import annotations

from hiddenfeed.words import duration_text


def rate(per_second: float | None, what: str) -> str:
    """`1,020 tokens/s`; `- tokens/s` for None."""
    number = "-" if per_second is None else f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"
    return f"{number} {what}/s"


def short(number: float) -> str:
    """`1.3B`, `541.2M`, `9,999`."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if letter == 'k' else size):,.1f}{letter}"
    return f"{number:,.0f}"


def share(value: float, digits: int = 0) -> str:
    """`45%`, or `45.2%` with a digit; never 100% before the end."""
    return f"{100 if value >= 1 else min(100 * value, 100 - 10**-digits):.{digits}f}%"


def cut(text: str, most: int) -> str:
    """The text's first `most` characters, and `…` if there are more."""
    return text if len(text) <= most else f"{text[:most].rstrip()}…"


def ago(seconds: float | None) -> str:
    """`3 min 05 s ago`; `never` for None."""
    return "never" if seconds is None else f"{duration_text(seconds)} ago"
