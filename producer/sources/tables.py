"""Tables: rows of Parquet and Arrow files, a few at a time, only the columns that a sample is made of.

pyarrow is given Python files without read-ahead: its threads on them now and then abort a process
at its end.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from hiddenfeed.errors import ConfigError
from hiddenfeed.options import MIB
from producer.columns import Columns
from producer.rows import RowError
from producer.sources.columnar import converter, is_list, look_of_type
from producer.sources.files import DataFile
from producer.sources.unpack import Format

_BATCH_ROWS = 1024
_BATCH_BYTES = 4 * MIB
_READ_BYTES = MIB
#: How an Arrow stream ends that was written to its end.
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
#: What a value raises that Arrow holds and Python cannot: text that is no UTF-8, dates beyond the calendar.
_UNREADABLE = (ValueError, OverflowError, KeyError, RecursionError, pa.ArrowException, msgspec.MsgspecError)


@dataclass
class Table:
    """One file of rows in columns."""

    file: DataFile
    batches: Iterator[pa.RecordBatch]
    #: How many rows it says it has; None for a stream, which does not say.
    rows: int | None
    #: Its columns that are not read, because nobody would use them.
    unread: tuple[str, ...]
    #: Rows given so far.
    given: int = field(default=0)

    def read(self) -> Iterator[tuple[str, dict[str, Any] | RowError]]:
        """(`row 12`, its columns) of every row, counted from 0."""
        for batch in self.batches:
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                for record in _records(batch.slice(start, _BATCH_ROWS), self.given):
                    self.given += 1
                    yield f"row {self.given - 1}", record
        if self.rows is not None and self.given != self.rows:
            raise ConfigError(f"{self.file.where} is damaged: it has {self.given} rows and says {self.rows}")


def open_table(file: DataFile, raw: io.BufferedReader, kind: Format, columns: Columns) -> Table:
    """The table in a file just opened; `raw` stays the caller's to close.

    Raises ConfigError if no column of it makes a sample, and what pyarrow raises for a damaged file.
    """
    source = pa.OSFile(str(file.path)) if file.path is not None else pa.PythonFile(raw, "r")
    if kind == "Parquet":
        return _parquet(file, source, columns)
    if kind == "an Arrow file":
        reader = pa.ipc.open_file(source)
        wanted, unread = _wanted(file, reader.schema, columns)
        reader = pa.ipc.open_file(source, options=_only(reader.schema, wanted))
        count, batches = reader.num_record_batches, reader.get_batch
        return Table(file, map(batches, range(count)), None, unread)
    _check_ended(file, raw)
    with pa.ipc.open_stream(source) as stream:
        schema = stream.schema
    wanted, unread = _wanted(file, schema, columns)
    again = pa.OSFile(str(file.path)) if file.path is not None else pa.PythonFile(_rewound(raw), "r")
    return Table(file, iter(pa.ipc.open_stream(again, options=_only(schema, wanted))), None, unread)


def _parquet(file: DataFile, source: pa.NativeFile, columns: Columns) -> Table:
    parquet = pq.ParquetFile(source, pre_buffer=False, buffer_size=_READ_BYTES)
    wanted, unread = _wanted(file, parquet.schema_arrow, columns)
    batches = parquet.iter_batches(
        batch_size=_batch_rows(parquet.metadata, wanted), columns=wanted, use_threads=False
    )
    return Table(file, batches, int(parquet.metadata.num_rows), unread)


def _batch_rows(metadata: pq.FileMetaData, wanted: Sequence[str]) -> int:
    """Rows to decode at a time, so that they are not many bytes whatever the size of a row."""
    size = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = (group.column(column) for column in range(group.num_columns))
        size += sum(
            chunk.total_uncompressed_size
            for chunk in chunks
            if chunk.path_in_schema.partition(".")[0] in wanted
        )
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES * int(metadata.num_rows) // max(1, size)))


def _wanted(file: DataFile, schema: pa.Schema, columns: Columns) -> tuple[list[str], tuple[str, ...]]:
    """The columns to read, and the others; raises ConfigError if there is none to read, or two of one name."""
    if not columns.makes_samples(schema.names):
        looks = {field.name: look_of_type(field.type) for field in schema}
        raise ConfigError(f"{file.where} has {columns.missing(looks)}")
    wanted = columns.wanted(schema.names)
    twice = next((name for name in wanted if wanted.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{file.where} has two columns {twice}")
    return wanted, tuple(name for name in schema.names if name not in wanted)


def _only(schema: pa.Schema, wanted: Sequence[str]) -> pa.ipc.IpcReadOptions:
    fields = [place for place, name in enumerate(schema.names) if name in wanted]
    return pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)


def _check_ended(file: DataFile, raw: io.BufferedReader) -> None:
    """A stream that was cut between two of its batches reads like a whole one, but for its end mark."""
    raw.seek(-min(len(_END_OF_STREAM), file.state()[0]), 2)
    end = raw.read(len(_END_OF_STREAM))
    raw.seek(0)
    if end != _END_OF_STREAM:
        raise ConfigError(
            f"{file.where} is damaged: an Arrow stream ends with a mark, and this one does not, so rows may be missing"
        )


def _rewound(raw: io.BufferedReader) -> io.BufferedReader:
    raw.seek(0)
    return raw


def _records(batch: pa.RecordBatch, first: int) -> Iterator[dict[str, Any] | RowError]:
    """The rows of a batch; one that cannot be turned into Python values is the error of its own row."""
    names = batch.schema.names
    try:
        values = [_values(column) for column in batch.columns]
    except _UNREADABLE:
        for place in range(batch.num_rows):
            yield _record(batch, place, f"row {first + place}")
        return
    for row in zip(*values, strict=True):
        yield dict(zip(names, row, strict=True))


def _record(batch: pa.RecordBatch, place: int, where: str) -> dict[str, Any] | RowError:
    record = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            (record[name],) = _values(column.slice(place, 1))
        except _UNREADABLE as error:
            return RowError(f"{where}: column {name} cannot be read: {error}")
    return record


def _values(column: pa.Array) -> list[Any]:
    """The column as Python values: lists of whole numbers as numpy arrays, all else as JSON would have it."""
    kind = column.type
    if is_list(kind) and pa.types.is_integer(kind.value_type):
        if pa.types.is_fixed_size_list(kind):
            column = column.cast(pa.list_(kind.value_type))
        offsets = column.offsets.to_numpy()
        numbers = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        if numbers.null_count == 0:
            ends, plain = offsets - offsets[0], numbers.to_numpy(zero_copy_only=False)
            valid = column.is_valid().to_pylist()
            return [
                plain[start:end] if there else None
                for start, end, there in zip(ends[:-1], ends[1:], valid, strict=True)
            ]
    convert = converter(kind)
    values = (column.storage if isinstance(column, pa.ExtensionArray) else column).to_pylist()
    return values if convert is None else [None if value is None else convert(value) for value in values]
