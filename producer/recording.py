"""The history of a run while its producer follows it, for the case that no monitor does."""

from __future__ import annotations

import secrets
import socket

import redis

from common.history import FINE_SECONDS, PRODUCER, point_of, write_point
from common.queues import UPLOAD_QUEUE_PREFIX, QueueCounts, queue_counts, queue_names
from common.redis_client import clock_of, translated
from common.worker.presence import WorkerInfo
from producer.submission import Standing


class Recording:
    """Writes a point every ten seconds, if nobody else does."""

    def __init__(self, client: redis.Redis, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._writer = f"{PRODUCER}-{socket.gethostname()}-{secrets.token_hex(4)}"
        self._next = 0.0

    def look(self, now: float, standing: Standing, workers: list[WorkerInfo]) -> None:
        """Take note; `now` is any clock that never goes back. Raises TransientError when Redis is away."""
        if now < self._next:
            return
        uploads = _uploads(self._client)
        roles = [worker.role for worker in workers]
        clock = clock_of(self._client)
        point = point_of(clock, standing.progress, standing.counts, uploads, roles, None)
        with translated(self._client):
            write_point(self._client, self._run_id, self._writer, point)
        self._next = now + FINE_SECONDS


def _uploads(client: redis.Redis) -> QueueCounts:
    """All upload queues together."""
    counts = [
        queue_counts(client, name) for name in queue_names(client) if name.startswith(UPLOAD_QUEUE_PREFIX)
    ]
    return QueueCounts(
        queued=sum(each.queued for each in counts),
        started=sum(each.started for each in counts),
        scheduled=sum(each.scheduled for each in counts),
        failed=sum(each.failed for each in counts),
    )
