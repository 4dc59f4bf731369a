"""What speaks for one batch: its file, or the note in its place, held against the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from hiddenfeed.batch_file import (
    BatchFacts,
    BatchHeader,
    SetAside,
    facts_differences,
    read_header,
    read_tensors,
    whole_file_checksum,
)
from hiddenfeed.checksum import checksum_of, parse
from hiddenfeed.errors import DataError, MissingObjectError
from hiddenfeed.plan_file import PlannedBatch
from hiddenfeed.run import RunDocument, StoredFile
from hiddenfeed.store.base import ObjectInfo, Store
from hiddenfeed.store.s3_judge import told_checksums
from hiddenfeed.words import count_text

#: A note lists the rows of one batch and a sentence; a larger object is something else.
MAX_NOTE_BYTES = 16 * 1024 * 1024


class QuarantineNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a batch could not be extracted, stored as JSON in place of its file."""

    run_id: str
    batch_id: int
    reason: str
    #: Rows of the batch's samples in the input.
    source_rows: tuple[int, ...]
    #: A reason for each of the rows; empty if `reason` is that of all.
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class BatchEvidence:
    """One planned batch and the object that accounts for it."""

    planned: PlannedBatch
    file: StoredFile
    #: The samples that the batch file holds; None for a batch with a note in place of its file.
    stored: PlannedBatch | None
    #: The samples that could not be extracted, whether a note names them or the file itself.
    set_aside: tuple[SetAside, ...]
    #: What the states of the file were computed with, as its metadata says.
    computed: Mapping[str, str] = field(default_factory=dict)


def file_evidence(
    store: Store, document: RunDocument, planned: PlannedBatch, info: ObjectInfo
) -> BatchEvidence:
    """The batch's file is whole, of this run and of the planned samples; raises DataError naming it if not.

    Reads the header and the index tensors, and what the store says of the object's checksum.
    """
    header, raw = read_header(store, info)
    stored = stored_part(planned, header, info.key)
    check_facts(document, stored, header, info.key)
    found = read_tensors(store, info.key, header.layout, "offsets", "sample_index")
    _check_equal(info.key, "sample_index", found["sample_index"], stored.source_rows, "the plan's source row")
    _check_equal(info.key, "offsets", found["offsets"], stored.offsets, "the plan's token offset")
    try:
        checksum = whole_file_checksum(raw, header.layout, header.checksums)
    except DataError as error:
        raise DataError(f"{info.key} has unusable checksums in its header: {error}") from None
    file = StoredFile(key=info.key, size_bytes=info.size_bytes, checksum=checksum)
    check_object(store, file)
    return BatchEvidence(planned, file, stored, header.facts.set_aside, header.computed)


def note_evidence(
    store: Store, document: RunDocument, planned: PlannedBatch, info: ObjectInfo
) -> BatchEvidence:
    """The note is of this batch and names its samples; raises DataError naming it if not."""
    if info.size_bytes > MAX_NOTE_BYTES:
        raise DataError(f"{info.key} is {info.size_bytes} bytes long, too much for a quarantine note")
    data = store.read(info.key)
    try:
        note = msgspec.json.decode(data, type=QuarantineNote)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"{info.key} is not a quarantine note: {error}") from None
    if (note.run_id, note.batch_id) != (document.run_id, planned.batch_id):
        raise DataError(f"{info.key} is a note on batch {note.batch_id} of run {note.run_id}")
    if sorted(note.source_rows) != sorted(planned.source_rows.tolist()):
        raise DataError(f"{info.key} names other source rows than the plan of batch {planned.batch_id}")
    if note.reasons and len(note.reasons) != len(note.source_rows):
        raise DataError(
            f"{info.key} has {count_text(len(note.reasons), 'reason')} for {count_text(len(note.source_rows), 'source row')}"
        )
    file = StoredFile(key=info.key, size_bytes=len(data), checksum=checksum_of(data))
    reasons = note.reasons or (note.reason,) * len(note.source_rows)
    set_aside = tuple(SetAside(*pair) for pair in zip(note.source_rows, reasons, strict=True))
    return BatchEvidence(planned, file, None, set_aside)


def stored_part(planned: PlannedBatch, header: BatchHeader, key: str) -> PlannedBatch:
    """The samples of the plan that a batch file holds: all but those that it says it set aside.

    Raises DataError naming `key` if it set aside what is not of the batch, or one sample twice.
    """
    rows = [sample.source_row for sample in header.facts.set_aside]
    if not rows:
        return planned
    places = planned.places_of(rows)
    if int(places.sum()) != len(rows):
        raise DataError(
            f"{key} sets aside source rows that are not those of batch {planned.batch_id}: {rows[:5]}"
        )
    return planned.take(~places)


def check_facts(document: RunDocument, stored: PlannedBatch, header: BatchHeader, key: str) -> None:
    """Raises DataError naming `key` unless the header is that of this batch of this run, with these samples."""
    expected = BatchFacts.of_run(
        document,
        stored.batch_id,
        tokens=stored.tokens,
        samples=stored.samples,
        set_aside=header.facts.set_aside,
    )
    differences = facts_differences(header.facts, expected)
    if differences:
        raise DataError(f"{key} is not the planned batch: {'; '.join(differences)}")


def check_object(store: Store, file: StoredFile) -> None:
    """The object is there, of this size and, where it tells a comparable one, this checksum."""
    info = store.head(file.key)
    if info is None:
        raise DataError(f"{file.key} is missing")
    if info.size_bytes != file.size_bytes:
        raise DataError(f"{file.key} is {info.size_bytes} bytes long, not {file.size_bytes}")
    for told in stored_checksums(info):
        comparable = parse(told)[0] == parse(file.checksum)[0]
        # Else reading the object whole would tell; that is what a deep verification does.
        if comparable and told != file.checksum:
            raise DataError(f"{file.key} has checksum {told} in the store, not {file.checksum}")


def stored_checksums(info: ObjectInfo) -> list[str]:
    """The checksums that an object was stored with, as far as the store tells; raises DataError naming it if one is none."""
    told = told_checksums(info)
    try:
        for checksum in told:
            parse(checksum)
    except DataError as error:
        raise DataError(f"{info.key} was stored with an unusable checksum: {error}") from None
    return told


def read_whole(store: Store, file: StoredFile) -> bytes:
    """A small object whole; raises DataError if it is missing or not what `file` says."""
    try:
        data = store.read(file.key)
    except MissingObjectError:
        raise DataError(f"{file.key} is missing") from None
    if len(data) != file.size_bytes:
        raise DataError(f"{file.key} is {len(data)} bytes long, not {file.size_bytes}")
    found = checksum_of(data, parse(file.checksum)[0])
    if found != file.checksum:
        raise DataError(f"{file.key} has checksum {found}, not {file.checksum}")
    return data


def _check_equal(
    key: str, tensor: str, found: npt.NDArray[Any], expected: npt.NDArray[np.int64], what: str
) -> None:
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        place = int(wrong[0])
        raise DataError(
            f"{key}: {tensor}[{place}] is {found[place]}, and {what} is {expected[place]} "
            f"({wrong.size} of {expected.size} differ)"
        )
