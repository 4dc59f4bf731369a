"""The queues: their names and ids, what a job on them is, enqueueing, and looking at them.

A job id names its work (`extract-<run>-000042`), so the same work is never queued twice at a time.
Every function raises TransientError when Redis is away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import redis
from redis.client import Pipeline
from rq.job import JobStatus
from rq.queue import Queue

from common import queue_scripts, rq_keys
from common.messages import ExtractBatch, UploadFile
from common.redis_client import text, translated
from common.rq_keys import JobField
from common.safe_job import SafeJob
from common.serializer import JsonSerializer
from common.settings.catalogue import QueueSettings
from hiddenfeed.layout import batch_name, check_run_id
from hiddenfeed.words import size_text

EXTRACT_FUNCTION = "gpu_worker.extract.extract_batch"
UPLOAD_FUNCTION = "uploader.upload.upload_file"

EXTRACT_QUEUE_PREFIX = "extract-"
UPLOAD_QUEUE_PREFIX = "upload-"
#: Every queue of the project starts with one of these; others on the same Redis are left alone.
QUEUE_PREFIXES = (EXTRACT_QUEUE_PREFIX, UPLOAD_QUEUE_PREFIX)

#: Jobs written, and looked at, by one script call: a few milliseconds of the server's time.
_CHUNK, _LOOKED_AT = 250, 500
#: In place of rq's status word: the job says that it will run or waits for a person, and no list has it.
LOST = "lost"
#: The worker's own deadline holds, not rq's.
_NO_TIMEOUT = -1


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


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one queue by state. `queued` includes those popped and not yet started."""

    queued: int = 0
    started: int = 0
    scheduled: int = 0
    failed: int = 0
    finished: int = 0

    @property
    def unfinished(self) -> int:
        """Jobs that will still run: queued, started or waiting to be tried again."""
        return self.queued + self.started + self.scheduled


class FailedJob(msgspec.Struct, frozen=True):
    """A job that a person must look at; unpacks as (job_id, description, error)."""

    job_id: str
    description: str
    #: The last line of the error.
    error: str

    def __iter__(self) -> Iterator[str]:
        return iter((self.job_id, self.description, self.error))


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


def extract_request(message: ExtractBatch) -> JobRequest:
    """The job that extracts a batch."""
    return JobRequest(
        queue=extract_queue_name(message.run_id),
        function=EXTRACT_FUNCTION,
        job_id=extract_job_id(message.run_id, message.batch_id),
        payload=message,
        description=f"extract batch {message.batch_id} of {message.run_id}: "
        f"{message.samples:,} samples, {message.tokens_total:,} tokens",
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


def open_queue(client: redis.Redis, name: str) -> Queue:
    """rq's view of a queue, with our serializer and a job class that cannot run anything."""
    return Queue(name, connection=client, serializer=JsonSerializer, job_class=SafeJob)


def enqueue(
    client: redis.Redis,
    requests: Sequence[JobRequest],
    queue_settings: QueueSettings,
    *,
    pipeline: Pipeline | None = None,
) -> int:
    """Put jobs on their queues, in order; returns how many were new.

    A job that is queued, started or waiting to be tried again is left as it is; leftovers of a
    finished or failed one of the same id are replaced. Each chunk of 250 is one script, so two
    producers at once cannot queue a job twice. With `pipeline` the scripts are added to it and
    run when it does; the result is then the number of requests.
    """
    chunks = list(_chunks(client, requests, queue_settings))
    if pipeline is not None:
        for keys, arguments in chunks:
            pipeline.eval(queue_scripts.ENQUEUE, len(keys), *keys, *arguments)
        return len(requests)
    with translated(client):
        script = client.register_script(queue_scripts.ENQUEUE)
        return sum(int(script(keys=keys, args=arguments)) for keys, arguments in chunks)


def job_states(client: redis.Redis, job_ids: Sequence[str]) -> dict[str, str | None]:
    """rq's status word of each job; None for a job that Redis does not know.

    `LOST` for a job that says it is queued, started, scheduled or failed, while no list or registry of its queue
    has it, so that nobody will ever come for it: Redis has lost a part of what it knew.
    """
    registries = (rq_keys.started_key, rq_keys.scheduled_key, rq_keys.failed_key)
    prefixes = [key("") for key in (rq_keys.job_key, rq_keys.queue_key, *registries)]
    states: dict[str, str | None] = {}
    with translated(client):
        script = client.register_script(queue_scripts.STATES)
        for start in range(0, len(job_ids), _LOOKED_AT):
            chunk = job_ids[start : start + _LOOKED_AT]
            replies = script(args=[*prefixes, *chunk])
            states |= {
                job_id: None if reply is None else text(reply)
                for job_id, reply in zip(chunk, replies, strict=True)
            }
    return states


def queue_counts(client: redis.Redis, name: str) -> QueueCounts:
    """How many jobs of the queue are in which state; one round trip."""
    with translated(client), client.pipeline(transaction=False) as pipe:
        ask_counts(pipe, name)
        return parse_counts(pipe.execute())


def ask_counts(pipeline: Pipeline, name: str) -> int:
    """Add to `pipeline` what `parse_counts` reads; returns how many replies that will be."""
    pipeline.llen(rq_keys.queue_key(name))
    pipeline.llen(rq_keys.intermediate_key(name))
    for key in (rq_keys.started_key, rq_keys.scheduled_key, rq_keys.failed_key, rq_keys.finished_key):
        pipeline.zcard(key(name))
    return 6


def parse_counts(replies: Sequence[int]) -> QueueCounts:
    """The counts from the replies to `ask_counts`."""
    queued, popped, started, scheduled, failed, finished = replies
    return QueueCounts(
        queued=queued + popped, started=started, scheduled=scheduled, failed=failed, finished=finished
    )


def queue_names(client: redis.Redis) -> list[str]:
    """The project's queues that Redis knows, sorted."""
    with translated(client):
        keys = client.smembers(rq_keys.QUEUES)
    prefix = rq_keys.queue_key("")
    names = (text(key).removeprefix(prefix) for key in keys)
    return sorted(name for name in names if name.startswith(QUEUE_PREFIXES))


def failed_jobs(client: redis.Redis, name: str, limit: int = 100) -> list[FailedJob]:
    """The queue's failed jobs, newest first, `limit` at most."""
    with translated(client):
        ids = (
            [text(job_id) for job_id in client.zrevrange(rq_keys.failed_key(name), 0, limit - 1)]
            if limit > 0
            else []
        )
        with client.pipeline(transaction=False) as pipe:
            for job_id in ids:
                pipe.hmget(rq_keys.job_key(job_id), JobField.DESCRIPTION, JobField.ERROR)
            rows = pipe.execute()
    return [
        FailedJob(job_id, text(description or b""), text(error or b""))
        for job_id, (description, error) in zip(ids, rows, strict=True)
    ]


def failed_job_ids(client: redis.Redis, name: str) -> list[str]:
    """Ids of all failed jobs of the queue, oldest first."""
    with translated(client):
        return [text(job_id) for job_id in client.zrange(rq_keys.failed_key(name), 0, -1)]


def requeue_failed(client: redis.Redis, name: str, job_ids: Sequence[str] | None = None) -> int:
    """Queue failed jobs again, all of them or those named, with all attempts given back; returns how many."""
    with translated(client):
        script = client.register_script(queue_scripts.REQUEUE_FAILED)
        wanted = failed_job_ids(client, name) if job_ids is None else job_ids
        keys = [rq_keys.QUEUES, rq_keys.queue_key(name), rq_keys.failed_key(name)]
        counters = [str(len(JobField.COUNTERS)), *JobField.COUNTERS]
        return sum(
            int(script(keys=keys, args=[rq_keys.job_key(""), *counters, *wanted[start : start + _CHUNK]]))
            for start in range(0, len(wanted), _CHUNK)
        )


def cancel_jobs(client: redis.Redis, name: str) -> int:
    """Take the queue's jobs that wait, now or for a retry, off it; started ones end by themselves. Returns how many."""
    return _purge(client, rq_keys.queue_key(name), "list") + _purge(
        client, rq_keys.scheduled_key(name), "zset"
    )


def drop_queue(client: redis.Redis, name: str) -> None:
    """Forget the queue, its waiting, finished and failed jobs, and its name."""
    cancel_jobs(client, name)
    for key in (rq_keys.finished_key, rq_keys.failed_key):
        _purge(client, key(name), "zset")
    with translated(client), client.pipeline(transaction=True) as pipe:
        pipe.srem(rq_keys.QUEUES, rq_keys.queue_key(name))
        pipe.delete(rq_keys.queue_workers_key(name), *rq_keys.other_registries(name))
        pipe.execute()


def _purge(client: redis.Redis, key: str, kind: str) -> int:
    removed = 0
    with translated(client):
        script = client.register_script(queue_scripts.PURGE)
        while count := int(
            script(keys=[key], args=[kind, rq_keys.job_key(""), rq_keys.results_key(""), str(_CHUNK)])
        ):
            removed += count
    return removed


def _chunks(
    client: redis.Redis, requests: Sequence[JobRequest], settings: QueueSettings
) -> Iterator[tuple[list[str], list[Any]]]:
    """(keys, arguments) of the enqueue script, one queue and at most 250 jobs each."""
    by_queue: dict[str, list[JobRequest]] = defaultdict(list)
    for request in requests:
        by_queue[request.queue].append(request)
    prefixes = [
        rq_keys.job_key(""),
        rq_keys.results_key(""),
        rq_keys.job_executions_key(""),
        rq_keys.queue_key(""),
        rq_keys.started_key(""),
        rq_keys.scheduled_key(""),
        rq_keys.finished_key(""),
        rq_keys.failed_key(""),
        *rq_keys.other_registries(""),
    ]
    for name, wanted in by_queue.items():
        for start in range(0, len(wanted), _CHUNK):
            arguments: list[Any] = list(prefixes)
            for request in wanted[start : start + _CHUNK]:
                fields = _fields(client, request, settings)
                arguments += [
                    request.job_id,
                    len(fields),
                    *(part for pair in fields.items() for part in pair),
                ]
            yield [rq_keys.QUEUES, rq_keys.queue_key(name)], arguments


def _fields(client: redis.Redis, request: JobRequest, settings: QueueSettings) -> Mapping[str, Any]:
    """The job's hash as rq writes it, without empty fields; the call in plain JSON."""
    job = SafeJob.create(
        request.function,
        args=(request.payload,),
        connection=client,
        id=request.job_id,
        origin=request.queue,
        description=request.description,
        timeout=_NO_TIMEOUT,
        result_ttl=settings.result_ttl_seconds,
        status=JobStatus.QUEUED,
        serializer=JsonSerializer,
    )
    job.enqueued_at = job.created_at
    fields = {name: value for name, value in job.to_dict().items() if value != ""}
    # rq reads compressed and plain alike; plain is smaller here and readable with redis-cli.
    return fields | {JobField.DATA: job.data, JobField.STATUS: JobStatus.QUEUED.value}
