"""Numbers as people read them."""

from __future__ import annotations


def size(size_bytes: float) -> str:
    """`1.5 GB`, decimal units."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def duration(seconds: float | None) -> str:
    """`2 h 05 min`, `3 min 20 s` or `12 s`; `-` for None."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def rate(per_second: float | None, what: str) -> str:
    """`1,020 tokens/s`; `- tokens/s` for None."""
    number = "-" if per_second is None else f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"
    return f"{number} {what}/s"


def size_rate(per_second: float | None) -> str:
    """`12.3 MB/s`; `-` for None."""
    return "-" if per_second is None else f"{size(per_second)}/s"


def share(value: float) -> str:
    """`45%`; never 100% before the end."""
    return f"{min(99, int(value * 100)) if value < 1 else 100}%"
