"""A JSON array: one row an element, cut out of the stream as bytes, so that memory holds one at a time.

Only strings and brackets are followed, which is enough to know where an element ends; whether it is
JSON is found out when it is read. An element that is not costs its own row and no other, as long as
its brackets and quotes come in pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

from hiddenfeed.errors import ConfigError
from hiddenfeed.options import MIB
from producer.rows import RowError
from producer.sources import lines

_CHUNK_BYTES = MIB
_BETWEEN = re.compile(rb'["{}\[\],]')
_INSIDE = re.compile(rb'["{}\[\]]')


def read_array(where: str, stream: IO[bytes]) -> Iterator[tuple[str, bytes | RowError]]:
    """(`element 12`, its bytes) of every element, counted from 1.

    Raises ConfigError naming `where` if the array does not end, or something follows its end.
    """
    for number, element in enumerate(_elements(where, stream), start=1):
        place = f"element {number}"
        yield place, lines.too_long(place) if element is None else element


def _elements(where: str, stream: IO[bytes]) -> Iterator[bytes | None]:
    cutter, found = _Cutter(), 0
    # A long element is read in ever longer pieces, so that it is not copied once for each short one.
    while chunk := stream.read(max(_CHUNK_BYTES, cutter.held_bytes)):
        for element in cutter.feed(chunk):
            found += 1
            yield element
        if cutter.rest is not None:
            rest = cutter.rest.lstrip() or stream.read(_CHUNK_BYTES).lstrip()
            if rest:
                raise ConfigError(
                    f"{where} goes on after the end of its JSON array, after element {found}; "
                    "a file is one array of objects, or one object a line"
                )
            return
    raise ConfigError(f"{where} is damaged after element {found}: its JSON array does not end")


class _Cutter:
    """Takes a stream in pieces and gives back the elements of its outermost array."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        #: What was not given back yet, and how far it was looked at.
        self._held, self._seen = b"", 0
        self._too_long = False
        #: What follows the array, once it has ended.
        self.rest: bytes | None = None

    @property
    def held_bytes(self) -> int:
        """Size of what was not given back yet."""
        return len(self._held)

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """The elements that end in this piece; None for one that is longer than allowed."""
        data, start, position = self._held + chunk, 0, self._seen
        while True:
            if self._in_string:
                end = _closing_quote(data, position)
                if end < 0:
                    break
                self._in_string, position = False, end + 1
                continue
            found = (_BETWEEN if self._depth == 1 else _INSIDE).search(data, position)
            if found is None:
                break
            sign, position = found[0], found.end()
            if sign == b'"':
                self._in_string = True
            elif sign in b"{[":
                self._depth += 1
                if self._depth == 1:
                    start = position
            elif sign == b"," or self._depth == 1:
                element = data[start : position - 1]
                # Nothing before the end is an empty array, or a comma too many, which loses nothing.
                if self._too_long or element.strip() or sign == b",":
                    yield self._given(element)
                start = position
                if sign != b",":
                    self.rest = data[position:]
                    return
            else:
                self._depth -= 1
        self._hold(data, start)

    def _given(self, element: bytes) -> bytes | None:
        long, self._too_long = self._too_long or len(element) > lines.MAX_ROW_BYTES, False
        return None if long else element

    def _hold(self, data: bytes, start: int) -> None:
        self._held = data[start:]
        if len(self._held) > lines.MAX_ROW_BYTES:
            self._too_long = True
        if self._too_long:
            # Only what says whether a quote that follows is escaped.
            self._held = self._held[len(self._held.rstrip(b"\\")) :]
        self._seen = len(self._held)


def _closing_quote(data: bytes, position: int) -> int:
    """Where the string that `position` is in ends; -1 if not in `data`."""
    while (end := data.find(b'"', position)) >= 0:
        before = end
        while before > 0 and data[before - 1] == 0x5C:
            before -= 1
        if (end - before) % 2 == 0:
            return end
        position = end + 1
    return -1
