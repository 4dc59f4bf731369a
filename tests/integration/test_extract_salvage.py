"""Batches with samples that poison them: the rest is stored, each bad sample is named, and the proof holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from common.messages import UploadFile
from gpu_worker.tokens import TokenBatch, TokenFile
from hiddenfeed.errors import DataError
from hiddenfeed.layout import batch_key, quarantine_key, quarantine_note_key
from hiddenfeed.proof import Proof, finish, prove
from hiddenfeed.reader import RunReader
from hiddenfeed.store.base import Store
from hiddenfeed.verify import verify
from tests.extraction import LENGTHS, TinyRun, extract, read_file, tiny_run
from tests.tiny_models import VOCABULARY

#: Drawn by no run here, as the ids are drawn below it; its embedding is made NaN.
POISON = VOCABULARY - 1


def _poisoned_run(folder: Path, rows: set[int], lengths: Any = LENGTHS) -> TinyRun:
    """A run whose model gives NaN for one id, which only the samples of `rows` have, in their middle."""
    from benchmarks import planned_run

    clean = planned_run._tokens_file

    def poisoned(plan: Any, spec: Any, run_id: str) -> Any:
        data, manifests = clean(plan, spec, run_id)
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            groups = [file.read_row_group(group).to_pylist() for group in range(file.num_row_groups)]
            schema = file.schema_arrow
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, schema) as writer:
            for group in groups:
                for row in group:
                    if row["source_row"] in rows:
                        row["input_ids"][len(row["input_ids"]) // 2] = POISON
                writer.write_table(pa.Table.from_pylist(group, schema))
        return sink.getvalue().to_pybytes(), manifests

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planned_run, "_tokens_file", poisoned)
        return tiny_run(folder, vocabulary=POISON, lengths=lengths, taps=(1, 3))


def _extract_all(run: TinyRun) -> list[UploadFile]:
    """Every batch with the poisoned model, into the store."""
    spool = run.spool()
    with run.extractor(spool) as (extractor, service), service.use(run.run_id) as served:
        decoder: Any = served.engine.model.parts.decoder
        embedding = decoder.get_input_embeddings()
        with torch.no_grad():
            embedding.weight[POISON] = float("nan")
        uploads = [extract(extractor, message) for message in run.manifests]
    run.store_files(uploads)
    assert spool.usage().part_bytes == 0
    return uploads


def _quarantined(store: Store, run_id: str) -> dict[int, str]:
    table = pq.read_table(pa.BufferReader(store.read(quarantine_key(run_id))))
    return dict(zip(table["source_row"].to_pylist(), table["reason"].to_pylist(), strict=True))


def test_bad_samples_stand_alone_and_the_rest_is_stored(tmp_path: Path) -> None:
    bad = {3, 7, 20}
    run = _poisoned_run(tmp_path, bad)
    uploads = _extract_all(run)
    assert {upload.key for upload in uploads} == {
        batch_key(run.run_id, batch) for batch in range(len(uploads))
    }

    # Before there is a proof the reader has everyone but them.
    reader = RunReader(run.store, run.run_id)
    rows = {reader.read(position).source_row for position in range(len(reader))}
    assert rows == set(range(len(LENGTHS))) - bad

    proof = finish(run.store, run.run_id)
    assert (proof.rows, proof.stored, proof.quarantined) == (len(LENGTHS), len(LENGTHS) - 3, 3)
    assert proof.quarantined_batches == 0
    reasons = _quarantined(run.store, run.run_id)
    assert set(reasons) == bad
    for row, reason in reasons.items():
        assert "is not finite in" in reason
        assert f"first in source row {row}" in reason
    assert verify(run.store, run.run_id, deep=True).proof == proof
    reader = RunReader(run.store, run.run_id)
    assert {reader.read(position).source_row for position in range(len(reader))} == rows


def test_what_is_stored_beside_a_bad_sample_is_what_it_would_be_without(tmp_path: Path) -> None:
    clean, poisoned = _poisoned_run(tmp_path / "clean", set()), _poisoned_run(tmp_path / "poisoned", {3})
    _extract_all(clean)
    _extract_all(poisoned)
    one, other = RunReader(clean.store, clean.run_id), RunReader(poisoned.store, poisoned.run_id)
    expected = {sample.source_row: sample for sample in one}
    assert len(other) == len(one) - 1
    for sample in other:
        np.testing.assert_array_equal(sample.input_ids, expected[sample.source_row].input_ids)
        for tap in (1, 3):
            np.testing.assert_allclose(
                sample.tap(tap), expected[sample.source_row].tap(tap), rtol=1e-4, atol=1e-5
            )


def test_a_batch_without_a_good_sample_has_a_note_with_a_reason_each(tmp_path: Path) -> None:
    lengths = np.array([40, 30, 20, 10])
    run = _poisoned_run(tmp_path, {1}, lengths)
    uploads = _extract_all(run)
    notes = [upload for upload in uploads if "/quarantine/" in upload.key]
    proof = finish(run.store, run.run_id)
    alone = [upload for upload in uploads if upload.batch.samples == 1 and upload.batch.longest == 30]
    assert [upload.key for upload in notes] == [upload.key for upload in alone]
    assert (proof.stored, proof.quarantined, proof.quarantined_batches) == (3, 1, len(notes))
    assert "source row 1" in _quarantined(run.store, run.run_id)[1]


def test_a_first_batch_without_a_good_sample_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The self-test takes samples of another one."""
    run = tiny_run(tmp_path)
    healthy = TokenFile.batch

    def strange_at_first(file: TokenFile, row_group: int) -> TokenBatch:
        batch = healthy(file, row_group)
        return dataclasses.replace(batch, input_ids=batch.input_ids + (0 if row_group else VOCABULARY))

    monkeypatch.setattr(TokenFile, "batch", strange_at_first)
    with run.extractor() as (extractor, _):
        first, second = (extract(extractor, message) for message in run.manifests[:2])
    assert first.key == quarantine_note_key(run.run_id, 0)
    assert second.key == batch_key(run.run_id, 1)


def test_a_batch_that_is_bad_all_over_is_given_up_as_a_whole(tmp_path: Path) -> None:
    lengths = np.full(30, 6)
    run = _poisoned_run(tmp_path, set(range(30)), lengths)
    uploads = _extract_all(run)
    large = [upload for upload in uploads if upload.batch.samples > 8]
    assert large
    assert {upload.key for upload in large} == {
        quarantine_note_key(run.run_id, upload.batch.batch_id) for upload in large
    }
    assert finish(run.store, run.run_id).quarantined == 30


# --- what the proof thinks of files that set samples aside ---


def _altered(run: TinyRun, batch_id: int, change: Any) -> None:
    """Replace a stored file by one whose header says something else of what it set aside."""
    key = batch_key(run.run_id, batch_id)
    data = run.store.read(key)
    run.store.write(key, change(data))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"[[3,", b"[[9,", "sets aside source rows that are not those of batch"),
        (b"set_aside", b"set_asidf", "is not the planned batch: tokens is"),
    ],
)
def test_a_file_that_sets_aside_what_is_not_its_own(
    tmp_path: Path, old: bytes, new: bytes, message: str
) -> None:
    run = _poisoned_run(tmp_path, {3}, LENGTHS[:12])
    uploads = _extract_all(run)
    spool = run.spool()
    (batch,) = [
        upload.batch.batch_id
        for upload in uploads
        if read_file(spool.resolve(upload.path)).header.facts.set_aside
    ]
    assert isinstance(prove(run.store, run.run_id), Proof)
    quoted = old.replace(b'"', b'\\"')
    _altered(run, batch, lambda data: data.replace(quoted, new))
    with pytest.raises(DataError, match=message):
        prove(run.store, run.run_id)
