"""What a handler is given besides its message, and the one thing it may raise that is no error."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from redis.client import Pipeline

from common.queues import JobRequest


class GiveBack(Exception):  # noqa: N818 - it is a request, not an error
    """Raised by a handler: back to the head of the queue, no attempt used. Its text says why."""


class JobContext:
    """One start of one job, seen from its handler. Used by the handler's thread alone."""

    def __init__(
        self,
        *,
        job_id: str,
        worker_name: str,
        attempt: int = 1,
        queue: str = "",
        queued_at: float = 0.0,
        stopping: Event | None = None,
        lost: Event | None = None,
    ) -> None:
        self.job_id = job_id
        self.worker_name = worker_name
        #: 1 for the first start of the job; starts that were given back do not count.
        self.attempt = attempt
        #: Name of the queue the job came from.
        self.queue = queue
        #: When the job was put there, in seconds since the epoch by Redis's clock; 0 if that is not known.
        self.queued_at = queued_at
        #: Set once the process wants to end or the job is past its deadline: finish what takes
        #: seconds, raise GiveBack instead of waiting for anything.
        self.stopping = stopping if stopping is not None else Event()
        #: Set when another process owns the job by now: whatever this one returns is dropped.
        self.lost = lost if lost is not None else Event()
        self.follow_ups: list[JobRequest] = []
        self.finishers: list[Callable[[Pipeline], object]] = []
        self.losers: list[Callable[[], object]] = []

    def follow_up(self, request: JobRequest) -> None:
        """Enqueue `request` in the MULTI that finishes this job, if it finishes."""
        self.follow_ups.append(request)

    def on_finish(self, add: Callable[[Pipeline], object]) -> None:
        """Add commands to the MULTI that finishes this job; `add` may be called more than once."""
        self.finishers.append(add)

    def on_lost(self, clean_up: Callable[[], object]) -> None:
        """Call `clean_up` if the job turns out to be another's when its handler has returned.

        The place to delete what only this start of the job knew of, such as its spool file.
        """
        self.losers.append(clean_up)
