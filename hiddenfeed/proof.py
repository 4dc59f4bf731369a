"""The proof that a run is complete, computed from the store alone, and the documents that end a run.

Every input row must be in exactly one of: a batch file, skipped.parquet, a quarantine note, or the
samples that a batch file says it set aside. Counters and queues have no say. `finish` writes index.parquet, quarantine.parquet and, last of all,
complete.json; done twice, or by two at once, it leaves the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import DataError, MissingObjectError
from hiddenfeed.evidence import (
    BatchEvidence,
    QuarantineNote,
    check_object,
    file_evidence,
    note_evidence,
    read_whole,
)
from hiddenfeed.index_file import (
    INDEX_SCHEMA,
    QUARANTINE_SCHEMA,
    encode_table,
    index_table,
    quarantine_table,
)
from hiddenfeed.inventory import Inventory, completion_gaps, load_document, take_inventory, way_out
from hiddenfeed.layout import complete_key, index_key, quarantine_key, run_document_key
from hiddenfeed.parallel import map_bounded
from hiddenfeed.plan_file import SKIPPED_SCHEMA, PlanFile, PlannedBatch, parse_table
from hiddenfeed.run import FORMAT_VERSION, RunDocument, StoredFile
from hiddenfeed.store.base import PutOutcome, Store
from hiddenfeed.words import count_text

__all__ = [
    "ComputedWith",
    "Evidence",
    "Proof",
    "QuarantineNote",
    "collect",
    "completion_gaps",
    "finish",
    "load_proof",
    "prove",
]


class ComputedWith(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Batch files whose states were computed in one way."""

    #: `device`, `dtype`, `attention`, `torch` and others, as in the files' metadata.
    how: dict[str, str]
    batches: int


class Proof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """complete.json: rows = stored + skipped + quarantined, and what every file of the run is."""

    format_version: int = FORMAT_VERSION
    run_id: str
    fingerprint: str
    #: Input rows.
    rows: int
    #: Samples in batch files.
    stored: int
    #: Rows that were not planned.
    skipped: int
    #: Samples that could not be extracted.
    quarantined: int
    #: Tokens in batch files.
    tokens: int
    #: Batch files.
    batches: int
    #: Batches without a file, because none of their samples could be extracted.
    quarantined_batches: int
    #: Bytes of all batch files.
    size_bytes: int
    #: Every file of the run but complete.json, in key order.
    files: tuple[StoredFile, ...]
    #: The ways in which batch files were computed, the most frequent first; empty if they do not say.
    computed: tuple[ComputedWith, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """All that a proof rests on, one entry per planned batch in order."""

    document: RunDocument
    batches: tuple[BatchEvidence, ...]
    #: Source rows in skipped.parquet.
    skipped_rows: npt.NDArray[np.int64]
    #: run.json, tokens.parquet, skipped.parquet.
    documents: tuple[StoredFile, ...]

    @property
    def stored(self) -> list[tuple[BatchEvidence, PlannedBatch]]:
        """Batches with a file, each with the samples it holds."""
        return [(batch, batch.stored) for batch in self.batches if batch.stored is not None]

    @property
    def notes(self) -> list[BatchEvidence]:
        """Batches with a note in place of a file."""
        return [batch for batch in self.batches if batch.stored is None]

    def index(self) -> pa.Table:
        """index.parquet as it must be."""
        return index_table(self.document.run_id, (samples for _, samples in self.stored))

    def quarantine(self) -> pa.Table:
        """quarantine.parquet as it must be."""
        return quarantine_table(
            (batch.planned, {sample.source_row: sample.reason for sample in batch.set_aside})
            for batch in self.batches
            if batch.set_aside
        )


def collect(store: Store, run_id: str, *, progress: Callable[[int, int], None] | None = None) -> Evidence:
    """Everything that is planned, held against everything that is stored.

    `progress` is told (batches looked at, batches planned). Raises DataError with the first reason
    why the run is not complete or not what its plan says.
    """
    document = load_document(store, run_id)
    inventory = take_inventory(store, document)
    gaps = inventory.gaps(document.plan.batches)
    if gaps:
        raise DataError(_incomplete(document, gaps))
    check_object(store, document.tokens)
    plan = PlanFile(store, run_id)
    if (plan.batches, plan.samples) != (document.plan.batches, document.plan.samples):
        raise DataError(
            f"{document.tokens.key} plans {count_text(plan.samples, 'sample')} in {count_text(plan.batches, 'batch', 'batches')}, "
            f"and the run document says {document.plan.samples} in {document.plan.batches}"
        )
    batches = []
    for evidence in map_bounded(
        lambda batch: _evidence(store, document, plan, inventory, batch), range(plan.batches)
    ):
        batches.append(evidence)
        if progress:
            progress(len(batches), plan.batches)
    skipped = parse_table(read_whole(store, document.skipped), document.skipped.key, SKIPPED_SCHEMA)
    skipped_rows = skipped["source_row"].combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64)
    _check_rows(document, batches, skipped_rows)
    raw = store.read(run_document_key(run_id))
    own = StoredFile(key=run_document_key(run_id), size_bytes=len(raw), checksum=checksum_of(raw))
    return Evidence(document, tuple(batches), skipped_rows, (own, document.tokens, document.skipped))


def prove(store: Store, run_id: str, *, progress: Callable[[int, int], None] | None = None) -> Proof:
    """The proof from the store alone, index.parquet and quarantine.parquet apart; writes nothing.

    Raises DataError with the first reason why there is none.
    """
    return proof_of(collect(store, run_id, progress=progress), ())


def proof_of(evidence: Evidence, derived: Sequence[StoredFile]) -> Proof:
    """The proof in numbers; `derived` are index.parquet and quarantine.parquet, where they are written."""
    document, stored, notes = evidence.document, evidence.stored, evidence.notes
    files = [*evidence.documents, *derived, *(batch.file for batch in evidence.batches)]
    return Proof(
        run_id=document.run_id,
        fingerprint=document.fingerprint,
        rows=document.plan.rows,
        stored=sum(samples.samples for _, samples in stored),
        skipped=len(evidence.skipped_rows),
        quarantined=sum(len(batch.set_aside) for batch in evidence.batches),
        tokens=sum(samples.tokens for _, samples in stored),
        batches=len(stored),
        quarantined_batches=len(notes),
        size_bytes=sum(batch.file.size_bytes for batch, _ in stored),
        files=tuple(sorted(files, key=lambda file: file.key)),
        computed=_ways(evidence),
    )


def _ways(evidence: Evidence) -> tuple[ComputedWith, ...]:
    found = Counter(tuple(sorted(batch.computed.items())) for batch in evidence.batches if batch.computed)
    ways = sorted(found.items(), key=lambda way: (-way[1], way[0]))
    return tuple(ComputedWith(how=dict(how), batches=batches) for how, batches in ways)


def finish(store: Store, run_id: str, *, progress: Callable[[int, int], None] | None = None) -> Proof:
    """Prove the run and write what ends it; returns what complete.json holds.

    A run that is finished already is proved again and left as it is. Raises DataError, and writes
    nothing, if there is no proof.
    """
    evidence = collect(store, run_id, progress=progress)
    derived = (
        _put_table(store, index_key(run_id), evidence.index(), INDEX_SCHEMA),
        _put_table(store, quarantine_key(run_id), evidence.quarantine(), QUARANTINE_SCHEMA),
    )
    proof = proof_of(evidence, derived)
    data = msgspec.json.format(msgspec.json.encode(proof), indent=1)
    outcome = store.write(complete_key(run_id), data, if_absent=True)
    if outcome is PutOutcome.OTHER_WINS:
        # The proof there is of a former state, say of before a batch set aside was extracted after all.
        store.write(complete_key(run_id), data)
    return proof


def load_proof(store: Store, run_id: str) -> Proof | None:
    """complete.json as it was written, or None; raises DataError if it cannot be read or is another run's."""
    key = complete_key(run_id)
    try:
        proof = msgspec.json.decode(store.read(key), type=Proof)
    except MissingObjectError:
        return None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"{key} is not a proof this version reads: {error}") from None
    if proof.run_id != run_id:
        raise DataError(f"{key} is the proof of another run, {proof.run_id}")
    return proof


def _evidence(
    store: Store, document: RunDocument, plan: PlanFile, inventory: Inventory, batch: int
) -> BatchEvidence:
    planned = plan.batch(batch)
    try:
        if batch in inventory.files:
            return file_evidence(store, document, planned, inventory.files[batch])
        return note_evidence(store, document, planned, inventory.notes[batch])
    except DataError as error:
        raise DataError(
            f"{error}; {way_out(store, document.run_id)}, and the batch is then extracted again"
        ) from None


def _incomplete(document: RunDocument, gaps: Sequence[int]) -> str:
    first = ", ".join(map(str, gaps[:5])) + (", …" if len(gaps) > 5 else "")
    return f"run {document.run_id} is not complete: {len(gaps):,} of {count_text(document.plan.batches, 'batch', 'batches')} missing ({first})"


def _check_rows(
    document: RunDocument, batches: Sequence[BatchEvidence], skipped_rows: npt.NDArray[np.int64]
) -> None:
    """Every input row once: raises DataError naming the first that is not, and where it is."""
    rows = document.plan.rows
    found = np.concatenate([skipped_rows, *(batch.planned.source_rows for batch in batches)])
    outside = found[(found < 0) | (found >= rows)]
    if outside.size:
        raise DataError(
            f"run {document.run_id} has {count_text(rows, 'input row')}, and source row {outside[0]} is in "
            f"{_whereabouts(int(outside[0]), batches, skipped_rows)}"
        )
    counts = np.bincount(found, minlength=rows)
    wrong = np.flatnonzero(counts != 1)
    if wrong.size:
        row = int(wrong[0])
        places = _whereabouts(row, batches, skipped_rows)
        what = f"in {places}" if counts[row] else "nowhere: neither stored, skipped nor quarantined"
        raise DataError(
            f"run {document.run_id}: source row {row} is {what} ({count_text(wrong.size, 'row')} not in exactly one place)"
        )


def _whereabouts(row: int, batches: Sequence[BatchEvidence], skipped_rows: npt.NDArray[np.int64]) -> str:
    places = ["skipped.parquet"] * int((skipped_rows == row).sum())
    for batch in batches:
        places += [f"batch {batch.planned.batch_id}"] * int((batch.planned.source_rows == row).sum())
    return " and ".join(places[:3])


def _put_table(store: Store, key: str, table: pa.Table, schema: pa.Schema) -> StoredFile:
    """Store the table unless an equal one is there; another program's bytes of it are as good."""
    data = encode_table(table)
    if store.write(key, data, if_absent=True) is PutOutcome.OTHER_WINS:
        there = store.read(key)
        if _holds(there, key, table, schema):
            data = there
        else:
            store.write(key, data)
    return StoredFile(key=key, size_bytes=len(data), checksum=checksum_of(data))


def _holds(data: bytes, key: str, table: pa.Table, schema: pa.Schema) -> bool:
    try:
        return bool(parse_table(data, key, schema).equals(table))
    except DataError:
        return False
