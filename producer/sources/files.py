"""One input file, wherever it is: its name, its bytes, and how to tell that it has changed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from common.weights import digest_of
from hiddenfeed.errors import ConfigError

#: Size in bytes, and what changes when the content does: a time of the last change or a version's tag.
FileState = tuple[int, str]

_HASHED_AT_ONCE = 8


class DataFile(Protocol):
    """One file of rows."""

    @property
    def name(self) -> str:
        """What the file is called in the run: its path below what was given, never where that is."""
        ...

    @property
    def where(self) -> str:
        """What the file is called in messages: a path or a URL."""
        ...

    @property
    def path(self) -> Path | None:
        """Where it is on this machine; None if it has no path here."""
        ...

    def open(self) -> io.BufferedReader:
        """Its bytes from the start, seekable, the caller's to close.

        Raises ConfigError if it cannot be read, TransientError if where it is is away.
        """
        ...

    def state(self) -> FileState:
        """What it is like now; raises as `open` does."""
        ...


@dataclass(frozen=True)
class LocalFile:
    """A file with a path here."""

    path: Path
    name: str

    @property
    def where(self) -> str:
        """See `DataFile.where`."""
        return str(self.path)

    def open(self) -> io.BufferedReader:
        """See `DataFile.open`."""
        try:
            return self.path.open("rb")
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror or error}") from None

    def state(self) -> FileState:
        """See `DataFile.state`."""
        try:
            stat = self.path.stat()
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror or error}") from None
        return stat.st_size, str(stat.st_mtime_ns)


def hash_data(files: Sequence[DataFile]) -> list[str]:
    """BLAKE2b of each file's content, in hex; files here several at a time. Raises as `DataFile.open` does."""
    if any(file.path is None for file in files):
        # What waits for a network must not wait in threads, which an interrupt does not reach.
        return [_hash(file) for file in files]
    with ThreadPoolExecutor(max_workers=_HASHED_AT_ONCE) as threads:
        return list(threads.map(_hash, files))


def _hash(file: DataFile) -> str:
    with file.open() as stream:
        try:
            return digest_of(stream)
        except OSError as error:
            raise ConfigError(f"{file.where} cannot be read: {error.strerror or error}") from None
