"""What queues hold: states of jobs, how many are in which, and those that failed.

Every function raises TransientError when Redis is away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import redis
from redis.client import Pipeline
from rq.queue import Queue

from common import rq_keys
from common.queues import scripts
from common.queues.names import QUEUE_PREFIXES
from common.redis_client import text, translated
from common.rq_keys import JobField
from common.safe_job import SafeJob
from common.serializer import JsonSerializer

#: In place of rq's status word: the job says that it will run or waits for a person, and no list has it.
LOST = "lost"
#: Jobs looked at by one script call: a few milliseconds of the server's time.
_LOOKED_AT = 500


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
    """A job that failed, for good or for now; unpacks as (job_id, description, error)."""

    job_id: str
    description: str
    #: The last line of the error.
    error: str

    def __iter__(self) -> Iterator[str]:
        return iter((self.job_id, self.description, self.error))


def open_queue(client: redis.Redis, name: str) -> Queue:
    """rq's view of a queue, with our serializer and a job class that cannot run anything."""
    return Queue(name, connection=client, serializer=JsonSerializer, job_class=SafeJob)


def job_states(client: redis.Redis, job_ids: Sequence[str]) -> dict[str, str | None]:
    """rq's status word of each job; None for a job that Redis does not know.

    `LOST` for a job that says it is queued, started, scheduled or failed, while no list or registry of its queue
    has it, so that nobody will ever come for it: Redis has lost a part of what it knew.
    """
    registries = (rq_keys.started_key, rq_keys.scheduled_key, rq_keys.failed_key)
    prefixes = [key("") for key in (rq_keys.job_key, rq_keys.queue_key, *registries)]
    states: dict[str, str | None] = {}
    with translated(client):
        script = client.register_script(scripts.STATES)
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
    return _with_errors(client, rq_keys.failed_key(name), limit)


def retrying_jobs(client: redis.Redis, name: str, limit: int = 100) -> list[FailedJob]:
    """The queue's jobs that failed and will be tried again by themselves, the last to be tried first, `limit` at most."""
    return _with_errors(client, rq_keys.scheduled_key(name), limit)


def _with_errors(client: redis.Redis, registry: str, limit: int) -> list[FailedJob]:
    with translated(client):
        ids = [text(job_id) for job_id in client.zrevrange(registry, 0, limit - 1)] if limit > 0 else []
        with client.pipeline(transaction=False) as pipe:
            for job_id in ids:
                pipe.hmget(rq_keys.job_key(job_id), JobField.DESCRIPTION, JobField.ERROR)
            rows = pipe.execute(raise_on_error=False)
    return [_failed_job(job_id, row) for job_id, row in zip(ids, rows, strict=True)]


def _failed_job(job_id: str, row: Any) -> FailedJob:
    if isinstance(row, redis.ResponseError) and str(row).startswith("WRONGTYPE"):
        return FailedJob(job_id, "", f"{rq_keys.job_key(job_id)} holds no job: another program wrote to it")
    if isinstance(row, Exception):
        raise row
    description, error = row
    return FailedJob(job_id, text(description or b""), text(error or b""))


def failed_job_ids(client: redis.Redis, name: str) -> list[str]:
    """Ids of all failed jobs of the queue, oldest first."""
    with translated(client):
        return [text(job_id) for job_id in client.zrange(rq_keys.failed_key(name), 0, -1)]
