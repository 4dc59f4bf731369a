"""Putting jobs on their queues: in bulk, atomically, and never one twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import redis
from redis.client import Pipeline
from rq.job import JobStatus

from common import rq_keys
from common.queues import scripts
from common.queues.requests import JobRequest
from common.redis_client import translated
from common.rq_keys import JobField
from common.safe_job import SafeJob
from common.serializer import JsonSerializer
from common.settings.catalogue import QueueSettings

#: Jobs written by one script call: a few milliseconds of the server's time.
_CHUNK = 250
#: The worker's own deadline holds, not rq's.
_NO_TIMEOUT = -1


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
            pipeline.eval(scripts.ENQUEUE, len(keys), *keys, *arguments)
        return len(requests)
    with translated(client):
        script = client.register_script(scripts.ENQUEUE)
        return sum(int(script(keys=keys, args=arguments)) for keys, arguments in chunks)


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
