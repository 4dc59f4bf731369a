"""JSON lines: one row a line; a line that is too long is read past without being held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from hiddenfeed.options import MIB
from producer.rows import RowError

#: A row longer than this is skipped unread; it bounds the memory that one row can take.
MAX_ROW_BYTES = 64 * MIB


def too_long(place: str) -> RowError:
    """What is said of a row beyond the limit."""
    return RowError(f"{place} is longer than {MAX_ROW_BYTES // MIB} MiB")


def read_lines(stream: IO[bytes]) -> Iterator[tuple[str, bytes | RowError]]:
    """(`line 12`, its bytes) of every line that is not blank, in order."""
    for number, line in enumerate(_bounded_lines(stream), start=1):
        place = f"line {number}"
        if line is None:
            yield place, too_long(place)
        elif line.strip():
            yield place, line


def _bounded_lines(stream: IO[bytes]) -> Iterator[bytes | None]:
    """The lines of a file; None in place of one that is longer than allowed, which is read past in pieces."""
    while line := stream.readline(MAX_ROW_BYTES + 1):
        if len(line) <= MAX_ROW_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while rest := stream.readline(MAX_ROW_BYTES):
            if rest.endswith(b"\n"):
                break
        yield None
