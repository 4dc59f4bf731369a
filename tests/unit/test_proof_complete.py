"""The proof of runs that are in order, and what `finish` leaves in the store."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import DataError
from hiddenfeed.index_file import INDEX_SCHEMA
from hiddenfeed.inventory import load_document
from hiddenfeed.layout import (
    complete_key,
    index_key,
    quarantine_key,
    quarantine_note_key,
    run_document_key,
)
from hiddenfeed.plan_file import parse_table
from hiddenfeed.proof import ComputedWith, Proof, completion_gaps, finish, load_proof, prove
from hiddenfeed.store import Store
from hiddenfeed.store.directory import DirectoryStore
from hiddenfeed.store.memory import MemoryStore
from hiddenfeed.verify import verify
from tests.synthetic_run import synthetic_run


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else DirectoryStore(tmp_path)


@settings(max_examples=25, deadline=None)
@given(
    batches=st.integers(0, 5),
    samples=st.integers(1, 6),
    skipped=st.integers(0, 4),
    final_state=st.sampled_from(["none", "pre", "post"]),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_any_complete_run_is_proved_in_numbers(
    batches: int, samples: int, skipped: int, final_state: str, seed: int, data: st.DataObject
) -> None:
    store = MemoryStore()
    run = synthetic_run(
        batches=batches, samples_per_batch=samples, skipped=skipped, final_state=final_state, seed=seed
    )
    quarantined = data.draw(st.sets(st.integers(0, batches - 1))) if batches else set()
    run.write(store, quarantined=quarantined)
    proof = finish(store, run.run_id)
    stored = [batch for batch in range(batches) if batch not in quarantined]
    assert proof.rows == proof.stored + proof.skipped + proof.quarantined
    assert (proof.stored, proof.skipped) == (len(stored) * samples, skipped)
    assert (proof.batches, proof.quarantined_batches) == (len(stored), len(quarantined))
    assert proof.tokens == sum(len(sample.input_ids) for batch in stored for sample in run.batches[batch])
    assert proof.size_bytes == sum(len(run.batch_file(batch)) for batch in stored)
    ways = (ComputedWith(how={"dtype": "float32"}, batches=len(stored)),) if stored else ()
    assert proof.computed == ways
    assert load_proof(store, run.run_id) == proof
    assert {file.key for file in proof.files} == {info.key for info in store.list("")} - {
        complete_key(run.run_id)
    }
    for file in proof.files:
        content = store.read(file.key)
        assert (len(content), checksum_of(content)) == (file.size_bytes, file.checksum)


def test_proving_writes_nothing(store: Store) -> None:
    run = synthetic_run()
    run.write(store)
    before = [info.key for info in store.list("")]
    assert prove(store, run.run_id).stored == 12
    assert [info.key for info in store.list("")] == before
    assert load_proof(store, run.run_id) is None


def test_finishing_twice_changes_no_byte(store: Store) -> None:
    run = synthetic_run()
    run.write(store, quarantined=[1])
    first = finish(store, run.run_id)
    before = {info.key: store.read(info.key) for info in store.list("")}
    assert finish(store, run.run_id) == first
    assert {info.key: store.read(info.key) for info in store.list("")} == before


def test_two_finishers_at_once_agree(store: Store) -> None:
    run = synthetic_run(batches=6)
    run.write(store, quarantined=[2])
    proofs: list[Proof] = []
    start = threading.Barrier(4)

    def one() -> None:
        start.wait(30)
        proofs.append(finish(store, run.run_id))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(proofs) == 4
    assert all(proof == proofs[0] for proof in proofs)
    assert load_proof(store, run.run_id) == proofs[0]


def test_batches_may_arrive_in_any_order(store: Store) -> None:
    run = synthetic_run(batches=6)
    run.prepare(store)
    for arrived, batch in enumerate([4, 0, 5, 2, 1, 3], start=1):
        with pytest.raises(DataError, match=f"{7 - arrived} of 6 batches missing"):
            finish(store, run.run_id)
        store.write(run.key(batch), run.batch_file(batch))
    proof = finish(store, run.run_id)
    other = synthetic_run(batches=6, name="ordered")
    other.write(store)
    assert (proof.rows, proof.stored) == (finish(store, other.run_id).rows, len(run.samples()))
    index = parse_table(store.read(index_key(run.run_id)), "index", INDEX_SCHEMA)
    assert index["batch_id"].to_pylist() == sorted(index["batch_id"].to_pylist())


def test_another_programs_bytes_of_the_same_index_are_kept(store: Store, tmp_path: Path) -> None:
    run = synthetic_run()
    run.write(store)
    finish(store, run.run_id)
    table = pq.read_table(_saved(store, index_key(run.run_id), tmp_path))
    pq.write_table(table, tmp_path / "other.parquet", compression="none", use_dictionary=False)
    other = (tmp_path / "other.parquet").read_bytes()
    store.write(index_key(run.run_id), other)
    store.delete(complete_key(run.run_id))
    proof = finish(store, run.run_id)
    assert store.read(index_key(run.run_id)) == other
    assert checksum_of(other) in {file.checksum for file in proof.files}


@pytest.mark.parametrize("stale", [b"not parquet at all", b"of a former state"])
def test_a_stale_index_and_proof_are_replaced(store: Store, stale: bytes) -> None:
    run = synthetic_run()
    run.write(store, quarantined=[0])
    former = finish(store, run.run_id)
    if stale.startswith(b"not"):
        store.write(index_key(run.run_id), stale)
    store.write(run.key(0), run.batch_file(0))
    proof = finish(store, run.run_id)
    assert former.quarantined == 4
    assert (proof.stored, proof.quarantined) == (12, 0)
    assert load_proof(store, run.run_id) == proof
    assert verify(store, run.run_id, deep=True).proof == proof


def test_index_and_quarantine_say_where_every_sample_is(store: Store, tmp_path: Path) -> None:
    run = synthetic_run()
    run.write(store, quarantined=[1])
    finish(store, run.run_id)
    index = pq.read_table(_saved(store, index_key(run.run_id), tmp_path)).to_pylist()
    offset = 0
    expected = []
    for batch in (0, 2):
        offset = 0
        for position, sample in enumerate(run.batches[batch]):
            expected.append(
                {
                    "sample_id": sample.sample_id,
                    "source_row": sample.source_row,
                    "file": f"batches/00000{batch}.safetensors",
                    "batch_id": batch,
                    "position": position,
                    "token_offset": offset,
                    "length": len(sample.input_ids),
                }
            )
            offset += len(sample.input_ids)
    assert index == expected
    quarantine = pq.read_table(_saved(store, quarantine_key(run.run_id), tmp_path)).to_pylist()
    assert quarantine == [
        {
            "sample_id": sample.sample_id,
            "source_row": sample.source_row,
            "batch_id": 1,
            "reason": "hidden states are not finite",
        }
        for sample in run.batches[1]
    ]


def test_a_file_beside_a_note_counts_and_the_note_does_not(store: Store) -> None:
    run = synthetic_run()
    run.write(store)
    store.write(quarantine_note_key(run.run_id, 1), run.note(1))
    proof = finish(store, run.run_id)
    assert (proof.stored, proof.quarantined) == (12, 0)
    assert quarantine_note_key(run.run_id, 1) not in {file.key for file in proof.files}


def test_gaps_are_the_batches_with_neither_file_nor_note(store: Store) -> None:
    run = synthetic_run(batches=5)
    run.write(store, batches=[0, 3], quarantined=[1])
    assert completion_gaps(store, load_document(store, run.run_id)) == [2, 4]
    with pytest.raises(DataError, match=r"is not complete: 2 of 5 batches missing \(2, 4\)"):
        finish(store, run.run_id)
    assert store.head(index_key(run.run_id)) is None
    assert store.head(complete_key(run.run_id)) is None


def test_runs_of_one_store_do_not_mix(store: Store) -> None:
    first, second = synthetic_run(seed=1), synthetic_run(seed=2)
    first.write(store)
    second.write(store, batches=[0])
    assert prove(store, first.run_id).stored == 12
    assert completion_gaps(store, second.document) == [1, 2]


def test_progress_is_told_batch_by_batch() -> None:
    store, run = MemoryStore(), synthetic_run(batches=4)
    run.write(store)
    seen: list[tuple[int, int]] = []
    prove(store, run.run_id, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_run_document_is_in_the_proof() -> None:
    store, run = MemoryStore(), synthetic_run()
    run.write(store)
    files = {file.key: file for file in prove(store, run.run_id).files}
    own = files[run_document_key(run.run_id)]
    assert own.checksum == checksum_of(msgspec.json.encode(run.document))


def _saved(store: Store, key: str, folder: Path) -> Path:
    path = folder / "saved.parquet"
    path.write_bytes(store.read(key))
    return path
