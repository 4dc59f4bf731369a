"""A worker that takes batches like a GPU worker and stores made-up states at once: whole files, no model, no spool."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import redis
from redis.client import Pipeline

from common.messages import BatchReport, ExtractBatch, UploadFile, UploadReceipt, parse_message
from common.queues import EXTRACT_FUNCTION, extract_queue_name, queue_counts
from common.run_state import list_runs, note_stored
from common.settings.catalogue import QueueSettings
from common.worker import JobContext, Worker
from hiddenfeed.batch_file import BatchFacts, BatchLayout
from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import DataError
from hiddenfeed.inventory import load_document
from hiddenfeed.layout import batch_key, quarantine_note_key
from hiddenfeed.plan_file import PlanFile
from hiddenfeed.proof import QuarantineNote
from hiddenfeed.store import Store
from tests.synthetic_run import SyntheticSample, batch_tensors, encode_batch, random_states

SETTINGS = QueueSettings(lease_seconds=3, heartbeat_seconds=1, maintenance_seconds=1, grace_seconds=5)


class Extractor:
    """The handler of extract jobs; `options` names batches that go wrong."""

    def __init__(self, store: Store, options: Mapping[str, str]) -> None:
        self._store = store
        self._pause = float(options.get("pause", "0"))
        self._fail, self._lose, self._quarantine = (
            {int(part) for part in options.get(name, "").split(",") if part}
            for name in ("fail", "lose", "quarantine")
        )

    def extract(self, payload: Any, context: JobContext) -> None:
        """Store the batch's file, or do what the options say."""
        message = parse_message(ExtractBatch, payload)
        context.stopping.wait(self._pause)
        if message.batch_id in self._fail:
            raise DataError(f"batch {message.batch_id} is not to my taste")
        if message.batch_id in self._lose:
            return
        data = batch_bytes(self._store, message)
        if message.batch_id in self._quarantine:
            rows = PlanFile(self._store, message.run_id).batch(message.batch_id).source_rows
            note = QuarantineNote(
                run_id=message.run_id,
                batch_id=message.batch_id,
                reason="made up",
                source_rows=tuple(rows.tolist()),
            )
            self._store.write(
                quarantine_note_key(message.run_id, message.batch_id), msgspec.json.encode(note)
            )
        else:
            self._store.write(batch_key(message.run_id, message.batch_id), data, if_absent=True)
        context.on_finish(lambda pipeline: _note(pipeline, message, len(data)))


def batch_bytes(store: Store, message: ExtractBatch) -> bytes:
    """The batch's file with seeded random states."""
    document, plan = load_document(store, message.run_id), PlanFile(store, message.run_id)
    planned, (ids, mask) = plan.batch(message.batch_id), plan.tokens(message.batch_id)
    layout = BatchLayout(
        BatchFacts.of_run(document, message.batch_id, tokens=planned.tokens, samples=planned.samples)
    )
    random = np.random.Generator(np.random.PCG64(message.batch_id))
    shape, dtype = (len(document.identity.taps), document.hidden_size), document.identity.dtype
    samples = [
        SyntheticSample(
            sample_id=planned.sample_ids[place].as_py(),
            source_row=int(planned.source_rows[place]),
            input_ids=ids[start:end],
            loss_mask=mask[start:end],
            raw=random_states(random, (end - start, *shape), dtype),
            raw_final=random_states(random, (end - start, shape[1]), dtype),
        )
        for place, (start, end) in enumerate(zip(planned.offsets[:-1], planned.offsets[1:], strict=True))
    ]
    return encode_batch(layout, batch_tensors(layout, samples))


def _note(pipeline: Pipeline, message: ExtractBatch, size: int) -> None:
    key = batch_key(message.run_id, message.batch_id)
    report = BatchReport(worker="stand-in", device="none", total_seconds=0.01)
    file = UploadFile(
        batch=message,
        spool="none",
        path="none",
        key=key,
        size_bytes=size,
        checksum=checksum_of(b""),
        report=report,
    )
    receipt = UploadReceipt(
        run_id=message.run_id,
        batch_id=message.batch_id,
        key=key,
        outcome="stored",
        size_bytes=size,
        upload_seconds=0.0,
    )
    note_stored(pipeline, file, receipt, time.time())


def stand_in(client: redis.Redis, store: Store, **options: str) -> Worker:
    """A worker of the oldest active run with work; `run` serves until it is stopped."""
    extractor = Extractor(store, options)

    def choose(current: str | None) -> str | None:
        queues = [
            extract_queue_name(record.run_id) for record in list_runs(client) if record.state == "active"
        ]
        return next((queue for queue in queues if queue_counts(client, queue).queued), None)

    return Worker(
        redis=client,
        role="gpu_worker",
        queues=choose,
        handlers={EXTRACT_FUNCTION: extractor.extract},
        settings=SETTINGS,
        slots=lambda: 2,
    )
