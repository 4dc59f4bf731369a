"""Names of rq's keys and of our own fields in rq's hashes: all that scripts know of rq's layout.

The names come from rq's own classes where they are public; `tests/contract` holds the rest.
"""

from __future__ import annotations

from typing import ClassVar

from rq import worker_registration
from rq.defaults import RQ_KEY_PREFIX
from rq.executions import WORKER_EXECUTIONS_KEY_TEMPLATE, ExecutionRegistry
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job
from rq.queue import Queue
from rq.registry import (
    CanceledJobRegistry,
    DeferredJobRegistry,
    FailedJobRegistry,
    FinishedJobRegistry,
    ScheduledJobRegistry,
    StartedJobRegistry,
)
from rq.results import Result
from rq.worker import BaseWorker

QUEUES = Queue.redis_queues_keys
WORKERS = worker_registration.REDIS_WORKER_KEYS


class JobField:
    """Fields of a job's hash that scripts read or write. The second part is ours; rq ignores it."""

    STATUS = "status"
    DATA = "data"
    ORIGIN = "origin"
    DESCRIPTION = "description"
    #: Execution that owns or last owned the job: the fence against processes that lost it.
    EXECUTION = "hf_execution"
    #: When it was put on its queue, in seconds since the epoch by Redis's clock.
    QUEUED_AT = "hf_queued_at"
    #: How often the job was started, given-back starts not counted.
    STARTS = "hf_starts"
    #: Attempts used up by errors of no known kind and by hung calls.
    FAILURES = "hf_failures"
    #: Transient failures in a row.
    TRANSIENTS = "hf_transients"
    #: How often a process died or fell silent while it had the job.
    TAKEOVERS = "hf_takeovers"
    #: One line: why the job last failed or waits to be tried again.
    ERROR = "hf_error"
    #: What a job starts from when a person sends it back.
    COUNTERS: ClassVar[tuple[str, ...]] = (STARTS, FAILURES, TRANSIENTS, TAKEOVERS, ERROR, EXECUTION)


def queue_key(name: str) -> str:
    """List of job ids, head first."""
    return f"{Queue.redis_queue_namespace_prefix}{name}"


def intermediate_key(name: str) -> str:
    """List of ids that were popped and not yet claimed."""
    return IntermediateQueue.get_intermediate_queue_key(queue_key(name))


def job_key(job_id: str) -> str:
    """Hash of one job."""
    return Job.key_for(job_id)


def results_key(job_id: str) -> str:
    """Stream of a job's last results."""
    return str(Result.get_key(job_id))  # type: ignore[no-untyped-call]


def started_key(name: str) -> str:
    """Sorted set `job:execution` -> when its lease lapses."""
    return StartedJobRegistry.key_template.format(name)


def scheduled_key(name: str) -> str:
    """Sorted set job id -> when it is due."""
    return ScheduledJobRegistry.key_template.format(name)


def finished_key(name: str) -> str:
    """Sorted set job id -> when it is forgotten."""
    return FinishedJobRegistry.key_template.format(name)


def failed_key(name: str) -> str:
    """Sorted set job id -> when it is forgotten."""
    return FailedJobRegistry.key_template.format(name)


def other_registries(name: str) -> tuple[str, str]:
    """Registries that we never fill but rq's tools may."""
    return DeferredJobRegistry.key_template.format(name), CanceledJobRegistry.key_template.format(name)


def composite(job_id: str, execution_id: str) -> str:
    """Member of the started registry."""
    return f"{job_id}:{execution_id}"


def execution_key(job_id: str, execution_id: str) -> str:
    """Hash of one execution."""
    return f"{RQ_KEY_PREFIX}:execution:{composite(job_id, execution_id)}"


def job_executions_key(job_id: str) -> str:
    """Sorted set of a job's executions."""
    return ExecutionRegistry.key_template.format(job_id)


def worker_key(worker_name: str) -> str:
    """Hash of one worker."""
    return f"{BaseWorker.redis_worker_namespace_prefix}{worker_name}"


def worker_executions_key(worker_name: str) -> str:
    """Set of `job:execution` that a worker has in hand."""
    return WORKER_EXECUTIONS_KEY_TEMPLATE.format(worker_name)


def queue_workers_key(name: str) -> str:
    """Set of keys of the workers that serve a queue."""
    return worker_registration.WORKERS_BY_QUEUE_KEY % name
