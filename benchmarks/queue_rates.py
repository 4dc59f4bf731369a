"""How many jobs a second: a fleet of workers with jobs that do nothing, and the same fleet without jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import redis

from benchmarks.queue_fleet import fleet, pause, wait_until
from benchmarks.queue_jobs import EXTRACT_QUEUE, manifests
from common import rq_keys
from common.queues import enqueue, extract_request, queue_counts, upload_queue_name
from common.settings.catalogue import ExtractSettings, QueueSettings

#: GPU workers that share a host, and so a spool and a queue of uploads.
WORKERS_PER_HOST = 8

_PATIENCE_SECONDS = 120.0
_STAGED = "benchmark:staged"


@dataclass(frozen=True)
class Rate:
    """What one fleet did."""

    jobs_per_s: float
    #: Of one core, while the jobs ran.
    redis_cpu_share: float


def measure_rate(url: str, workers: int, *, jobs: int, seconds: float) -> Rate:
    """A fleet of `workers` processes ends no-op jobs for `seconds`, or until nearly all of `jobs` are done."""
    settings, slots = QueueSettings(), ExtractSettings().batches_in_flight
    queue, few = rq_keys.queue_key(EXTRACT_QUEUE), min(jobs // 3, workers * slots)
    # A first few per slot open connections and write to memory that was shared until then.
    warm = max(2 * jobs // 3, jobs - 4 * few)
    with redis.Redis.from_url(url) as client:
        enqueue(client, [extract_request(manifest) for manifest in manifests(jobs)], settings)
        # Out of sight until all workers are there: then all begin at once, with nobody busy enqueueing.
        client.rename(queue, _STAGED)
        with fleet(url, "noop", settings, workers=workers, slots=slots):
            client.rename(_STAGED, queue)
            _wait_left(client, warm, "the first jobs")
            left, cpu, began = _left(client), cpu_seconds(client), time.perf_counter()
            end = began + seconds
            _wait_left(client, few, "jobs", or_if=lambda: time.perf_counter() >= end)
            done, took = left - _left(client), time.perf_counter() - began
            return Rate(done / took, (cpu_seconds(client) - cpu) / took)


def measure_idle(url: str, workers: int, *, seconds: float) -> float:
    """Share of a core that Redis spends on each worker of a fleet that has nothing to do.

    There are as many queues as a fleet of that size has: its run's, and one of uploads per host.
    """
    with redis.Redis.from_url(url) as client:
        for host in range(-(-workers // WORKERS_PER_HOST)):
            client.sadd(rq_keys.QUEUES, rq_keys.queue_key(upload_queue_name(f"host-{host}")))
        with fleet(url, "noop", QueueSettings(), workers=workers, slots=1):
            # What a start costs is no part of it.
            pause(1.0)
            cpu, began = cpu_seconds(client), time.perf_counter()
            pause(seconds)
            return (cpu_seconds(client) - cpu) / (time.perf_counter() - began) / workers


def cpu_seconds(client: redis.Redis) -> float:
    """Seconds of CPU that the server has used so far, in all its threads."""
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def _wait_left(client: redis.Redis, few: int, what: str, or_if: Callable[[], bool] = lambda: False) -> None:
    """Until `few` jobs are left at most."""
    wait_until(
        lambda: or_if() or _left(client) <= few, _PATIENCE_SECONDS, f"{what} to end", pause_seconds=0.02
    )


def _left(client: redis.Redis) -> int:
    return queue_counts(client, EXTRACT_QUEUE).unfinished
