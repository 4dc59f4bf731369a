"""Sizes as people write them in settings, `512MiB` or `50GB`: read and shown."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]i?)?B?", re.IGNORECASE | re.ASCII)
_FACTORS = {
    "": 1,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
}


def parse_size(text: str) -> int:
    """Bytes in `512MiB`, `2 GB` or `4096`; raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError("a size is a number with B, KB, MB, GB, TB, KiB, MiB, GiB or TiB")
    return int(float(match["number"]) * _FACTORS[(match["unit"] or "").lower()])


def shown_size(size_bytes: int) -> str:
    """`512 MiB`: the largest binary unit that divides the size, or one decimal of the next."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            number = size_bytes / factor
            return f"{number:.0f} {unit}" if number == int(number) else f"{number:.1f} {unit}"
    return f"{size_bytes} B"
