"""Names of queues, ids of jobs and names of their functions: pure.

A job id names its work (`extract-<run>-000042`), so the same work is never queued twice at a time.
"""

from __future__ import annotations

from hiddenfeed.layout import batch_name, check_run_id

EXTRACT_FUNCTION = "gpu_worker.extract.extract_batch"
UPLOAD_FUNCTION = "uploader.upload.upload_file"

EXTRACT_QUEUE_PREFIX = "extract-"
UPLOAD_QUEUE_PREFIX = "upload-"
#: Every queue of the project starts with one of these; others on the same Redis are left alone.
QUEUE_PREFIXES = (EXTRACT_QUEUE_PREFIX, UPLOAD_QUEUE_PREFIX)


def extract_queue_name(run_id: str) -> str:
    """The queue of a run's batches."""
    return f"{EXTRACT_QUEUE_PREFIX}{check_run_id(run_id)}"


def upload_queue_name(spool: str) -> str:
    """The queue of a spool's finished files."""
    return f"{UPLOAD_QUEUE_PREFIX}{spool}"


def extract_job_id(run_id: str, batch_id: int) -> str:
    """The one job that extracts a batch."""
    return f"extract-{check_run_id(run_id)}-{batch_name(batch_id)}"


def upload_job_id(run_id: str, batch_id: int) -> str:
    """The one job that uploads a batch's file."""
    return f"upload-{check_run_id(run_id)}-{batch_name(batch_id)}"
