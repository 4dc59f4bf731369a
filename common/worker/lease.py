"""Owning jobs: starting one, and telling Redis that those in hand are still worked on."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec
import redis
from rq.utils import now, utcformat

from common import rq_keys
from common.logs import get_logger
from common.redis_client import text
from common.rq_keys import JobField
from common.settings.catalogue import QueueSettings
from common.worker import scripts

#: What rq allows in an id; anything else on a queue was not put there by us.
_JOB_ID = re.compile(rb"[A-Za-z0-9_-]{1,300}")

log = get_logger("worker")


class Popped(msgspec.Struct, frozen=True):
    """A job id taken off a queue, and the execution under which it will be claimed."""

    queue: str
    job_id: str
    execution_id: str

    @classmethod
    def new(cls, queue: str, job_id: str) -> Popped:
        """With a fresh execution id."""
        return cls(queue, job_id, uuid4().hex)


class Claim(msgspec.Struct, frozen=True):
    """A started job that this process owns while its lease lasts."""

    queue: str
    job_id: str
    execution_id: str
    #: The job's hash as it was at the start, not trusted.
    raw: Mapping[bytes, bytes]

    @property
    def member(self) -> str:
        """The claim's entry in the started registry."""
        return rq_keys.composite(self.job_id, self.execution_id)

    def counter(self, field: str) -> int:
        """One of the job's counters; 0 if it is missing or not a number."""
        value = self.raw.get(field.encode(), b"")
        return int(value) if value.isdigit() else 0

    @property
    def queued_at(self) -> float:
        """When the job was put on its queue, in seconds since the epoch by Redis's clock; 0 if nobody noted it."""
        try:
            at = float(self.raw.get(JobField.QUEUED_AT.encode(), b"0"))
        except ValueError:
            return 0.0
        return at if math.isfinite(at) and at > 0 else 0.0

    @property
    def description(self) -> str:
        """For people."""
        return text(self.raw.get(JobField.DESCRIPTION.encode(), b""))


class Leases:
    """The leases of one worker."""

    def __init__(self, client: redis.Redis, worker_name: str, settings: QueueSettings) -> None:
        self._client, self._worker, self._settings = client, worker_name, settings
        self._claim = client.register_script(scripts.CLAIM)
        self._beat = client.register_script(scripts.BEAT)
        self._unpop = client.register_script(scripts.UNPOP)

    def pop(self, queue: str, wait_seconds: int) -> Popped | None:
        """The id at the head of the queue, waited for; it lies in the intermediate list until claimed."""
        intermediate = rq_keys.intermediate_key(queue)
        popped = self._client.blmove(rq_keys.queue_key(queue), intermediate, wait_seconds)
        if popped is None:
            return None
        if isinstance(popped, bytes) and _JOB_ID.fullmatch(popped):
            return Popped.new(queue, popped.decode())
        log.error("refused an entry of the queue that is no job id", queue=queue, entry=text(popped)[:100])
        self._client.lrem(intermediate, 1, popped)  # type: ignore[arg-type]  # redis-py takes bytes
        return None

    def claim(self, popped: Popped) -> Claim | None:
        """Start the job; None if it is gone or another's. After a lost reply it may be called again."""
        job_id, execution_id = popped.job_id, popped.execution_id
        keys = [
            rq_keys.intermediate_key(popped.queue),
            rq_keys.job_key(job_id),
            rq_keys.started_key(popped.queue),
            rq_keys.execution_key(job_id, execution_id),
            rq_keys.job_executions_key(job_id),
            rq_keys.worker_executions_key(self._worker),
        ]
        arguments: list[Any] = [
            job_id,
            execution_id,
            self._settings.lease_seconds,
            utcformat(now()),
            self._worker,
            popped.queue,
        ]
        reply: list[bytes] = self._claim(keys=keys, args=arguments)
        raw = dict(zip(reply[::2], reply[1::2], strict=True))
        return Claim(popped.queue, job_id, execution_id, raw) if raw else None

    def unpop(self, popped: Popped) -> bool:
        """Put an id that was popped and not claimed back at the head; False if it was no longer waiting."""
        keys = [
            rq_keys.intermediate_key(popped.queue),
            rq_keys.queue_key(popped.queue),
            rq_keys.job_key(popped.job_id),
        ]
        return bool(self._unpop(keys=keys, args=[popped.job_id]))

    def beat(self, claims: Sequence[Claim], queue: str | None, fields: Mapping[str, str]) -> set[str]:
        """Renew all leases and the worker's own entry in one call; returns the execution ids that are lost.

        `fields` are the worker's hash, `queue` the one it serves. After a FLUSHALL this registers
        the worker again, and brings none of its jobs back.
        """
        keys = [
            rq_keys.worker_key(self._worker),
            rq_keys.WORKERS,
            rq_keys.queue_workers_key(queue) if queue is not None else "",
            rq_keys.worker_executions_key(self._worker),
        ]
        lease = self._settings.lease_seconds
        # A dead worker is seen until its jobs are taken over.
        seen = lease + 2 * self._settings.heartbeat_seconds
        arguments: list[str | int] = [lease, seen, len(fields)]
        arguments += [part for pair in fields.items() for part in pair]
        for claim in claims:
            arguments += [
                rq_keys.started_key(claim.queue),
                claim.member,
                rq_keys.execution_key(claim.job_id, claim.execution_id),
                rq_keys.job_executions_key(claim.job_id),
            ]
        lost: list[bytes] = self._beat(keys=keys, args=arguments)
        return {text(member).rpartition(":")[2] for member in lost}
