"""All rows of all files, in order and numbered from 0, not looked at beyond where each begins and ends.

A file that cannot be read to its end is an error, because nobody could say which rows were lost
with it; whatever is wrong with one row is that row's own matter.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hiddenfeed.errors import ConfigError
from hiddenfeed.words import count_text
from producer.columns import Columns
from producer.parse_row import values_of
from producer.rows import RawRow, RowError
from producer.sources.array import read_array
from producer.sources.files import DataFile
from producer.sources.lines import read_lines
from producer.sources.tables import Table, open_table
from producer.sources.unpack import BUFFER_BYTES, DAMAGE, Unpacked, unpack
from producer.sources.wrapped import rows_inside

#: Rows of a file that are looked at to say aloud how the file is read.
_LOOKED_AT = 200
_CSV = re.compile(r"\.[ct]sv(\.\w+)?$", re.IGNORECASE)
_TABLE_SUFFIXES = (".parquet", ".arrow", ".feather")

_Raw = bytes | Mapping[str, Any] | RowError


class RowReader:
    """Iterates over every row of some files, in order, and knows how far it is."""

    def __init__(
        self, files: Sequence[DataFile], columns: Columns, say: Callable[[str], None] = lambda line: None
    ) -> None:
        """`say` hears how each file is read, where that is not how the one before it was."""
        self._files, self._columns, self._say = files, columns, say
        self._done_bytes = 0
        self._position: Callable[[], int] = lambda: 0
        self._said = ""
        #: Columns of the file at hand that are not even read.
        self._unread: tuple[str, ...] = ()

    @property
    def bytes_read(self) -> int:
        """Bytes of the files, as they are where they are, that were read so far."""
        return self._done_bytes + self._position()

    def __iter__(self) -> Iterator[RawRow]:
        """Raises ConfigError for a file that cannot be read to its end, TransientError where one is away."""
        source_row = 0
        for file in self._files:
            kinds: list[str] = []
            for number, (place, raw, what) in enumerate(self._read(file)):
                row = RawRow(file.name, source_row, place, raw)
                if number < _LOOKED_AT:
                    self._tell(row, what, kinds)
                source_row += 1
                yield row

    def _read(self, file: DataFile) -> Iterator[tuple[str, _Raw, str]]:
        """(place, row, what the file is) of every row of one file."""
        place, size = "its beginning", file.state()[0]
        with file.open() as raw:
            try:
                unpacked = unpack(file.where, raw)
                rows, what, self._unread = self._rows(file, raw, unpacked, size)
                for place, row in rows:
                    yield place, row, what
            except DAMAGE as error:
                raise _damaged(file, place, error) from None
            except OSError as error:
                if error.errno is None:
                    raise _damaged(file, place, error) from None
                raise ConfigError(f"{file.where} cannot be read: {error.strerror or error}") from None
            finally:
                self._position = lambda: 0
        self._done_bytes += size

    def _rows(
        self, file: DataFile, raw: io.BufferedReader, unpacked: Unpacked, size: int
    ) -> tuple[Iterator[tuple[str, _Raw]], str, tuple[str, ...]]:
        if unpacked.format == "JSON lines":
            if file.name.lower().endswith(_TABLE_SUFFIXES) and unpacked.stream.peek(1):
                raise ConfigError(f"{file.where} is neither Parquet nor Arrow, whatever its name says")
            if _CSV.search(file.name) and not unpacked.stream.peek(1).startswith(b"{"):
                raise ConfigError(
                    f"{file.where} is a file of separated values; write it as Parquet, for example with pandas: "
                    "read_csv(…).to_parquet(…)"
                )
            self._position = raw.tell
            inside = rows_inside(file, unpacked.stream.peek(BUFFER_BYTES), self._columns)
            if inside is not None:
                packed = f", {unpacked.packing}" if unpacked.packing else ""
                return inside.read(file.where, unpacked.stream), f"{inside}{packed}", ()
            return read_lines(unpacked.stream), str(unpacked), ()
        if unpacked.format == "a JSON array":
            self._position = raw.tell
            return read_array(file.where, unpacked.stream), str(unpacked), ()
        table = open_table(file, raw, unpacked.format, self._columns)
        self._position = lambda: _share(table, size)
        counted = f"{unpacked}, {count_text(table.rows, 'row')}" if table.rows is not None else str(unpacked)
        return table.read(), counted, table.unread

    def _tell(self, row: RawRow, what: str, kinds: list[str]) -> None:
        """Say how the file is read, at the first of its rows that shows it, and each other kind it has as well."""
        try:
            shape = self._columns.shape_of(values_of(row))
        except RowError:
            return
        if shape is None or shape.kind in kinds:
            return
        also, told = "also has rows of " if kinds else "", shape.told(self._unread)
        kinds.append(shape.kind)
        if also or f"{what.partition(', ')[0]} {told}" != self._said:
            self._say(f"{row.file} {also}{told}" if also else f"reading {row.file} ({what}): {told}")
        self._said = f"{what.partition(', ')[0]} {told}"


def _share(table: Table, size: int) -> int:
    """Bytes of a file that its rows so far stand for."""
    return size * table.given // max(1, table.rows) if table.rows is not None else 0


def _damaged(file: DataFile, place: str, error: BaseException) -> ConfigError:
    reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return ConfigError(f"{file.where} is damaged after {place}: {reason}")
