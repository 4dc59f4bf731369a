"""Verifying a run after the fact: the proof anew, complete.json against it, and every byte if asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from hiddenfeed.batch_file import read_header, read_range
from hiddenfeed.checksum import RunningChecksum, checksum_of, parse
from hiddenfeed.errors import DataError
from hiddenfeed.evidence import BatchEvidence, read_whole, stored_checksums
from hiddenfeed.index_file import INDEX_SCHEMA, QUARANTINE_SCHEMA
from hiddenfeed.layout import complete_key, index_key, quarantine_key
from hiddenfeed.parallel import map_bounded
from hiddenfeed.plan_file import PlanFile, parse_table
from hiddenfeed.proof import Evidence, Proof, collect, load_proof, proof_of
from hiddenfeed.run import StoredFile
from hiddenfeed.store.base import Store

#: Called with (what is looked at, how many are done, how many there are).
Progress = Callable[[str, int, int], None]

_CHUNK_BYTES = 8 * 1024 * 1024
#: Files read whole at a time; each holds one chunk.
_DEEP_THREADS = 8


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; a run that is not in order raises instead."""

    proof: Proof
    #: Whether complete.json is there; it then says the same as the proof.
    finished: bool
    #: Bytes that were read and summed; 0 unless deep.
    bytes_read: int


def verify(
    store: Store, run_id: str, *, deep: bool = False, progress: Progress | None = None
) -> Verification:
    """Prove the run anew from the store; with `deep` read every file and check every tensor's checksum.

    Deep also compares the whole file with the checksum that it was stored with, where the store tells one, and
    the token ids and masks of every batch with the plan. Raises DataError with the first thing that is wrong.
    """
    report = progress or _silent
    evidence = collect(store, run_id, progress=lambda done, total: report("batches", done, total))
    written = load_proof(store, run_id)
    derived = [] if written is None else _check_written(store, evidence, written)
    bytes_read = _read_everything(store, evidence, report) if deep else 0
    return Verification(
        proof=proof_of(evidence, derived), finished=written is not None, bytes_read=bytes_read
    )


def _check_written(store: Store, evidence: Evidence, written: Proof) -> list[StoredFile]:
    """complete.json, index.parquet and quarantine.parquet say what the proof says; returns the two files."""
    run_id = evidence.document.run_id
    by_key = {file.key: file for file in written.files}
    derived = []
    for key, schema, expected in (
        (index_key(run_id), INDEX_SCHEMA, evidence.index()),
        (quarantine_key(run_id), QUARANTINE_SCHEMA, evidence.quarantine()),
    ):
        if key not in by_key:
            raise DataError(f"{complete_key(run_id)} does not name {key}")
        if not parse_table(read_whole(store, by_key[key]), key, schema).equals(expected):
            raise DataError(f"{key} does not say what the batch files and the plan say")
        derived.append(by_key[key])
    proof = proof_of(evidence, derived)
    if proof != written:
        raise DataError(f"{complete_key(run_id)} does not match the store: {_difference(written, proof)}")
    return derived


def _difference(written: Proof, proof: Proof) -> str:
    """The first way in which complete.json differs."""
    for name, old in msgspec.structs.asdict(written).items():
        new = getattr(proof, name)
        if name != "files" and old != new:
            return f"{name} is {old!r} there and {new!r} in the store"
    for file in sorted({*written.files} ^ {*proof.files}, key=lambda file: file.key):
        return f"{file.key} is another file now"
    return "the order of files differs"


def _read_everything(store: Store, evidence: Evidence, report: Progress) -> int:
    """Every byte of the run's files against its checksum; returns how many bytes."""
    document = evidence.document
    plan = PlanFile(store, document.run_id)
    total = 0
    for file in (document.tokens, *(batch.file for batch in evidence.notes)):
        total += _check_checksum(store, file)
    stored = [batch for batch, _ in evidence.stored]
    sizes = map_bounded(lambda batch: read_batch(store, plan, batch), stored, _DEEP_THREADS)
    for done, size in enumerate(sizes, 1):
        total += size
        report("files read", done, len(stored))
    return total


def read_batch(store: Store, plan: PlanFile, batch: BatchEvidence) -> int:
    """One batch file tensor by tensor, and as a whole where the object tells its checksum.

    Raises DataError naming the file, and the tensor if it is one. What the header says for people has no
    checksum but that of the whole.
    """
    info = store.head(batch.file.key)
    if info is None:
        raise DataError(f"{batch.file.key} is missing")
    header, raw = read_header(store, info)
    wholes = {told: RunningChecksum(parse(told)[0]) for told in stored_checksums(info)}
    for whole in wholes.values():
        whole.update(raw)
    for place in header.layout.tensors:
        expected = header.checksums[place.name]
        tensor = RunningChecksum(parse(expected)[0])
        for chunk in _chunks(store, info.key, place.start, place.size_bytes):
            for running in (tensor, *wholes.values()):
                running.update(chunk)
        if tensor.value != expected:
            raise DataError(
                f"{info.key}: {place.name} has checksum {tensor.value}, and its header says {expected}"
            )
    for told, whole in wholes.items():
        if whole.value != told:
            raise DataError(f"{info.key} has checksum {whole.value}, and was stored with {told}")
    ids, mask = plan.tokens(batch.planned.batch_id)
    if batch.set_aside:
        rows = [sample.source_row for sample in batch.set_aside]
        held = np.repeat(~batch.planned.places_of(rows), batch.planned.lengths)
        ids, mask = ids[held], mask[held]
    for name, planned in (("input_ids", ids.tobytes()), ("loss_mask", mask.tobytes())):
        expected = header.checksums[name]
        if checksum_of(planned, parse(expected)[0]) != expected:
            raise DataError(f"{info.key}: {name} differ from the plan's")
    return info.size_bytes


def _check_checksum(store: Store, file: StoredFile) -> int:
    found = _checksum_of_range(store, file.key, 0, file.size_bytes, parse(file.checksum)[0])
    if found != file.checksum:
        raise DataError(f"{file.key} has checksum {found}, not {file.checksum}")
    return file.size_bytes


def _checksum_of_range(store: Store, key: str, start: int, length: int, algorithm: str) -> str:
    running = RunningChecksum(algorithm)
    for chunk in _chunks(store, key, start, length):
        running.update(chunk)
    return running.value


def _chunks(store: Store, key: str, start: int, length: int) -> Iterator[bytes]:
    for chunk in range(start, start + length, _CHUNK_BYTES):
        yield read_range(store, key, chunk, min(_CHUNK_BYTES, start + length - chunk))


def _silent(what: str, done: int, total: int) -> None:
    """Tells nobody."""
