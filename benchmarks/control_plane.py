"""What does the queue cost, and how many GPUs can one Redis feed?

Workers are processes, as they are in a fleet, all on this machine together with their Redis: with few
cores the rates of many workers say what the cores do, so Redis's own share of a core is measured
beside them, and what one Redis can feed is derived from that.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.progress import doing
from benchmarks.queue_memory import Window, bytes_per_queued_batch, measure_window
from benchmarks.queue_overhead import Overhead, measure_overhead
from benchmarks.queue_rates import Rate, measure_idle, measure_rate
from common.settings.catalogue import QueueSettings, SubmitSettings
from standalone.servers import start_redis

#: A GPU ends a batch this often.
BATCH_SECONDS = 5.0
#: Promised: 0.2% of such a batch.
OVERHEAD_LIMIT_MS = 10.0
#: Redis serves from one core; this much of it may be used, so that bursts find room.
REDIS_SHARE = 0.5
#: A GPU worker and an uploader, both asking for work every second: more than a busy host has or does.
WORKERS_PER_GPU = 2
LARGE_RUN = 2_000_000
GPUS_FORMULA = (
    f"{REDIS_SHARE} / (redis_cpu_ms_per_batch / 1000 / {BATCH_SECONDS:.0f} s "
    f"+ {WORKERS_PER_GPU} * redis_cpu_share_per_idle_worker)"
)


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    workers: tuple[int, ...]
    rounds: int
    jobs: int
    job_seconds: float
    idle_workers: int
    idle_seconds: float
    batches: int
    queued: int
    windowed: int
    window: int
    settings: QueueSettings


QUICK = Scale(
    workers=(1, 4),
    rounds=1,
    jobs=400,
    job_seconds=0.3,
    idle_workers=8,
    idle_seconds=1.0,
    batches=60,
    queued=2000,
    windowed=400,
    window=40,
    settings=QueueSettings(finished_jobs_max=20, maintenance_seconds=1),
)
FULL = Scale(
    workers=(1, 4, 16, 64),
    rounds=5,
    jobs=12_000,
    job_seconds=3.0,
    idle_workers=64,
    idle_seconds=20.0,
    batches=1000,
    queued=20_000,
    windowed=10_000,
    window=SubmitSettings().queue_window,
    settings=QueueSettings(),
)


def run(*, quick: bool) -> dict[str, Any]:
    """Measure everything on one Redis; returns what is printed."""
    scale = QUICK if quick else FULL
    with _databases() as database:
        overhead = measure_overhead(database(), scale.batches)
        idle = measure_idle(database(), scale.idle_workers, seconds=scale.idle_seconds)
        per_batch = bytes_per_queued_batch(database(), scale.queued)
        window = measure_window(database(), scale.windowed, scale.window, scale.settings)
        rates: dict[int, list[Rate]] = {workers: [] for workers in scale.workers}
        for number in range(scale.rounds):
            for workers, found in rates.items():
                doing(f"round {number + 1} of {scale.rounds}: {workers} workers")
                found.append(measure_rate(database(), workers, jobs=scale.jobs, seconds=scale.job_seconds))
    return _rates(rates) | _overhead(overhead, idle) | _memory(per_batch, window)


def describe(results: dict[str, Any]) -> list[str]:
    """The results for people."""
    window = results["windowed"]
    lines = [f"no-op jobs, one process per worker, {results['cores']} cores for all of them and Redis:"]
    for workers, total in results["jobs_per_s"].items():
        each, share = results["jobs_per_s_per_process"][workers], results["redis_cpu_share"][workers]
        lines.append(
            f"  {workers:>3} workers  {total:6,.0f} jobs/s ({results['jobs_per_s_best'][workers]:,.0f} in the best round), "
            f"{each:6,.1f} each; Redis {share:.1%} of a core"
        )
    return [
        *lines,
        "a batch through the queue (extraction, announcement, upload, counters):",
        f"  overhead     {results['overhead_ms']:.2f} ms (limit {OVERHEAD_LIMIT_MS:.0f} ms), "
        f"{results['overhead_share']:.3%} of a batch of {BATCH_SECONDS:.0f} s",
        f"  Redis        {results['redis_cpu_ms_per_batch']:.2f} ms of CPU per batch; "
        f"{results['redis_cpu_share_per_idle_worker']:.4%} of a core per idle worker",
        f"  one Redis    feeds {results['gpus_one_redis_can_feed']:,} GPUs = {GPUS_FORMULA}",
        "memory of Redis:",
        f"  queued       {results['redis_bytes_per_queued_batch']:,.0f} bytes per batch; "
        f"{results['redis_bytes_2m_batches_at_once'] / 1e9:.2f} GB if {LARGE_RUN:,} were queued at once",
        f"  windowed     peak {window['peak_bytes'] / 1e6:.2f} MB for {window['batches']:,} batches, "
        f"{window['window']:,} at a time (first half {window['peak_bytes_first_half'] / 1e6:.2f} MB); "
        f"{results['redis_bytes_2m_batches_windowed'] / 1e6:.2f} MB for {LARGE_RUN:,}",
    ]


def gpus_fed(redis_cpu_ms_per_batch: float, idle_share_per_worker: float) -> int:
    """How many GPUs keep one Redis at `REDIS_SHARE` of a core, each with a batch every `BATCH_SECONDS`."""
    share_per_gpu = redis_cpu_ms_per_batch / 1000 / BATCH_SECONDS + WORKERS_PER_GPU * idle_share_per_worker
    return int(REDIS_SHARE / share_per_gpu)


def _rates(rates: dict[int, list[Rate]]) -> dict[str, Any]:
    """By number of workers: medians of the rounds, and the round that others on the machine disturbed least."""

    def median(figure: Callable[[Rate], float]) -> dict[str, float]:
        return {str(workers): statistics.median(map(figure, found)) for workers, found in rates.items()}

    def best(found: list[Rate]) -> float:
        return max(rate.jobs_per_s for rate in found)

    per_s = median(lambda rate: rate.jobs_per_s)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "jobs_per_s": per_s,
        "jobs_per_s_best": {str(workers): best(found) for workers, found in rates.items()},
        "jobs_per_s_per_process": {workers: total / int(workers) for workers, total in per_s.items()},
        "redis_cpu_share": median(lambda rate: rate.redis_cpu_share),
    }


def _overhead(overhead: Overhead, idle: float) -> dict[str, Any]:
    total = overhead.extract_ms + overhead.upload_ms
    return {
        "overhead_ms": total,
        "overhead_limit_ms": OVERHEAD_LIMIT_MS,
        "overhead_share": total / 1000 / BATCH_SECONDS,
        "overhead_parts_ms": {"extract": overhead.extract_ms, "upload": overhead.upload_ms},
        "enqueue_ms_per_batch": overhead.enqueue_ms,
        "redis_cpu_ms_per_batch": overhead.redis_cpu_ms,
        "redis_cpu_share_per_idle_worker": idle,
        "gpus_one_redis_can_feed": gpus_fed(overhead.redis_cpu_ms, idle),
        "gpus_formula": GPUS_FORMULA,
    }


def _memory(per_batch: float, window: Window) -> dict[str, Any]:
    return {
        "redis_bytes_per_queued_batch": per_batch,
        "redis_bytes_2m_batches_at_once": round(per_batch * LARGE_RUN),
        # One bit per batch tells which are counted; all else is the window and the finished jobs that are kept.
        "redis_bytes_2m_batches_windowed": window.peak_bytes + LARGE_RUN // 8,
        "windowed": asdict(window),
    }


@contextmanager
def _databases() -> Iterator[Callable[[], str]]:
    """A server, and a function that gives the URL of its next empty database."""
    with tempfile.TemporaryDirectory(prefix="hfbench-") as folder:
        server = start_redis(Path(folder))
        numbers = count()
        try:
            yield lambda: server.database_url(next(numbers))
        finally:
            server.stop()
