"""Finished files in a spool, and the messages that speak of them, for tests of the uploader."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import numpy as np

from common.messages import BatchReport, ExtractBatch, UploadFile
from common.settings.catalogue import SpoolSettings
from common.spool import Spool
from hiddenfeed.batch_file import BatchFacts, BatchLayout
from hiddenfeed.checksum import ALGORITHM, checksum_of
from hiddenfeed.layout import batch_key, tokens_key
from tests.synthetic_run import encode_batch

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


def batch_bytes(batch_id: int, tokens: int = 3000, algorithm: str = ALGORITHM) -> bytes:
    """A whole file of a batch, a little above 1 kB a token: another one each time."""
    facts = BatchFacts(
        run_id=RUN,
        batch_id=batch_id,
        model="model",
        model_revision=None,
        taps=(1,),
        final_norm="none",
        dtype="float32",
        hidden_size=256,
        tokens=tokens,
        samples=3,
    )
    layout = BatchLayout(facts)
    body = {place.name: np.frombuffer(os.urandom(place.size_bytes), np.uint8) for place in layout.tensors}
    return encode_batch(layout, body, algorithm)


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
