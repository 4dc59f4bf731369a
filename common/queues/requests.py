"""Jobs to be put on a queue, made of the messages that they carry."""

from __future__ import annotations

import msgspec

from common.messages import ExtractBatch, UploadFile
from common.queues.names import (
    EXTRACT_FUNCTION,
    UPLOAD_FUNCTION,
    extract_job_id,
    extract_queue_name,
    upload_job_id,
    upload_queue_name,
)
from hiddenfeed.words import count_text, size_text


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be put on a queue."""

    queue: str
    #: Name of the function as the worker's allow-list knows it.
    function: str
    job_id: str
    #: The function's one argument; becomes a JSON object.
    payload: msgspec.Struct
    #: For people: what rq-dashboard shows.
    description: str


def extract_request(message: ExtractBatch) -> JobRequest:
    """The job that extracts a batch."""
    return JobRequest(
        queue=extract_queue_name(message.run_id),
        function=EXTRACT_FUNCTION,
        job_id=extract_job_id(message.run_id, message.batch_id),
        payload=message,
        description=f"extract batch {message.batch_id} of {message.run_id}: "
        f"{count_text(message.samples, 'sample')}, {count_text(message.tokens_total, 'token')}",
    )


def upload_request(message: UploadFile) -> JobRequest:
    """The job that uploads a finished file."""
    run_id, batch_id = message.batch.run_id, message.batch.batch_id
    return JobRequest(
        queue=upload_queue_name(message.spool),
        function=UPLOAD_FUNCTION,
        job_id=upload_job_id(run_id, batch_id),
        payload=message,
        description=f"upload batch {batch_id} of {run_id}: {size_text(message.size_bytes)} from {message.report.worker}",
    )
