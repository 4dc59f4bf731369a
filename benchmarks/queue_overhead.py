"""What the queue costs a batch: one worker takes it through extraction and upload, all bookkeeping and no work."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import redis

from benchmarks.queue_jobs import chooser, handlers, manifests, open_run
from benchmarks.queue_rates import cpu_seconds
from common.queues import enqueue, extract_request
from common.redis_client import connect
from common.settings.catalogue import QueueSettings, RedisSettings
from common.worker import Handler, JobContext, Worker
from hiddenfeed.errors import PermanentError

_LEG_SECONDS = 300.0


@dataclass(frozen=True)
class Overhead:
    """Of one batch. Milliseconds are from the start of one handler to the start of the next, the median of all."""

    enqueue_ms: float
    #: Choose a queue, pop, claim, start a thread, and finish with the upload's announcement in the same MULTI.
    extract_ms: float
    #: Pop, claim, start a thread, and finish with the run's counters in the same MULTI.
    upload_ms: float
    #: The server's CPU for all of it.
    redis_cpu_ms: float


def measure_overhead(url: str, batches: int) -> Overhead:
    """Batches one after the other, so that nothing is hidden behind anything."""
    client = connect(RedisSettings(redis_url=url))
    try:
        open_run(client, batches)
        cpu, began = cpu_seconds(client), time.perf_counter()
        requests = [extract_request(manifest) for manifest in manifests(batches)]
        enqueue(client, requests, QueueSettings())
        enqueued = time.perf_counter() - began
        extract_ms = _leg(client, "extract", batches)
        upload_ms = _leg(client, "upload", batches)
        redis_ms = 1000 * (cpu_seconds(client) - cpu) / batches
    finally:
        client.close()
    return Overhead(1000 * enqueued / batches, extract_ms, upload_ms, redis_ms)


def _leg(client: redis.Redis, kind: str, batches: int) -> float:
    """Milliseconds per job of one kind, with one slot."""
    stamps: list[float] = []
    done = threading.Event()

    def stamped(handler: Handler) -> Handler:
        def handle(payload: Any, context: JobContext) -> msgspec.Struct | None:
            stamps.append(time.perf_counter())
            if len(stamps) == batches:
                done.set()
            return handler(payload, context)

        return handle

    worker = Worker(
        redis=client,
        role="benchmark",
        queues=chooser(kind, client),
        handlers={function: stamped(handler) for function, handler in handlers(kind, client).items()},
        settings=QueueSettings(),
        slots=lambda: 1,
    )
    thread = threading.Thread(target=worker.run, name=f"{kind} worker")
    thread.start()
    try:
        if not done.wait(_LEG_SECONDS):
            raise PermanentError(f"{kind}: {len(stamps)} of {batches} jobs in {_LEG_SECONDS:.0f} s")
    finally:
        worker.stop()
        thread.join()
    return 1000 * statistics.median(later - earlier for earlier, later in pairwise(stamps))
