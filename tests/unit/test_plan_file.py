"""tokens.parquet through a store: what is fetched, what is refused, and whose errors are whose."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hiddenfeed.errors import DataError, TransientError
from hiddenfeed.layout import tokens_key
from hiddenfeed.plan_file import TOKENS_SCHEMA, PlanFile
from hiddenfeed.proof import prove
from hiddenfeed.reader import RunReader
from hiddenfeed.store.memory import MemoryStore
from tests.synthetic_run import synthetic_run

RUN = synthetic_run(batches=4, longest=500, samples_per_batch=30)
KEY = tokens_key(RUN.run_id)


class WatchedStore(MemoryStore):
    """Counts the bytes read of tokens.parquet, and fails on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched = 0
        self.failing: Callable[[str], bool] = lambda key: False

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if self.failing(key):
            raise TransientError("S3 at 127.0.0.1:9 is away: connection refused")
        data = super().read(key, start, length)
        self.fetched += len(data) if key == KEY else 0
        return data


def _store() -> WatchedStore:
    store = WatchedStore()
    RUN.write(store)
    return store


def test_batches_are_those_of_the_run() -> None:
    plan = PlanFile(_store(), RUN.run_id)
    assert (plan.batches, plan.samples) == (4, 120)
    for batch_id, samples in enumerate(RUN.batches):
        batch = plan.batch(batch_id)
        assert batch.sample_ids.to_pylist() == [sample.sample_id for sample in samples]
        assert batch.source_rows.tolist() == [sample.source_row for sample in samples]
        assert batch.lengths.tolist() == [len(sample.input_ids) for sample in samples]
        assert (batch.samples, batch.tokens) == (30, sum(batch.lengths))
        assert batch.offsets.dtype == np.int64
        assert np.array_equal(batch.offsets, RUN.tensors(batch_id)["offsets"])
        ids, mask = plan.tokens(batch_id)
        assert (ids.dtype.name, mask.dtype.name) == ("int32", "uint8")
        assert np.array_equal(ids, RUN.tensors(batch_id)["input_ids"])
        assert np.array_equal(mask, RUN.tensors(batch_id)["loss_mask"])


def test_who_is_in_a_batch_does_not_cost_its_tokens() -> None:
    store = _store()
    plan = PlanFile(store, RUN.run_id)
    store.fetched = 0
    plan.batch(2)
    without = store.fetched
    store.fetched = 0
    plan.tokens(2)
    assert without < store.fetched / 2


@pytest.mark.parametrize("batch_id", [-1, 4])
def test_a_batch_that_is_not_planned(batch_id: int) -> None:
    with pytest.raises(DataError, match=f"{KEY} has no batch {batch_id}: it plans 4 batches"):
        PlanFile(_store(), RUN.run_id).batch(batch_id)


def _plan_of(columns: dict[str, Any], schema: pa.Schema) -> MemoryStore:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema), sink)
    store = MemoryStore()
    store.write(KEY, sink.getvalue())
    return store


def test_rows_with_missing_values_are_refused() -> None:
    nullable = pa.schema([pa.field(field.name, field.type) for field in TOKENS_SCHEMA])
    columns = {
        "sample_id": ["a"],
        "source_row": [None],
        "input_ids": [[1]],
        "loss_mask": [[1]],
        "micro_batch": [0],
    }
    with pytest.raises(DataError, match="batch 0 has rows with missing values"):
        PlanFile(_plan_of(columns, nullable), RUN.run_id).batch(0)


def test_a_mask_of_another_length_is_refused() -> None:
    columns = {
        "sample_id": ["a"],
        "source_row": [0],
        "input_ids": [[1, 2]],
        "loss_mask": [[1]],
        "micro_batch": [0],
    }
    with pytest.raises(DataError, match="batch 0 has 2 tokens and 1 mask entry"):
        PlanFile(_plan_of(columns, TOKENS_SCHEMA), RUN.run_id).tokens(0)


@pytest.mark.parametrize("width", [pa.int64(), pa.string()])
def test_columns_of_another_type_are_refused(width: pa.DataType) -> None:
    schema = TOKENS_SCHEMA.set(2, pa.field("input_ids", pa.list_(width)))
    columns: dict[str, list[Any]] = {name: [] for name in TOKENS_SCHEMA.names}
    with pytest.raises(DataError, match="must have a column input_ids of list<"):
        PlanFile(_plan_of(columns, schema), RUN.run_id)


@pytest.mark.parametrize("suffix", ["tokens.parquet", "skipped.parquet", "000002.safetensors", "run.json"])
def test_a_store_that_is_away_is_transient_whatever_was_being_read(suffix: str) -> None:
    store = _store()
    store.failing = lambda key: key.endswith(suffix)
    with pytest.raises(TransientError, match="is away"):
        prove(store, RUN.run_id)


def test_a_store_that_goes_away_in_the_middle_is_transient() -> None:
    store = _store()
    plan = PlanFile(store, RUN.run_id)
    store.failing = lambda key: True
    with pytest.raises(TransientError, match="is away"):
        plan.batch(1)
    store.failing = lambda key: key == KEY
    with pytest.raises(TransientError, match="is away"):
        RunReader(store, RUN.run_id)
    store.failing = lambda key: False
    assert plan.batch(1).samples == 30


@pytest.mark.parametrize("place", [0.2, 0.5, 0.8])
def test_a_damaged_plan_is_a_data_error(place: float) -> None:
    store = MemoryStore()
    RUN.write(store)
    data = bytearray(RUN.tokens_file)
    start = int(len(data) * place)
    data[start : start + 200] = bytes(200)
    store.write(KEY, bytes(data))
    try:
        plan = PlanFile(store, RUN.run_id)
        found = [plan.tokens(batch)[0].tolist() for batch in range(plan.batches)]
    except DataError as error:
        found = [str(error)]
    assert found != [RUN.tensors(batch)["input_ids"].tolist() for batch in range(4)]
