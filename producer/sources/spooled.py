"""Rows that come once, through a pipe: kept in a file without a name, because they are read more than once."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
import weakref
from pathlib import Path
from typing import IO

from hiddenfeed.errors import ConfigError
from hiddenfeed.options import MIB
from hiddenfeed.ranged_reader import RangedReader
from producer.sources.files import FileState

_COPY_BYTES = MIB


class SpooledFile:
    """What a pipe said, whole. The disk space goes when this does, or when the process ends, however it ends."""

    path: Path | None = None

    def __init__(self, name: str, where: str, source: IO[bytes]) -> None:
        """Reads `source` to its end; raises ConfigError if it cannot be read or kept."""
        self.name, self.where = name, where
        try:
            with tempfile.TemporaryFile(buffering=0) as file:
                shutil.copyfileobj(source, file, _COPY_BYTES)
                self._size = file.tell()
                self._descriptor = os.dup(file.fileno())
        except OSError as error:
            raise ConfigError(
                f"{where} cannot be read into a temporary file ({error.strerror or error}); set TMPDIR to a folder with "
                "more room, or give it as a file"
            ) from None
        weakref.finalize(self, os.close, self._descriptor)

    def open(self) -> io.BufferedReader:
        """See `DataFile.open`."""
        descriptor = self._descriptor
        return io.BufferedReader(
            RangedReader(lambda start, length: os.pread(descriptor, length, start), self._size), _COPY_BYTES
        )

    def state(self) -> FileState:
        """See `DataFile.state`; it cannot change."""
        return self._size, ""


def spool_stdin(name: str = "stdin") -> SpooledFile:
    """Standard input to its end; raises ConfigError if that is a terminal."""
    if sys.stdin.isatty():
        raise ConfigError("--data - reads rows from standard input, and that is a terminal; pipe them in")
    return SpooledFile(name, "standard input", sys.stdin.buffer)
