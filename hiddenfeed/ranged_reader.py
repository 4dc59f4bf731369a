"""Bytes that are had by place, as a file."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any


class RangedReader(io.RawIOBase):
    """A read-only file with a position of its own, over something that is read in ranges."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        """`read(start, length)` gives those bytes, fewer only at the end."""
        super().__init__()
        self._read, self._size, self._position = read, size, 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place, which may be beyond the end."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        """The place."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with one ranged read, as far as there is something to fill it with."""
        wanted = min(len(buffer), max(0, self._size - self._position))
        data = self._read(self._position, wanted) if wanted else b""
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
