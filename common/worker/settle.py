"""Ending one start of a job: finished, failed, tried later or given back, each in one MULTI.

The fence: a job's hash names the execution that owns it. Every ending watches the hash and is
dropped if the job is another's by now, so a process that was frozen past its lease cannot touch
what others did meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import Enum
from typing import Any

import redis
from redis.client import Pipeline
from rq.job import JobStatus
from rq.results import Result
from rq.utils import now, utcformat

from common import rq_keys
from common.queues import enqueue, open_queue
from common.redis_client import text
from common.rq_keys import JobField
from common.safe_job import SafeJob
from common.serializer import JsonSerializer
from common.settings.catalogue import QueueSettings
from common.worker import scripts
from common.worker.context import JobContext
from common.worker.lease import Claim
from common.worker.verdict import Fail, Finish, Return, TryLater, Verdict

#: Failed jobs wait this long for a person; as long as Redis remembers their run.
FAILED_TTL_SECONDS = 30 * 24 * 3600
#: Reasons of retries are of interest while the job is tried.
_RETRIED_TTL_SECONDS = 24 * 3600


class Standing(Enum):
    """Whose a job is when one of its starts ends."""

    OURS = "ours"
    #: Ended by us already: an earlier try went through and its reply was lost.
    SETTLED = "settled"
    #: Taken over, cancelled or replaced; nothing was written.
    LOST = "lost"
    #: Redis does not know the job: it was wiped.
    GONE = "gone"


def standing(status: str | None, execution: str | None, ours: str, ending: JobStatus) -> Standing:
    """Whose the job is whose hash says `status` and `execution`, both None when there is no hash.

    `ending` is the status that is about to be written.
    """
    if status is None and execution is None:
        return Standing.GONE
    if execution != ours:
        return Standing.LOST
    if status == JobStatus.STARTED.value:
        return Standing.OURS
    if ending is JobStatus.FINISHED and status != ending.value:
        # Queued again under our hands, by a tool that knows nothing of owners: nothing came of our work.
        return Standing.LOST
    return Standing.SETTLED


class Settler:
    """Writes the endings of one worker's jobs. Every method raises the client's errors."""

    def __init__(self, client: redis.Redis, worker_name: str, settings: QueueSettings) -> None:
        self._client, self._worker, self._settings = client, worker_name, settings

    def settle(self, claim: Claim, verdict: Verdict, context: JobContext, started_at: datetime) -> Standing:
        """Write what `verdict` says; returns whose the job was."""
        if isinstance(verdict, Finish):
            return self._finish(claim, verdict, context, started_at)
        if isinstance(verdict, Fail):
            return self.fail(claim, verdict, started_at)
        if isinstance(verdict, TryLater):
            return self._try_later(claim, verdict, started_at)
        return self.give_back(claim, verdict)

    def give_back(self, claim: Claim, verdict: Return) -> Standing:
        """To the head of its queue, as if it had not been started."""

        def write(pipe: Pipeline) -> None:
            key = rq_keys.job_key(claim.job_id)
            pipe.hset(key, mapping={JobField.STATUS: JobStatus.QUEUED.value, JobField.ERROR: verdict.reason})
            pipe.hdel(key, "started_at", "worker_name", JobField.EXECUTION)
            pipe.hincrby(key, JobField.STARTS, -1)
            pipe.lpush(rq_keys.queue_key(claim.queue), claim.job_id)
            pipe.sadd(rq_keys.QUEUES, rq_keys.queue_key(claim.queue))

        return self._fenced(claim, JobStatus.QUEUED, write)

    def fail(self, claim: Claim, verdict: Fail, started_at: datetime) -> Standing:
        """Into the failed registry, where it waits for a person with all its attempts given back."""

        def write(pipe: Pipeline) -> None:
            key = rq_keys.job_key(claim.job_id)
            pipe.hset(key, mapping=self._ended(JobStatus.FAILED, verdict.reason))
            pipe.hdel(key, JobField.FAILURES, JobField.TRANSIENTS, JobField.TAKEOVERS)
            pipe.expire(key, FAILED_TTL_SECONDS)
            job, failed = self._record(claim), open_queue(self._client, claim.queue).failed_job_registry
            pipe.zadd(failed.key, {claim.job_id: now().timestamp() + FAILED_TTL_SECONDS})
            self._result(
                pipe, job, Result.Type.FAILED, claim, started_at, FAILED_TTL_SECONDS, error=verdict.details
            )

        return self._fenced(claim, JobStatus.FAILED, write)

    def _finish(self, claim: Claim, verdict: Finish, context: JobContext, started_at: datetime) -> Standing:
        """Finished, its follow-ups enqueued and its finishers' commands run, all or none."""

        def passed_on(pipe: Pipeline) -> None:
            enqueue(self._client, context.follow_ups, self._settings, pipeline=pipe)
            for add in context.finishers:
                add(pipe)

        def write(pipe: Pipeline) -> None:
            key, ttl = rq_keys.job_key(claim.job_id), self._settings.result_ttl_seconds
            pipe.hset(key, mapping=self._ended(JobStatus.FINISHED, ""))
            pipe.expire(key, ttl)
            job, finished = self._record(claim), open_queue(self._client, claim.queue).finished_job_registry
            finished.add(job, ttl, pipe)
            self._result(pipe, job, Result.Type.SUCCESSFUL, claim, started_at, ttl, value=verdict.result)
            passed_on(pipe)

        # In a Redis that was wiped the job is unknown, but its work is done and worth passing on.
        return self._fenced(claim, JobStatus.FINISHED, write, passed_on)

    def _try_later(self, claim: Claim, verdict: TryLater, started_at: datetime) -> Standing:
        """Into the scheduled registry."""

        def write(pipe: Pipeline) -> None:
            key = rq_keys.job_key(claim.job_id)
            pipe.hset(key, mapping=self._ended(JobStatus.SCHEDULED, verdict.reason))
            pipe.hincrby(key, JobField.FAILURES if verdict.uses_attempt else JobField.TRANSIENTS, 1)
            scheduled = rq_keys.scheduled_key(claim.queue)
            pipe.eval(scripts.SCHEDULE, 1, scheduled, claim.job_id, f"{verdict.delay_seconds:.6f}")
            self._result(
                pipe,
                self._record(claim),
                Result.Type.RETRIED,
                claim,
                started_at,
                _RETRIED_TTL_SECONDS,
                error=f"{verdict.reason}\ntried again in {verdict.delay_seconds:.1f} s",
            )

        return self._fenced(claim, JobStatus.SCHEDULED, write)

    def _fenced(
        self,
        claim: Claim,
        ending: JobStatus,
        write: Callable[[Pipeline], None],
        write_gone: Callable[[Pipeline], None] | None = None,
    ) -> Standing:
        """Run `write` and the end of the lease in one MULTI if the job is ours; returns whose it was."""
        with self._client.pipeline(transaction=True) as pipe:
            while True:
                try:
                    pipe.watch(rq_keys.job_key(claim.job_id))  # type: ignore[no-untyped-call]
                    status, execution = self._look(pipe, claim)
                    found = standing(status, execution, claim.execution_id, ending)
                    if found is Standing.OURS:
                        pipe.multi()
                        write(pipe)
                        self._release(pipe, claim)
                    elif found is Standing.GONE and write_gone is not None:
                        pipe.multi()
                        write_gone(pipe)
                    else:
                        return found
                    pipe.execute()
                    return found
                except redis.WatchError:
                    # Somebody changed the job between the look and the write: look again.
                    continue

    @staticmethod
    def _look(pipe: Pipeline, claim: Claim) -> tuple[str | None, str | None]:
        """Status and owner; a watching pipeline answers at once."""
        reply = pipe.hmget(rq_keys.job_key(claim.job_id), [JobField.STATUS, JobField.EXECUTION])
        status, execution = (None if value is None else text(value) for value in reply)
        return status, execution

    def _release(self, pipe: Pipeline, claim: Claim) -> None:
        pipe.zrem(rq_keys.started_key(claim.queue), claim.member)
        pipe.delete(rq_keys.execution_key(claim.job_id, claim.execution_id))
        pipe.zrem(rq_keys.job_executions_key(claim.job_id), claim.execution_id)
        pipe.srem(rq_keys.worker_executions_key(self._worker), claim.member)

    @staticmethod
    def _ended(status: JobStatus, error: str) -> dict[Any, str]:
        return {JobField.STATUS: status.value, "ended_at": utcformat(now()), JobField.ERROR: error}

    def _record(self, claim: Claim) -> SafeJob:
        """The job as rq's registries and results want it; nothing of the hash is in it."""
        job = SafeJob(claim.job_id, connection=self._client, serializer=JsonSerializer)
        job.origin = claim.queue
        return job

    def _result(
        self,
        pipe: Pipeline,
        job: SafeJob,
        kind: Result.Type,
        claim: Claim,
        started_at: datetime,
        ttl: int,
        *,
        value: object = None,
        error: str | None = None,
    ) -> None:
        """What rq-dashboard shows of this start."""
        Result.create(
            job,
            kind,
            ttl,
            return_value=value,
            exc_string=error,
            worker_name=self._worker,
            pipeline=pipe,
            execution_id=claim.execution_id,
            execution_started_at=started_at,
            execution_ended_at=now(),
        )
