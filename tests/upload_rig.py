"""Finished files in a spool, and the messages that speak of them, for tests of the uploader."""

from __future__ import annotations

import uuid
from pathlib import Path

from common.messages import BatchReport, ExtractBatch, UploadFile
from common.settings.catalogue import SpoolSettings
from common.spool import Spool
from hiddenfeed.checksum import checksum_of
from hiddenfeed.layout import batch_key, tokens_key

RUN = "run-1"
MIB = 1024 * 1024


def make_spool(folder: Path) -> Spool:
    """A roomy spool named `default`."""
    return Spool(
        SpoolSettings(spool="default", spool_dir=str(folder), spool_cap_bytes=1024 * MIB, spool_free_bytes=0)
    )


def batch(batch_id: int) -> ExtractBatch:
    """The message that extracts a batch."""
    return ExtractBatch(
        run_id=RUN,
        batch_id=batch_id,
        tokens=tokens_key(RUN),
        row_group=batch_id,
        samples=3,
        tokens_total=30,
        longest=20,
    )


def finished_file(spool: Spool, batch_id: int, data: bytes) -> UploadFile:
    """Put `data` into the spool as the file of a batch; returns the message that has it uploaded."""
    part = spool.reserve(RUN, batch_id, uuid.uuid4().hex, len(data))
    assert part is not None
    with part:
        part.write_at(data, 0)
        path = part.publish()
    return UploadFile(
        batch=batch(batch_id),
        spool=spool.name,
        path=path,
        key=batch_key(RUN, batch_id),
        size_bytes=len(data),
        checksum=checksum_of(data),
        report=BatchReport(worker="gpu-1", device="cpu"),
    )
