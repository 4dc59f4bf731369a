"""Writes the history of runs while the page is served: a point every ten seconds, whether anybody looks or not."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

import redis

from common.history import FINE_SECONDS, MONITOR, Point, write_point
from common.periodic import Periodic
from monitor.views import RunView, Snapshot

_OVER = ("complete", "cancelled")


class Recorder:
    """A thread that takes snapshots and writes points. For use in a `with` block."""

    def __init__(self, client: redis.Redis, read: Callable[[], Snapshot]) -> None:
        self._client, self._read = client, read
        self._writer = f"{MONITOR}-{socket.gethostname()}-{secrets.token_hex(4)}"
        self._periodic = Periodic("writing the history", self.record, FINE_SECONDS)

    def __enter__(self) -> Recorder:
        self._periodic.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._periodic.stop()

    def record(self) -> None:
        """One point for every run that is not over; raises the client's errors."""
        snapshot = self._read()
        if snapshot.redis_error:
            return
        for run in snapshot.runs:
            if run.state not in _OVER:
                write_point(self._client, run.run_id, self._writer, point_of(run, snapshot))


def point_of(run: RunView, snapshot: Snapshot) -> Point:
    """The run at this moment."""
    alive = [process.role for process in snapshot.processes if process.state != "silent"]
    spool = snapshot.spool
    return Point(
        at=round(snapshot.at, 1),
        batches=run.batches,
        tokens=run.tokens,
        bytes=run.size_bytes,
        backlog=sum(queue.queued + queue.started + queue.retrying for queue in snapshot.uploads),
        queued=run.queued,
        started=run.started,
        failed=run.failed + sum(queue.failed for queue in snapshot.uploads),
        workers=alive.count("gpu_worker"),
        uploaders=alive.count("uploader"),
        spool_bytes=spool.size_bytes + spool.part_bytes if spool else None,
        spool_cap_bytes=spool.cap_bytes if spool else None,
    )
