"""The queues: names and ids, what a job on them is, putting it there, looking at them, taking it off."""

from __future__ import annotations

from common.queues.changes import cancel_jobs, drop_queue, requeue_failed
from common.queues.contents import (
    LOST,
    FailedJob,
    QueueCounts,
    ask_counts,
    failed_job_ids,
    failed_jobs,
    job_states,
    open_queue,
    parse_counts,
    queue_counts,
    queue_names,
    retrying_jobs,
)
from common.queues.intake import enqueue
from common.queues.names import (
    EXTRACT_FUNCTION,
    EXTRACT_QUEUE_PREFIX,
    QUEUE_PREFIXES,
    UPLOAD_FUNCTION,
    UPLOAD_QUEUE_PREFIX,
    extract_job_id,
    extract_queue_name,
    upload_job_id,
    upload_queue_name,
)
from common.queues.requests import JobRequest, extract_request, upload_request

__all__ = [
    "EXTRACT_FUNCTION",
    "EXTRACT_QUEUE_PREFIX",
    "LOST",
    "QUEUE_PREFIXES",
    "UPLOAD_FUNCTION",
    "UPLOAD_QUEUE_PREFIX",
    "FailedJob",
    "JobRequest",
    "QueueCounts",
    "ask_counts",
    "cancel_jobs",
    "drop_queue",
    "enqueue",
    "extract_job_id",
    "extract_queue_name",
    "extract_request",
    "failed_job_ids",
    "failed_jobs",
    "job_states",
    "open_queue",
    "parse_counts",
    "queue_counts",
    "queue_names",
    "requeue_failed",
    "retrying_jobs",
    "upload_job_id",
    "upload_queue_name",
    "upload_request",
]
