"""tokens.parquet and skipped.parquet as they are read: which rows went where, and their tokens.

One row group of tokens.parquet is one batch, in the order of the batch file. Reading goes through
the store in ranges, so that what a question does not need is not fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hiddenfeed.errors import DataError
from hiddenfeed.layout import tokens_key
from hiddenfeed.ranged_reader import RangedReader
from hiddenfeed.store.base import Store
from hiddenfeed.words import count_text

TOKENS_SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("loss_mask", pa.list_(pa.uint8()), nullable=False),
        pa.field("micro_batch", pa.int32(), nullable=False),
    ]
)
#: How it is written. Dictionaries make neither tokens nor masks smaller, and nobody asks for statistics of either;
#: a bit that turns over on somebody's disk makes another token, which only a checksum tells.
TOKENS_WRITING: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": False,
    "write_statistics": False,
    "write_page_checksum": True,
}
SKIPPED_SCHEMA = pa.schema(
    [
        pa.field("source_file", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("sample_id", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True)
class PlannedBatch:
    """The samples of one batch, in file order; arrays of S entries."""

    batch_id: int
    sample_ids: pa.Array
    #: int64, row of each sample in the input.
    source_rows: npt.NDArray[np.int64]
    #: int64, tokens of each sample.
    lengths: npt.NDArray[np.int64]

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.source_rows)

    @property
    def tokens(self) -> int:
        """Tokens of all samples."""
        return int(self.lengths.sum())

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """int64[S + 1]: first token of each sample, and the total."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths, dtype=np.int64)])

    def places_of(self, source_rows: Sequence[int]) -> npt.NDArray[np.bool_]:
        """bool[S]: True for the samples of these rows."""
        return np.isin(self.source_rows, np.array(source_rows, np.int64))

    def take(self, places: npt.NDArray[np.bool_]) -> PlannedBatch:
        """The batch with the samples at `places` only, bool[S], in their order."""
        return PlannedBatch(
            self.batch_id,
            self.sample_ids.filter(pa.array(places)),
            self.source_rows[places],
            self.lengths[places],
        )


class PlanFile:
    """tokens.parquet of one run in a store; safe to use from several threads."""

    def __init__(self, store: Store, run_id: str) -> None:
        """Reads the footer; raises DataError if there is no such file or it is not a plan."""
        self._store, self._key = store, tokens_key(run_id)
        self._size = _size_of(store, self._key)
        with self._reading():
            # No read-ahead: its threads abort the process when it ends while they still read.
            file = pq.ParquetFile(self._file(), pre_buffer=False)
            self._metadata, schema = file.metadata, file.schema_arrow
        _check_schema(schema, TOKENS_SCHEMA, self._key)

    @property
    def batches(self) -> int:
        """Number of planned batches."""
        return int(self._metadata.num_row_groups)

    @property
    def samples(self) -> int:
        """Number of planned samples."""
        return int(self._metadata.num_rows)

    def batch(self, batch_id: int) -> PlannedBatch:
        """Who is in the batch; fetches ids, rows and masks, not the tokens. Raises DataError."""
        table = self._read(batch_id, ["sample_id", "source_row", "loss_mask"])
        lengths = pc.list_value_length(table["loss_mask"]).combine_chunks()
        return PlannedBatch(
            batch_id,
            table["sample_id"].combine_chunks(),
            table["source_row"].combine_chunks().to_numpy(),
            lengths.to_numpy(zero_copy_only=False).astype(np.int64),
        )

    def tokens(self, batch_id: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        """(token ids int32[T], loss mask uint8[T]) of the batch, samples one behind the other."""
        table = self._read(batch_id, ["input_ids", "loss_mask"])
        ids = table["input_ids"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        mask = table["loss_mask"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        if len(ids) != len(mask):
            raise DataError(
                f"{self._key}: batch {batch_id} has {count_text(len(ids), 'token')} and "
                f"{count_text(len(mask), 'mask entry', 'mask entries')}"
            )
        return ids, mask

    def _read(self, batch_id: int, columns: Sequence[str]) -> pa.Table:
        if not 0 <= batch_id < self.batches:
            raise DataError(
                f"{self._key} has no batch {batch_id}: it plans {count_text(self.batches, 'batch', 'batches')}"
            )
        with self._reading():
            # A file object of its own per call: its position belongs to one thread.
            # No read-ahead threads on a Python file: they now and then abort a process at its end.
            file = pq.ParquetFile(self._file(), metadata=self._metadata, pre_buffer=False)
            table = file.read_row_group(batch_id, columns=list(columns), use_threads=False)
        if any(table[name].null_count for name in columns):
            raise DataError(f"{self._key}: batch {batch_id} has rows with missing values")
        return table

    def _file(self) -> RangedReader:
        return RangedReader(partial(self._store.read, self._key), self._size)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with _parquet_errors(self._key):
            yield


def parse_table(data: bytes, key: str, schema: pa.Schema) -> pa.Table:
    """A parquet file held whole, in the columns of `schema`; raises DataError naming `key` if it is another."""
    with _parquet_errors(key):
        # Not read_table: its scanner lets go of Python's buffer in a thread of its own, and where that comes
        # after the end of the interpreter the process is aborted.
        file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        table = file.read(use_threads=False)
        _check_schema(table.schema, schema, key)
        return table.select(schema.names).cast(schema)


def _size_of(store: Store, key: str) -> int:
    info = store.head(key)
    if info is None:
        raise DataError(f"{key} is missing")
    return info.size_bytes


def _check_schema(found: pa.Schema, expected: pa.Schema, key: str) -> None:
    for column in expected:
        place = found.get_field_index(column.name)
        if place < 0 or not found.field(place).type.equals(column.type):
            what = "no such column" if place < 0 else f"type {found.field(place).type}"
            raise DataError(f"{key} must have a column {column.name} of {column.type}, and has {what}")


@contextmanager
def _parquet_errors(key: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{key} is not a parquet file that can be read: {str(error).splitlines()[0]}"
        ) from None
