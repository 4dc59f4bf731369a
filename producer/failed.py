"""The failed jobs of a run: why they failed, and another try for them.

What Redis holds of a failed job may be why it failed: of another version, damaged, or forged. So a batch is
queued anew from the plan, never as its old job had it.
"""

from __future__ import annotations

from collections.abc import Sequence

import redis

from common import rq_keys
from common.messages import ExtractBatch, UploadFile, parse_message
from common.queues import (
    UPLOAD_FUNCTION,
    UPLOAD_QUEUE_PREFIX,
    enqueue,
    extract_job_id,
    extract_queue_name,
    extract_request,
    failed_job_ids,
    failed_jobs,
    queue_names,
    requeue_failed,
    upload_job_id,
)
from common.redis_client import translated
from common.safe_job import parse_call
from common.settings.catalogue import QueueSettings
from hiddenfeed.errors import PermanentError
from hiddenfeed.layout import batch_key, quarantine_note_key

_FAILURES_SHOWN = 1000


def retry_failed(
    client: redis.Redis, run_id: str, manifests: Sequence[ExtractBatch], settings: QueueSettings
) -> int:
    """Put the failed jobs of a run back on their queues; returns how many there were.

    `manifests` are all batches of the run, by number. A failed upload whose message is not one of this run
    has its batch extracted again. Raises TransientError when Redis is away.
    """
    extracts = {extract_job_id(run_id, manifest.batch_id): manifest for manifest in manifests}
    uploads = {upload_job_id(run_id, manifest.batch_id): manifest for manifest in manifests}
    again = [
        extracts[job_id]
        for job_id in failed_job_ids(client, extract_queue_name(run_id))
        if job_id in extracts
    ]
    moved = 0
    for queue, job_ids in _failed_uploads(client, run_id).items():
        useless = [
            job_id
            for job_id in job_ids
            if job_id in uploads and not _is_usable(client, job_id, uploads[job_id])
        ]
        again += [uploads[job_id] for job_id in useless]
        moved += requeue_failed(client, queue, [job_id for job_id in job_ids if job_id not in useless])
    return moved + enqueue(client, [extract_request(manifest) for manifest in again], settings)


def _is_usable(client: redis.Redis, job_id: str, manifest: ExtractBatch) -> bool:
    """Whether an uploader can do anything with the upload job's message."""
    with translated(client):
        raw: dict[bytes, bytes] = client.hgetall(rq_keys.job_key(job_id))  # type: ignore[assignment]  # not decoded
    try:
        message = parse_message(UploadFile, parse_call(raw, {UPLOAD_FUNCTION}).payload)
    except PermanentError:
        return False
    whose = (manifest.run_id, manifest.batch_id)
    keys = (batch_key(*whose), quarantine_note_key(*whose))
    return (message.batch.run_id, message.batch.batch_id) == whose and message.key in keys


def failures(client: redis.Redis, run_id: str) -> list[str]:
    """`extract batch 12 of …: why` for every failed job of a run, in batch order."""
    jobs = list(failed_jobs(client, extract_queue_name(run_id), _FAILURES_SHOWN))
    for queue in _upload_queues(client):
        jobs += [job for job in failed_jobs(client, queue, _FAILURES_SHOWN) if _is_of(job.job_id, run_id)]
    # Ids are padded with zeros, so they sort in batch order.
    jobs.sort(key=lambda job: job.job_id)
    return [f"{job.description.partition(':')[0]}: {job.error or 'no reason is known'}" for job in jobs]


def _failed_uploads(client: redis.Redis, run_id: str) -> dict[str, list[str]]:
    found = {}
    for queue in _upload_queues(client):
        ids = [job_id for job_id in failed_job_ids(client, queue) if _is_of(job_id, run_id)]
        if ids:
            found[queue] = ids
    return found


def _upload_queues(client: redis.Redis) -> list[str]:
    return [name for name in queue_names(client) if name.startswith(UPLOAD_QUEUE_PREFIX)]


def _is_of(job_id: str, run_id: str) -> bool:
    return job_id.rpartition("-")[0] == upload_job_id(run_id, 0).rpartition("-")[0]
