"""tokens.parquet and skipped.parquet as they are written, and the manifests read back from the first.

The size of each batch is in the file's metadata, so that manifests are made from its footer alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.messages import ExtractBatch
from hiddenfeed.errors import DataError, MissingObjectError
from hiddenfeed.layout import tokens_key
from hiddenfeed.plan_file import SKIPPED_SCHEMA, TOKENS_SCHEMA, TOKENS_WRITING
from hiddenfeed.store import Store
from producer.plan import Batch, Plan
from producer.samples import Sample
from producer.sources import SkippedRow
from producer.spill import Spill

_BATCHES = b"hiddenfeed.batches"
_COMPRESSION = "zstd"
#: A footer's last bytes: its length and the magic.
_TAIL_BYTES = 8
_FIRST_READ_BYTES = 64 * 1024


class BatchSize(msgspec.Struct, frozen=True, array_like=True):
    """One batch in the metadata of tokens.parquet."""

    samples: int
    tokens: int
    longest: int
    #: Sum of squared lengths; 0 in a file of a program that did not write it.
    squares: int = 0


#: What proofs read, and for people which filter it was.
_SKIPPED_SCHEMA = SKIPPED_SCHEMA.append(pa.field("filter", pa.string(), nullable=False))


class SkippedFile:
    """skipped.parquet while it is written: rows are buffered, so that any number of them takes little memory."""

    def __init__(self, path: Path, rows_per_group: int = 20_000) -> None:
        """Creates or replaces the file; it is complete after the `with` block."""
        self._writer = pq.ParquetWriter(path, _SKIPPED_SCHEMA, compression=_COMPRESSION)
        self._pending: list[SkippedRow] = []
        self._rows_per_group = rows_per_group
        self.rows = 0

    def __enter__(self) -> SkippedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._flush()
        finally:
            self._writer.close()

    def append(self, row: SkippedRow) -> None:
        """Record one row."""
        self.rows += 1
        self._pending.append(row)
        if len(self._pending) >= self._rows_per_group:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            columns = zip(
                *((row.file, row.source_row, row.sample_id, row.reason, row.cause) for row in self._pending),
                strict=True,
            )
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, _SKIPPED_SCHEMA, strict=True)
            ]
            self._writer.write_table(pa.table(arrays, schema=_SKIPPED_SCHEMA))
            self._pending = []


def write_tokens_file(path: Path, plan: Plan, spill: Spill) -> Iterator[int]:
    """Write tokens.parquet, one row group per batch; yields the batches written so far.

    Raises OSError when the disk is full.
    """
    batches = [plan.batch(batch_id) for batch_id in range(plan.batches)]
    sizes = [BatchSize(len(batch.samples), batch.tokens, batch.longest, batch.squares) for batch in batches]
    schema = TOKENS_SCHEMA.with_metadata({_BATCHES: msgspec.json.encode(sizes)})
    with pq.ParquetWriter(path, schema, **TOKENS_WRITING) as writer:
        for count, batch in enumerate(batches, start=1):
            samples = [spill.read(int(number)) for number in batch.samples]
            table = _table(samples, batch, schema)
            writer.write_table(table, row_group_size=table.num_rows)
            yield count


def read_manifests(store: Store, run_id: str) -> list[ExtractBatch]:
    """The manifest of every batch of a run, in order, from the footer of its tokens.parquet.

    Raises DataError if the file is not there or is not one.
    """
    key = tokens_key(run_id)
    metadata = _read_footer(store, key).metadata or {}
    try:
        sizes = msgspec.json.decode(metadata[_BATCHES], type=list[BatchSize])
    except (KeyError, msgspec.MsgspecError):
        raise DataError(
            f"{key} does not say how big its batches are; it was not made by this program"
        ) from None
    return [
        ExtractBatch(
            run_id=run_id,
            batch_id=batch_id,
            tokens=key,
            row_group=batch_id,
            samples=size.samples,
            tokens_total=size.tokens,
            longest=size.longest,
            squares=size.squares or msgspec.UNSET,
        )
        for batch_id, size in enumerate(sizes)
    ]


def _table(samples: list[Sample], batch: Batch, schema: pa.Schema) -> pa.Table:
    """The rows of one batch, in file order."""
    offsets = np.zeros(len(samples) + 1, np.int32)
    np.cumsum([len(sample.ids) for sample in samples], out=offsets[1:])
    columns = [
        pa.array([sample.sample_id for sample in samples], pa.string()),
        pa.array([sample.source_row for sample in samples], pa.int64()),
        pa.ListArray.from_arrays(offsets, np.concatenate([sample.ids for sample in samples])),
        pa.ListArray.from_arrays(offsets, np.concatenate([sample.mask for sample in samples])),
        pa.array(batch.micro_batches, pa.int32()),
    ]
    return pa.table(dict(zip(schema.names, columns, strict=True))).cast(schema)


def _read_footer(store: Store, key: str) -> pq.FileMetaData:
    info = store.head(key)
    if info is None:
        raise DataError(f"{key} is missing")
    try:
        tail = store.read(key, max(0, info.size_bytes - _FIRST_READ_BYTES))
        footer_bytes = int.from_bytes(tail[-_TAIL_BYTES:-4], "little") + _TAIL_BYTES
        if len(tail) < footer_bytes <= info.size_bytes:
            tail = store.read(key, info.size_bytes - footer_bytes)
        return pq.read_metadata(pa.BufferReader(tail))
    except MissingObjectError:
        raise DataError(f"{key} is missing") from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{key} is not a parquet file that can be read: {str(error).splitlines()[0]}"
        ) from None
