"""A finished file that no job speaks of, held against its run's plan and given a message of its own again."""

from __future__ import annotations

from pathlib import PurePosixPath

from common.messages import BatchReport, ExtractBatch, UploadFile
from common.spool import Spool, SpoolFile
from hiddenfeed.evidence import file_evidence, note_evidence
from hiddenfeed.layout import batch_key, quarantine_note_key, tokens_key
from hiddenfeed.plan_file import PlannedBatch
from hiddenfeed.run import RunDocument
from hiddenfeed.store.base import ObjectInfo
from hiddenfeed.store.directory import DirectoryStore

#: Who wrote the file is known to nobody any more.
_UNKNOWN = "unknown"


def announcement(spool: Spool, file: SpoolFile, document: RunDocument, planned: PlannedBatch) -> UploadFile:
    """The message that has `file` uploaded, as its writer would have sent it.

    The header, the size, the samples and their order must be those of the planned batch. The
    checksum comes from those in the header, without reading the states: the upload itself
    compares them with the bytes. Raises DataError for a file that is not whole or not the
    batch's, and MissingObjectError for one that is gone.
    """
    # A folder read as a store: what proves a stored object proves this file as well.
    folder, info = DirectoryStore(spool.root), ObjectInfo(key=file.path, size_bytes=file.size_bytes)
    is_note = PurePosixPath(file.path).suffix == ".json"
    evidence = (note_evidence if is_note else file_evidence)(folder, document, planned, info)
    run_id, batch_id = document.run_id, planned.batch_id
    return UploadFile(
        batch=ExtractBatch(
            run_id=run_id,
            batch_id=batch_id,
            tokens=tokens_key(run_id),
            row_group=batch_id,
            samples=planned.samples,
            tokens_total=planned.tokens,
            longest=int(planned.lengths.max()),
        ),
        spool=spool.name,
        path=file.path,
        key=(quarantine_note_key if is_note else batch_key)(run_id, batch_id),
        size_bytes=evidence.file.size_bytes,
        checksum=evidence.file.checksum,
        report=BatchReport(worker=_UNKNOWN, device=_UNKNOWN),
    )
