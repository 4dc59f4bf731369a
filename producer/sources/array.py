"""A JSON array: one row an element, cut out of the stream as bytes, so that memory holds one at a time.

Only strings and brackets are followed, which is enough to know where an element ends; whether it is
JSON is found out when it is read. An element that is not costs its own row and no other, as long as
its brackets and quotes come in pairs. A piece of the stream is looked at as a whole, by arrays of
places, because a loop over its quotes would take longer than all that follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import numpy as np
import numpy.typing as npt

from hiddenfeed.errors import ConfigError
from hiddenfeed.options import MIB
from producer.rows import RowError
from producer.sources import lines

_CHUNK_BYTES = MIB
_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
#: By how much each byte changes the depth.
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"{[")], _STEPS[list(b"}]")] = 1, -1

_Places = npt.NDArray[np.int64]


def read_array(
    where: str, stream: IO[bytes], *, alone: bool = True
) -> Iterator[tuple[str, bytes | RowError]]:
    """(`element 12`, its bytes) of every element, counted from 1.

    Raises ConfigError naming `where` if the array does not end, or something follows its end, if it is `alone`.
    """
    for number, element in enumerate(_elements(where, stream, alone), start=1):
        place = f"element {number}"
        yield place, lines.too_long(place) if element is None else element


def _elements(where: str, stream: IO[bytes], alone: bool) -> Iterator[bytes | None]:
    cutter, found = Cutter(), 0
    # A long element is read in ever longer pieces, so that it is not copied once for each short one.
    while chunk := stream.read(max(_CHUNK_BYTES, cutter.held_bytes)):
        for element in cutter.feed(chunk):
            found += 1
            yield element
        if cutter.rest is not None:
            if alone and (cutter.rest.lstrip() or stream.read(_CHUNK_BYTES).lstrip()):
                raise ConfigError(
                    f"{where} goes on after the end of its JSON array, after element {found}; "
                    "a file is one array of objects, or one object a line"
                )
            return
    raise ConfigError(f"{where} is damaged after element {found}: its JSON array does not end")


class Cutter:
    """Takes a stream in pieces and gives back the elements of its outermost array."""

    def __init__(self) -> None:
        self._scan = Scan()
        #: What was not given back yet: the beginning of an element.
        self._held = b""
        self._too_long = False
        #: What follows the array, once it has ended.
        self.rest: bytes | None = None

    @property
    def held_bytes(self) -> int:
        """Size of what was not given back yet."""
        return len(self._held)

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """The elements that end in this piece; None for one that is longer than allowed."""
        begin, ends, last = self._scan.look(chunk)
        start = begin
        for end in ends:
            element = self._held + chunk[start:end]
            # Nothing before the end is an empty array, or a comma too many, which loses nothing.
            if self._too_long or end != last or element.strip():
                yield None if self._too_long or len(element) > lines.MAX_ROW_BYTES else element
            self._held, self._too_long, start = b"", False, end + 1
        if last is not None:
            self.rest = chunk[start:]
            return
        self._held += chunk[start:]
        if len(self._held) > lines.MAX_ROW_BYTES:
            self._held, self._too_long = b"", True


class Scan:
    """Follows the depth of a stream, piece by piece."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        #: Whether the piece before ended with a backslash that is not escaped itself.
        self._escaping = False

    def look(self, chunk: bytes) -> tuple[int, list[int], int | None]:
        """(where elements begin to be, where each ends, and which of those ends the array) in this piece."""
        data = np.frombuffer(chunk, np.uint8)
        quotes = self._quotes(data)
        steps = _STEPS[data]
        brackets = self._outside(np.flatnonzero(steps), quotes)
        depths = self._depth + np.cumsum(steps[brackets], dtype=np.int64)
        opening = 0
        if self._depth == 0:
            opening = int(brackets[0]) + 1 if len(brackets) else len(chunk)
        commas = self._outside(np.flatnonzero(data == _COMMA), quotes)
        before = np.searchsorted(brackets, commas)
        ends = commas[np.concatenate([[self._depth], depths])[before] == 1].tolist()
        closing = np.flatnonzero(depths == 0)
        last = int(brackets[closing[0]]) if len(closing) else None
        if last is not None:
            ends = [*(end for end in ends if end < last), last]
        self._depth = int(depths[-1]) if len(depths) else self._depth
        self._in_string ^= len(quotes) % 2 == 1
        return opening, ends, last

    def _quotes(self, data: npt.NDArray[np.uint8]) -> _Places:
        """Where strings begin and end."""
        # The end of the piece is asked as well: what comes next may be escaped by this piece's last byte.
        places = np.append(np.flatnonzero(data == _QUOTE), len(data))
        escaped = self._escaped(places, np.flatnonzero(data == _BACKSLASH))
        self._escaping = bool(escaped[-1])
        return places[:-1][~escaped[:-1]]

    def _escaped(self, places: _Places, slashes: _Places) -> npt.NDArray[np.bool_]:
        """Whether an odd number of backslashes stands before each place."""
        if self._escaping:
            slashes = np.concatenate([[-1], slashes])
        # Before a slash that follows no other begins a run; each slash knows the first of its run.
        numbers = np.arange(len(slashes))
        first = np.maximum.accumulate(np.where(np.diff(slashes, prepend=-9) != 1, numbers, 0))
        run = np.append(numbers - first + 1, 0)
        before = np.searchsorted(slashes, places - 1)
        there = np.append(slashes, -9)[before] == places - 1
        return np.asarray(there & (run[before] % 2 == 1), np.bool_)

    def _outside(self, places: _Places, quotes: _Places) -> _Places:
        """Those of some places that are in no string."""
        outside: _Places = places[(np.searchsorted(quotes, places) % 2 == 1) == self._in_string]
        return outside
