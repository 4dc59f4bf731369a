"""Verification after the fact: what a plain one sees, and what only reading every byte shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from hiddenfeed.checksum import ALGORITHM, CRC32, checksum_of
from hiddenfeed.errors import DataError
from hiddenfeed.index_file import encode_table, index_table
from hiddenfeed.layout import complete_key, index_key, quarantine_key, tokens_key
from hiddenfeed.plan_file import PlanFile
from hiddenfeed.proof import Proof, finish, load_proof
from hiddenfeed.run import StoredFile
from hiddenfeed.store.base import ObjectInfo
from hiddenfeed.store.directory import DirectoryStore
from hiddenfeed.store.memory import MemoryStore
from hiddenfeed.store.s3_judge import declared
from hiddenfeed.verify import verify
from tests.synthetic_run import SyntheticRun, encode_batch, synthetic_run

RUN = synthetic_run(final_state="post")


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """A finished run; a folder keeps no checksums, so only reading shows a changed byte."""
    store = DirectoryStore(tmp_path)
    RUN.write(store, quarantined=[1])
    finish(store, RUN.run_id)
    return store


@pytest.mark.parametrize("deep", [False, True])
def test_a_finished_run_is_verified(store: DirectoryStore, deep: bool) -> None:
    verification = verify(store, RUN.run_id, deep=deep)
    assert verification.finished
    assert verification.proof == load_proof(store, RUN.run_id)
    expected = sum(len(RUN.batch_file(batch)) for batch in (0, 2)) + len(RUN.tokens_file) + len(RUN.note(1))
    assert verification.bytes_read == (expected if deep else 0)


def test_a_complete_run_without_its_proof_is_verified(store: DirectoryStore) -> None:
    store.delete(complete_key(RUN.run_id))
    assert not verify(store, RUN.run_id).finished


def test_an_incomplete_run_is_not(store: DirectoryStore) -> None:
    store.delete(RUN.key(0))
    with pytest.raises(DataError, match="is not complete: 1 of 3 batches"):
        verify(store, RUN.run_id)


@pytest.mark.parametrize("tensor", ["hidden_states", "final_hidden_states", "input_ids", "loss_mask"])
def test_only_reading_every_byte_shows_a_changed_one_in_a_folder(store: DirectoryStore, tensor: str) -> None:
    path = store.root / RUN.key(2)
    data = bytearray(path.read_bytes())
    data[RUN.layout(2).tensor(tensor).end - 1] ^= 1
    path.write_bytes(data)
    verify(store, RUN.run_id)
    with pytest.raises(DataError, match=f"{RUN.key(2)}: {tensor} has checksum .* and its header says"):
        verify(store, RUN.run_id, deep=True)


class TellingStore(DirectoryStore):
    """Tells what objects were stored with, as S3 does: its own checksum, or the one in their metadata."""

    def __init__(self, root: Path, told: dict[str, ObjectInfo]) -> None:
        super().__init__(root)
        self._told = told

    def head(self, key: str, *, checksum: bool = False) -> ObjectInfo | None:
        return self._told.get(key) or super().head(key, checksum=checksum)


@pytest.mark.parametrize("algorithm", [ALGORITHM, CRC32])
@pytest.mark.parametrize("by", ["store", "metadata"])
def test_a_changed_statistic_in_a_header_is_seen_where_the_object_tells_its_checksum(
    store: DirectoryStore, by: str, algorithm: str
) -> None:
    """Nothing else speaks of it, as long as there is no complete.json."""
    store.delete(complete_key(RUN.run_id))
    key = RUN.key(2)
    path, data = store.root / key, RUN.batch_file(2)
    checksum = checksum_of(data, algorithm)
    info = ObjectInfo(key=key, size_bytes=len(data), checksum=checksum if by == "store" else None)
    if by == "metadata":
        info = msgspec.structs.replace(info, metadata=declared(len(data), checksum))
    telling = TellingStore(store.root, {key: info})
    verify(telling, RUN.run_id, deep=True)
    value = data.index(b'"guard.') + data[data.index(b'"guard.') :].index(b'":"') + 3
    path.write_bytes(data[:value] + bytes([data[value] ^ 1]) + data[value + 1 :])
    verify(store, RUN.run_id, deep=True)
    with pytest.raises(DataError, match=f"^{key} has checksum"):
        verify(telling, RUN.run_id, deep=True)


def test_a_checksum_that_an_object_tells_and_is_none_is_named(store: DirectoryStore) -> None:
    key = RUN.key(2)
    info = ObjectInfo(key=key, size_bytes=len(RUN.batch_file(2)), metadata=declared(1, "crc99:?"))
    with pytest.raises(DataError, match=f"^{key} was stored with an unusable checksum"):
        verify(TellingStore(store.root, {key: info}), RUN.run_id)


@pytest.mark.parametrize("tensor", ["input_ids", "loss_mask"])
def test_other_tokens_than_planned_are_seen_even_with_true_checksums(
    store: DirectoryStore, tensor: str
) -> None:
    tensors = RUN.tensors(2)
    tensors[tensor] = tensors[tensor] ^ np.array(1, tensors[tensor].dtype)
    store.write(RUN.key(2), encode_batch(RUN.layout(2), tensors))
    store.delete(complete_key(RUN.run_id))
    verify(store, RUN.run_id)
    with pytest.raises(DataError, match=f"{RUN.key(2)}: {tensor} differ from the plan's"):
        verify(store, RUN.run_id, deep=True)


def test_a_changed_plan_of_equal_size_is_seen(store: DirectoryStore) -> None:
    path = store.root / tokens_key(RUN.run_id)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"parquet-cpp-arrow")] ^= 1  # Who wrote it: nothing that a reader looks at.
    path.write_bytes(data)
    verify(store, RUN.run_id)
    with pytest.raises(DataError, match=f"{tokens_key(RUN.run_id)} has checksum"):
        verify(store, RUN.run_id, deep=True)


def _edit_proof(change: Callable[[Proof], Proof]) -> Callable[[DirectoryStore, SyntheticRun], None]:
    def edit(store: DirectoryStore, run: SyntheticRun) -> None:
        written = load_proof(store, run.run_id)
        assert written is not None
        store.write(complete_key(run.run_id), msgspec.json.encode(change(written)))

    return edit


def _replaced(**changes: Any) -> Callable[[DirectoryStore, SyntheticRun], None]:
    return _edit_proof(lambda proof: msgspec.structs.replace(proof, **changes))


def _shorter_index(store: DirectoryStore, run: SyntheticRun) -> None:
    """An index that lacks a sample, with a proof that knows it."""
    proof = load_proof(store, run.run_id)
    assert proof is not None
    (store.root / complete_key(run.run_id)).unlink()
    other = synthetic_run(final_state="post", samples_per_batch=3)
    other_store = MemoryStore()
    other.write(other_store)
    finish(other_store, other.run_id)
    data = other_store.read(index_key(other.run_id))
    store.write(index_key(run.run_id), data)
    files = tuple(
        file if file.key != index_key(run.run_id) else _stored(index_key(run.run_id), data)
        for file in proof.files
    )
    store.write(complete_key(run.run_id), msgspec.json.encode(msgspec.structs.replace(proof, files=files)))


def _stored(key: str, data: bytes) -> StoredFile:
    return StoredFile(key=key, size_bytes=len(data), checksum=checksum_of(data))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_replaced(stored=7), "stored is 7 there and 8 in the store"),
        (_replaced(fingerprint="0"), "fingerprint is '0' there"),
        (_replaced(files=()), "does not name .*index.parquet"),
        (_edit_proof(lambda proof: _without_first(proof)), "batches/000000.safetensors is another file now"),
        (_edit_proof(lambda proof: _reversed(proof)), "the order of files differs"),
        (_shorter_index, "index.parquet does not say what the batch files and the plan say"),
        (lambda store, run: store.delete(index_key(run.run_id)), "index.parquet is missing"),
        (lambda store, run: store.delete(quarantine_key(run.run_id)), "quarantine.parquet is missing"),
        (lambda store, run: store.write(quarantine_key(run.run_id), b"x"), "bytes long, not"),
    ],
)
def test_a_proof_that_does_not_match_the_store(
    store: DirectoryStore, damage: Callable[[DirectoryStore, SyntheticRun], None], reason: str
) -> None:
    damage(store, RUN)
    with pytest.raises(DataError, match=reason):
        verify(store, RUN.run_id)


def _without_first(proof: Proof) -> Proof:
    return msgspec.structs.replace(proof, files=proof.files[1:])


def _reversed(proof: Proof) -> Proof:
    return msgspec.structs.replace(proof, files=proof.files[::-1])


def test_progress_names_what_is_looked_at(store: DirectoryStore) -> None:
    seen: list[tuple[str, int, int]] = []
    verify(store, RUN.run_id, deep=True, progress=lambda what, done, total: seen.append((what, done, total)))
    assert seen == [
        ("batches", 1, 3),
        ("batches", 2, 3),
        ("batches", 3, 3),
        ("files read", 1, 2),
        ("files read", 2, 2),
    ]


def test_encoding_a_table_is_repeatable() -> None:
    memory = MemoryStore()
    RUN.write(memory)
    plan = PlanFile(memory, RUN.run_id)
    tables = [index_table(RUN.run_id, [plan.batch(0), plan.batch(2)]) for _ in range(2)]
    assert encode_table(tables[0]) == encode_table(tables[1])
