"""index.parquet and quarantine.parquet: where each sample is, or why it is not, as tables."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hiddenfeed.layout import batch_key
from hiddenfeed.plan_file import PlannedBatch

INDEX_SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        #: Row of the sample in the input.
        pa.field("source_row", pa.int64(), nullable=False),
        #: The batch file, relative to the run: `batches/000042.safetensors`.
        pa.field("file", pa.string(), nullable=False),
        pa.field("batch_id", pa.int32(), nullable=False),
        #: Place of the sample in its file: entry of `sample_index`.
        pa.field("position", pa.int32(), nullable=False),
        #: First token of the sample in its file.
        pa.field("token_offset", pa.int64(), nullable=False),
        #: Tokens of the sample.
        pa.field("length", pa.int32(), nullable=False),
    ]
)
QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("batch_id", pa.int32(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)


def index_table(run_id: str, batches: Iterable[PlannedBatch]) -> pa.Table:
    """One row per sample of `batches`, in the order of files and within them."""
    return _concatenated(INDEX_SCHEMA, [_indexed(run_id, batch) for batch in batches])


def quarantine_table(batches: Iterable[tuple[PlannedBatch, Mapping[int, str]]]) -> pa.Table:
    """One row per sample set aside, in the order of the plan; each batch with its reasons by source row."""
    parts = []
    for planned, reasons in batches:
        batch = planned.take(planned.places_of(list(reasons)))
        columns = [
            batch.sample_ids,
            pa.array(batch.source_rows),
            pa.array(np.full(batch.samples, batch.batch_id, np.int32)),
            pa.array([reasons[row] for row in batch.source_rows.tolist()], pa.string()),
        ]
        parts.append(pa.table(columns, schema=QUARANTINE_SCHEMA))
    return _concatenated(QUARANTINE_SCHEMA, parts)


def encode_table(table: pa.Table) -> bytes:
    """The table as a parquet file; equal tables give equal bytes under one version of pyarrow."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _indexed(run_id: str, batch: PlannedBatch) -> pa.Table:
    file = batch_key(run_id, batch.batch_id).removeprefix(f"{run_id}/")
    columns = [
        batch.sample_ids,
        pa.array(batch.source_rows),
        pa.array([file] * batch.samples, pa.string()),
        pa.array(np.full(batch.samples, batch.batch_id, np.int32)),
        pa.array(np.arange(batch.samples, dtype=np.int32)),
        pa.array(batch.offsets[:-1]),
        pa.array(batch.lengths.astype(np.int32)),
    ]
    return pa.table(columns, schema=INDEX_SCHEMA)


def _concatenated(schema: pa.Schema, parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts).combine_chunks() if parts else schema.empty_table()
