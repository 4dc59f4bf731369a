"""Taking jobs off queues, and queueing failed ones again; every function raises TransientError when Redis is away."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from common import rq_keys
from common.queues import scripts
from common.queues.contents import failed_job_ids
from common.redis_client import translated
from common.rq_keys import JobField

#: Jobs changed by one script call: a few milliseconds of the server's time.
_CHUNK = 250


def requeue_failed(client: redis.Redis, name: str, job_ids: Sequence[str] | None = None) -> int:
    """Queue failed jobs again, all of them or those named, with all attempts given back; returns how many."""
    with translated(client):
        script = client.register_script(scripts.REQUEUE_FAILED)
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
        script = client.register_script(scripts.PURGE)
        while count := int(
            script(keys=[key], args=[kind, rq_keys.job_key(""), rq_keys.results_key(""), str(_CHUNK)])
        ):
            removed += count
    return removed
