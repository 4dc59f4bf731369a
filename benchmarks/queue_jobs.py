"""The jobs that the queue's benchmarks run: all bookkeeping of a batch, and none of its work."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import redis

from common.messages import BatchReport, ExtractBatch, UploadFile, UploadReceipt, parse_message
from common.queues import (
    EXTRACT_FUNCTION,
    UPLOAD_FUNCTION,
    extract_queue_name,
    queue_counts,
    upload_queue_name,
    upload_request,
)
from common.redis_client import text
from common.run_state import RunRecord, list_runs, note_stored, register_run
from common.worker import Handler, JobContext, QueueChooser
from hiddenfeed.layout import batch_key, tokens_key

RUN_ID = "benchmark-0123456789abcdef"
SPOOL = "benchmark"
EXTRACT_QUEUE, UPLOAD_QUEUE = extract_queue_name(RUN_ID), upload_queue_name(SPOOL)

_FILE_BYTES = 512 * 1024**2


def manifests(count: int) -> list[ExtractBatch]:
    """The messages of a run of `count` batches, as large as those of a real one."""
    return [
        ExtractBatch(
            run_id=RUN_ID,
            batch_id=batch_id,
            tokens=tokens_key(RUN_ID),
            row_group=batch_id,
            samples=96,
            tokens_total=21845,
            longest=2048,
        )
        for batch_id in range(count)
    ]


def open_run(client: redis.Redis, batches: int) -> None:
    """Make the run known, so that choosing it is what it is for a GPU worker."""
    register_run(
        client,
        RunRecord(
            run_id=RUN_ID,
            model="benchmark",
            samples=96 * batches,
            tokens=21845 * batches,
            batches=batches,
            submitted_at=time.time(),
        ),
    )


def handlers(kind: str, client: redis.Redis) -> Mapping[str, Handler]:
    """What a worker of this kind does with a job: `noop`, `extract`, `upload`, or for kills `hold` and `mark`."""
    kinds: dict[str, dict[str, Handler]] = {
        "noop": {EXTRACT_FUNCTION: noop},
        "extract": {EXTRACT_FUNCTION: extract},
        "upload": {UPLOAD_FUNCTION: upload},
        "hold": {EXTRACT_FUNCTION: lambda _, context: _mark(client, context, hold=True)},
        "mark": {EXTRACT_FUNCTION: lambda _, context: _mark(client, context, hold=False)},
    }
    return kinds[kind]


def chooser(kind: str, client: redis.Redis) -> QueueChooser:
    """The queue chooser of a worker of this kind; for `extract` it asks Redis what a GPU worker asks before a pop."""
    if kind == "upload":
        return lambda _: UPLOAD_QUEUE
    if kind != "extract":
        return lambda _: EXTRACT_QUEUE

    def choose(current: str | None) -> str | None:
        queues = [extract_queue_name(record.run_id) for record in list_runs(client)]
        waiting = [queue for queue in queues if queue_counts(client, queue).queued]
        # The backlog of the spool, which may keep a GPU worker from taking a batch.
        queue_counts(client, UPLOAD_QUEUE)
        return waiting[0] if waiting else current

    return choose


def noop(payload: Any, context: JobContext) -> None:
    """Nothing at all."""


def extract(payload: Any, context: JobContext) -> BatchReport:
    """Announce a file that is not there."""
    message = parse_message(ExtractBatch, payload)
    report = BatchReport(
        worker=context.worker_name,
        device="cuda:0",
        read_seconds=0.0123,
        forward_seconds=4.5678,
        stall_seconds=0.0456,
        write_seconds=0.3456,
        total_seconds=5.0123,
        padded_tokens=22000,
    )
    upload = UploadFile(
        batch=message,
        spool=SPOOL,
        path=f"{RUN_ID}/{message.batch_id:06d}-{context.job_id[-6:]:0>32}.safetensors",
        key=batch_key(RUN_ID, message.batch_id),
        size_bytes=_FILE_BYTES,
        checksum="crc64nvme:AAAAAAAAAAA=",
        report=report,
    )
    context.follow_up(upload_request(upload))
    return report


def upload(payload: Any, context: JobContext) -> UploadReceipt:
    """Count the file as stored."""
    message = parse_message(UploadFile, payload)
    receipt = UploadReceipt(
        run_id=RUN_ID,
        batch_id=message.batch.batch_id,
        key=message.key,
        outcome="stored",
        size_bytes=message.size_bytes,
        upload_seconds=1.2345,
    )
    context.on_finish(
        lambda pipeline: note_stored(pipeline, message, receipt, time.time(), uploader=context.worker_name)
    )
    return receipt


def starts(client: redis.Redis, job_id: str) -> list[tuple[int, float]]:
    """(process, second on the machine's monotonic clock) of every start that `hold` and `mark` saw of a job."""
    rows = [text(row).split() for row in client.lrange(_starts_key(job_id), 0, -1)]
    return [(int(pid), float(at)) for pid, at in rows]


def _mark(client: redis.Redis, context: JobContext, *, hold: bool) -> None:
    client.rpush(_starts_key(context.job_id), f"{os.getpid()} {time.monotonic()}")
    if hold:
        context.stopping.wait()


def _starts_key(job_id: str) -> str:
    return f"benchmark:starts:{job_id}"
