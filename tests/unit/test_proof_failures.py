"""Every way in which a run may not be what its plan says: no proof, and one sentence that says why."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import DataError
from hiddenfeed.layout import (
    batches_prefix,
    complete_key,
    index_key,
    quarantine_note_key,
    quarantine_prefix,
    run_document_key,
    skipped_key,
    tokens_key,
)
from hiddenfeed.proof import finish, load_proof
from hiddenfeed.run import StoredFile, fingerprint
from hiddenfeed.store.memory import MemoryStore
from tests.synthetic_run import (
    SyntheticRun,
    SyntheticSample,
    encode_batch,
    encode_plan,
    encode_skipped,
    synthetic_run,
)

RUN = synthetic_run()
KEY = RUN.key(1)


class _Refusal:
    """Writes a run, lets the test damage it, and expects `finish` to refuse and to write nothing."""

    def __init__(self, run: SyntheticRun = RUN, quarantined: Sequence[int] = ()) -> None:
        self.run, self.store = run, MemoryStore()
        run.write(self.store, quarantined=quarantined)

    def expect(self, reason: str) -> None:
        before = {info.key: self.store.read(info.key) for info in self.store.list("")}
        with pytest.raises(DataError, match=reason) as caught:
            finish(self.store, self.run.run_id)
        assert "\n" not in str(caught.value)
        assert {info.key: self.store.read(info.key) for info in self.store.list("")} == before


def _replaced(run: SyntheticRun, **changes: Any) -> SyntheticRun:
    """The run with another plan or skipped file, its document true to them."""
    changed = dataclasses.replace(run, **changes)
    document = msgspec.structs.replace(
        run.document,
        tokens=_stored(tokens_key(run.run_id), changed.tokens_file),
        skipped=_stored(skipped_key(run.run_id), changed.skipped_file),
    )
    return dataclasses.replace(changed, document=document)


def _stored(key: str, data: bytes) -> StoredFile:
    return StoredFile(key=key, size_bytes=len(data), checksum=checksum_of(data))


def _with_batches(run: SyntheticRun, batches: tuple[tuple[SyntheticSample, ...], ...]) -> SyntheticRun:
    return _replaced(run, batches=batches, tokens_file=encode_plan(batches))


def _row(sample: SyntheticSample, row: int) -> SyntheticSample:
    return dataclasses.replace(sample, source_row=row)


# --- batch files ---


def test_a_missing_batch() -> None:
    refusal = _Refusal()
    refusal.store.delete(KEY)
    refusal.expect(r"1 of 3 batches missing \(1\)")


@pytest.mark.parametrize("kept", [1, 100, 4095, 4096, 4500, -1])
def test_a_truncated_batch(kept: int) -> None:
    refusal = _Refusal()
    refusal.store.write(KEY, RUN.batch_file(1)[:kept])
    refusal.expect(f"^{KEY} ")


def test_a_batch_with_something_behind_it() -> None:
    refusal = _Refusal()
    refusal.store.write(KEY, RUN.batch_file(1) + b"\0")
    refusal.expect(f"^{KEY} is .* bytes long, and its header says")


def test_a_file_of_zeros() -> None:
    refusal = _Refusal()
    refusal.store.write(KEY, bytes(len(RUN.batch_file(1))))
    refusal.expect(f"^{KEY} is no batch file")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run_id", "other-0123456789ab"),
        ("batch_id", 2),
        ("model", "example/other"),
        ("model_revision", None),
        ("taps", (0, 1, 3)),
        ("dtype", "float16"),
    ],
)
def test_a_foreign_batch(name: str, value: Any) -> None:
    refusal = _Refusal()
    layout = RUN.layout(1)
    foreign = dataclasses.replace(layout, facts=msgspec.structs.replace(layout.facts, **{name: value}))
    refusal.store.write(KEY, encode_batch(foreign, RUN.tensors(1)))
    refusal.expect(f"^{KEY} is not the planned batch: {name} is ")


def test_another_batch_of_the_run_under_the_key() -> None:
    refusal = _Refusal()
    refusal.store.write(KEY, RUN.batch_file(2))
    refusal.expect(f"^{KEY} is not the planned batch: batch_id is 2, not 1")


def test_another_shape() -> None:
    refusal = _Refusal()
    wide = synthetic_run(hidden_size=16)
    layout = dataclasses.replace(wide.layout(1), facts=_of(wide, 1, run_id=RUN.run_id))
    refusal.store.write(KEY, encode_batch(layout, wide.tensors(1)))
    refusal.expect("hidden_size is 16, not 8")


def test_a_batch_with_a_sample_less() -> None:
    refusal = _Refusal()
    short = dataclasses.replace(RUN, batches=(RUN.batches[0], RUN.batches[1][:-1], RUN.batches[2]))
    refusal.store.write(KEY, short.batch_file(1))
    refusal.expect("samples is 3, not 4")


def test_wrong_rows() -> None:
    refusal = _Refusal()
    tensors = RUN.tensors(1)
    tensors["sample_index"] = tensors["sample_index"][::-1]
    refusal.store.write(KEY, encode_batch(RUN.layout(1), tensors))
    refusal.expect(f"^{KEY}: sample_index.0. is .* the plan's source row is")


def test_wrong_offsets() -> None:
    refusal = _Refusal()
    tensors = RUN.tensors(1)
    tensors["offsets"] = np.sort(tensors["offsets"] + np.array([0, 0, 1, 0, 0]))
    refusal.store.write(KEY, encode_batch(RUN.layout(1), tensors))
    refusal.expect(f"^{KEY}: offsets.2. is .* the plan's token offset is")


def test_states_that_changed_after_the_header_was_written() -> None:
    refusal = _Refusal()
    data = bytearray(RUN.batch_file(1))
    data[5000 if len(data) > 5000 else 4100] ^= 1
    refusal.store.write(KEY, bytes(data))
    refusal.expect(f"^{KEY} has checksum .* in the store, not ")


@pytest.mark.parametrize("text", ["nonsense", "md5:AAAA", "crc32:AAAAAA=="])
def test_checksums_that_cannot_be_used(text: str) -> None:
    refusal = _Refusal()
    data = RUN.batch_file(1)
    document = json.loads(data[8:4096])
    document["__metadata__"]["checksum.offsets"] = text
    header = struct.pack("<Q", 4088) + json.dumps(document).encode().ljust(4088)
    refusal.store.write(KEY, header + data[4096:])
    refusal.expect(f"^{KEY} has unusable checksums in its header")


@pytest.mark.parametrize(
    "name", ["000003.safetensors", "000001.safetensors.part", "0000001.safetensors", "notes.txt"]
)
def test_a_file_that_no_plan_names(name: str) -> None:
    refusal = _Refusal()
    refusal.store.write(f"{batches_prefix(RUN.run_id)}{name}", b"x")
    refusal.expect(f"{name} does not belong there")


# --- quarantine notes ---


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda note: note.update(source_rows=note["source_rows"][1:]), "names other source rows"),
        (lambda note: note["source_rows"].append(note["source_rows"][0]), "names other source rows"),
        (lambda note: note.update(run_id="other"), "a note on batch 1 of run other"),
        (lambda note: note.update(batch_id=0), "a note on batch 0 of run"),
        (lambda note: note.pop("reason"), "is not a quarantine note"),
        (lambda note: note.update(more=1), "is not a quarantine note"),
        (lambda note: note.update(reasons=["one"]), "has 1 reason for 4 source rows"),
    ],
)
def test_a_note_that_is_not_of_its_batch(change: Callable[[dict[str, Any]], Any], reason: str) -> None:
    refusal = _Refusal(quarantined=[1])
    note = json.loads(RUN.note(1))
    change(note)
    refusal.store.write(quarantine_note_key(RUN.run_id, 1), json.dumps(note).encode())
    refusal.expect(f"^{quarantine_note_key(RUN.run_id, 1)} .*{reason}")


@pytest.mark.parametrize("data", [b"\xff", b"[" * 100_000, b"x" * (17 * 1024 * 1024)])
def test_a_note_that_is_no_note(data: bytes) -> None:
    refusal = _Refusal(quarantined=[1])
    refusal.store.write(quarantine_note_key(RUN.run_id, 1), data)
    refusal.expect(f"^{quarantine_note_key(RUN.run_id, 1)} .*quarantine note")


def test_a_note_that_no_plan_names() -> None:
    refusal = _Refusal()
    refusal.store.write(f"{quarantine_prefix(RUN.run_id)}000009.json", b"{}")
    refusal.expect("000009.json does not belong there")


# --- plan, skipped rows and document ---


def test_a_row_in_two_batches() -> None:
    twice = RUN.batches[0][0].source_row
    last = (*RUN.batches[2][:-1], _row(RUN.batches[2][-1], twice))
    run = _with_batches(RUN, (*RUN.batches[:2], last))
    _Refusal(run).expect(r"source row \d+ is (in batch 0 and batch 2|nowhere).*\(2 rows")


def test_a_row_twice_in_a_batch() -> None:
    rows = [sample.source_row for sample in RUN.samples()]
    missing = RUN.batches[0][1].source_row
    assert missing in rows
    first = (RUN.batches[0][0], _row(RUN.batches[0][1], RUN.batches[0][0].source_row), *RUN.batches[0][2:])
    run = _with_batches(RUN, (first, *RUN.batches[1:]))
    _Refusal(run).expect(r"source row \d+ is (in batch 0 and batch 0|nowhere)")


def test_a_row_both_stored_and_skipped() -> None:
    row = RUN.batches[0][0].source_row
    planned = {sample.source_row for sample in RUN.samples()}
    kept = next(row for row in range(14) if row not in planned)
    run = _replaced(RUN, skipped_file=encode_skipped([kept, row]))
    _Refusal(run).expect(r"source row \d+ is (in skipped.parquet and batch 0|nowhere)")


def test_a_row_both_quarantined_and_skipped() -> None:
    run = _replaced(RUN, skipped_file=encode_skipped([RUN.batches[1][0].source_row] * 2))
    _Refusal(run, quarantined=[1]).expect("source row")


def test_a_row_that_is_nowhere() -> None:
    planned = {sample.source_row for sample in RUN.samples()}
    kept = [row for row in range(14) if row not in planned][:1]
    run = _replaced(RUN, skipped_file=encode_skipped(kept))
    _Refusal(run).expect("nowhere: neither stored, skipped nor quarantined")


@pytest.mark.parametrize("row", [14, 2**40, -1])
def test_a_row_that_the_input_has_not(row: int) -> None:
    run = _with_batches(RUN, ((_row(RUN.batches[0][0], row), *RUN.batches[0][1:]), *RUN.batches[1:]))
    _Refusal(run).expect(f"has 14 input rows, and source row {row} is in batch 0")


def test_a_plan_of_other_batches_than_the_document_says() -> None:
    run = _with_batches(RUN, RUN.batches[:2])
    refusal = _Refusal()
    run.prepare(refusal.store)
    refusal.store.write(run_document_key(RUN.run_id), msgspec.json.encode(run.document))
    refusal.expect("plans 8 samples in 2 batches, and the run document says 12 in 3")


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (tokens_key(RUN.run_id), "is missing"),
        (skipped_key(RUN.run_id), "is missing"),
        (run_document_key(RUN.run_id), "there is no run"),
    ],
)
def test_a_missing_document(key: str, reason: str) -> None:
    refusal = _Refusal()
    refusal.store.delete(key)
    refusal.expect(reason)


@pytest.mark.parametrize("key", [tokens_key(RUN.run_id), skipped_key(RUN.run_id)])
@pytest.mark.parametrize(("add", "reason"), [(b"x", "bytes long, not"), (b"", "has checksum")])
def test_an_altered_document(key: str, add: bytes, reason: str) -> None:
    refusal = _Refusal()
    data = bytearray(refusal.store.read(key))
    data[40] ^= 1
    refusal.store.write(key, bytes(data) + add)
    refusal.expect(f"^{key} .*{reason}")


@pytest.mark.parametrize("what", ["tokens", "skipped"])
def test_a_document_that_is_no_parquet(what: str) -> None:
    run = _replaced(RUN, **{f"{what}_file": b"PAR1 not really PAR1"})
    _Refusal(run).expect(f"{what}.parquet is not a parquet file that can be read")


@pytest.mark.parametrize("what", ["tokens", "skipped"])
def test_a_document_of_other_columns(what: str) -> None:
    other = {"tokens": RUN.skipped_file, "skipped": RUN.tokens_file}[what]
    run = _replaced(RUN, **{f"{what}_file": other})
    _Refusal(run).expect(f"{what}.parquet must have a column")


@pytest.mark.parametrize("data", [b"{}", b"\xff", b"[" * 100_000])
def test_a_run_document_that_is_none(data: bytes) -> None:
    refusal = _Refusal()
    refusal.store.write(run_document_key(RUN.run_id), data)
    refusal.expect("is not a run document this version reads")


def test_a_run_document_whose_identity_was_altered() -> None:
    identity = msgspec.structs.replace(RUN.document.identity, seed=99)
    assert fingerprint(identity) != RUN.document.fingerprint
    refusal = _Refusal()
    altered = msgspec.structs.replace(RUN.document, identity=identity)
    refusal.store.write(run_document_key(RUN.run_id), msgspec.json.encode(altered))
    refusal.expect("the fingerprint does not match")


def test_the_document_of_another_run() -> None:
    refusal = _Refusal()
    other = synthetic_run(seed=5)
    refusal.store.write(run_document_key(RUN.run_id), msgspec.json.encode(other.document))
    refusal.expect(f"is the document of another run, {other.run_id}")


# --- complete.json ---


@pytest.mark.parametrize(
    ("data", "reason"), [(b"{}", "is not a proof this version reads"), (b"\xff", "is not a proof")]
)
def test_a_proof_that_cannot_be_read(data: bytes, reason: str) -> None:
    store = MemoryStore()
    store.write(complete_key(RUN.run_id), data)
    with pytest.raises(DataError, match=reason):
        load_proof(store, RUN.run_id)


def test_the_proof_of_another_run() -> None:
    store, other = MemoryStore(), synthetic_run(seed=5)
    other.write(store)
    finish(store, other.run_id)
    store.write(complete_key(RUN.run_id), store.read(complete_key(other.run_id)))
    with pytest.raises(DataError, match="is the proof of another run"):
        load_proof(store, RUN.run_id)


def test_nothing_is_written_before_the_proof_holds() -> None:
    refusal = _Refusal()
    refusal.store.write(KEY, RUN.batch_file(2))
    refusal.expect("is not the planned batch")
    assert refusal.store.head(index_key(RUN.run_id)) is None


def _of(run: SyntheticRun, batch_id: int, **changes: Any) -> Any:
    return msgspec.structs.replace(run.layout(batch_id).facts, **changes)
