"""How long until the work of a killed process goes on?

Each round is a database of its own with two worker processes: one has jobs in hand and is killed as
kill -9 does, the other is idle. Measured is the time until the last of those jobs has been started
again. The rounds run side by side, their kills spread evenly over the time between two heartbeats.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from benchmarks.progress import doing
from benchmarks.queue_fleet import Fleet, fleet, pause, wait_until
from benchmarks.queue_jobs import manifests, starts
from common.queues import JobRequest, enqueue, extract_request
from common.settings.catalogue import QueueSettings
from standalone.servers import start_redis

#: Promised beyond the lease.
ALLOWED_EXTRA_SECONDS = 5.0
#: Longest wait beyond the lease; a round that takes longer has failed.
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    rounds: int
    jobs_in_flight: int
    settings: QueueSettings


QUICK = Scale(
    rounds=2,
    jobs_in_flight=4,
    settings=QueueSettings(lease_seconds=3, heartbeat_seconds=1, maintenance_seconds=1),
)
FULL = Scale(rounds=10, jobs_in_flight=8, settings=QueueSettings())


class Round:
    """A worker with jobs in hand, and one that will take them over."""

    def __init__(self, url: str, scale: Scale, stack: ExitStack) -> None:
        """Returns when the first worker has all jobs in hand and the second is there."""
        self._client = stack.enter_context(redis.Redis.from_url(url))
        self._jobs = [extract_request(manifest) for manifest in manifests(scale.jobs_in_flight)]
        enqueue(self._client, self._jobs, scale.settings)
        settings, slots = scale.settings, scale.jobs_in_flight
        self._victim = stack.enter_context(fleet(url, "hold", settings, workers=1, slots=slots))
        self._first_beat, self._beat = time.monotonic(), settings.heartbeat_seconds
        wait_until(lambda: self._started(self._victim), _PATIENCE_SECONDS, "jobs to be started")
        self._survivor = stack.enter_context(fleet(url, "mark", settings, workers=1, slots=slots))
        self._killed_at = 0.0

    def due(self, after: float, phase: float) -> float:
        """The first moment from `after` on that is `phase`, 0 to 1, of the way from one heartbeat to the next."""
        return after + (self._first_beat + phase * self._beat - after) % self._beat

    def kill(self) -> None:
        """Kill the first worker."""
        self._killed_at = time.monotonic()
        self._victim.kill()

    def seconds(self) -> float | None:
        """From the kill to the start of the last job in the second worker; None while that has not come."""
        if not self._started(self._survivor):
            return None
        return max(at for job in self._jobs for _, at in starts(self._client, job.job_id)) - self._killed_at

    def _started(self, worker: Fleet) -> bool:
        return all(self._is_started(worker, job) for job in self._jobs)

    def _is_started(self, worker: Fleet, job: JobRequest) -> bool:
        return any(pid == worker.pid for pid, _ in starts(self._client, job.job_id))


def run(*, quick: bool) -> dict[str, Any]:
    """Kill one worker per round; returns what is printed."""
    scale = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="hfbench-") as folder:
        server = start_redis(Path(folder))
        try:
            doing(f"{scale.rounds} workers are killed, one after the other")
            urls = [server.database_url(number) for number in range(scale.rounds)]
            seconds = _seconds(urls, scale)
        finally:
            server.stop()
    settings = scale.settings
    return {
        "seconds_median": statistics.median(seconds),
        "seconds_max": max(seconds),
        "seconds": seconds,
        "lease_seconds": settings.lease_seconds,
        "heartbeat_seconds": settings.heartbeat_seconds,
        "maintenance_seconds": settings.maintenance_seconds,
        "allowed": settings.lease_seconds + ALLOWED_EXTRA_SECONDS,
        "rounds": scale.rounds,
        "jobs_in_flight": scale.jobs_in_flight,
    }


def describe(results: dict[str, Any]) -> list[str]:
    """The results for people."""
    return [
        f"kill -9 of a worker with {results['jobs_in_flight']} jobs in hand, {results['rounds']} rounds, "
        f"lease {results['lease_seconds']} s:",
        f"  all of them started again after {results['seconds_median']:.1f} s (median), "
        f"{results['seconds_max']:.1f} s at most; allowed {results['allowed']:.0f} s",
    ]


def _seconds(urls: list[str], scale: Scale) -> list[float]:
    """What each round took; the longer ago the last heartbeat was, the later in the list."""
    with ExitStack() as stack:
        rounds = [Round(url, scale, stack) for url in urls]
        ready = time.monotonic()
        phases = [(number + 0.5) / len(rounds) for number in range(len(rounds))]
        kills = [(each.due(ready, phase), each) for each, phase in zip(rounds, phases, strict=True)]
        for due, each in sorted(kills, key=lambda kill: kill[0]):
            pause(max(0.0, due - time.monotonic()))
            each.kill()
        longest = scale.settings.lease_seconds + _PATIENCE_SECONDS
        wait_until(
            lambda: all(each.seconds() is not None for each in rounds), longest, "jobs to be restarted"
        )
        return [seconds for each in rounds if (seconds := each.seconds()) is not None]
