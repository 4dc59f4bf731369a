"""What does the monitor cost Redis?

A fleet of 1,000 GPU workers and 200 uploaders in the middle of a run, all made up, on a real Redis. The
server's CPU time per look is measured, and divided by the pause that the page keeps between two looks at
a fleet of that size: however many pages are open, they share one look.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from common import rq_keys
from common.messages import BatchReport, ExtractBatch, UploadFile, UploadReceipt
from common.queues import extract_queue_name, upload_queue_name
from common.run_state import RunRecord, note_stored, register_run
from common.settings.catalogue import SpoolSettings
from common.worker.presence import Presence
from hiddenfeed.layout import batch_key, tokens_key
from monitor.facts import read_facts
from monitor.snapshot import take_snapshot
from monitor.web import kept_seconds
from standalone.servers import start_redis

RUN = "benchmark-0123456789ab"
_WORKERS, _UPLOADERS = 1000, 200
_LOOKS, _QUICK_LOOKS = 100, 20


def run(*, quick: bool) -> dict[str, Any]:
    """Measure; `redis_cpu_share` is the result."""
    looks = _QUICK_LOOKS if quick else _LOOKS
    with tempfile.TemporaryDirectory(prefix="hfbench-") as name:
        server = start_redis(Path(name) / "redis")
        try:
            with redis.Redis.from_url(server.url) as client:
                return _measure(client, looks)
        finally:
            server.stop()


def describe(results: dict[str, Any]) -> list[str]:
    """The results for people."""
    return [
        f"{results['workers']:,} workers and {results['uploaders']:,} uploaders:",
        f"  a look costs Redis {results['redis_cpu_ms_per_look']:.1f} ms, and the monitor {results['ms_per_look']:.0f} ms",
        f"  every {results['seconds_between_looks']:.1f} s, that is {results['redis_cpu_share']:.2%} of Redis's time",
    ]


def _measure(client: redis.Redis, looks: int) -> dict[str, Any]:
    _make_fleet(client)
    settings = SpoolSettings(spool="bench", spool_dir="/nonexistent")

    def look() -> float:
        return kept_seconds(take_snapshot(read_facts(client, settings, 45.0, None), time.time()))

    pause = look()
    # What the server spends on itself in the same time.
    began, spent = time.perf_counter(), _cpu_seconds(client)
    for _ in range(looks):
        look()
    whole, spent = time.perf_counter() - began, _cpu_seconds(client) - spent
    return {
        "redis_cpu_share": spent / looks / pause,
        "redis_cpu_ms_per_look": 1000 * spent / looks,
        "seconds_between_looks": pause,
        "ms_per_look": 1000 * whole / looks,
        "workers": _WORKERS,
        "uploaders": _UPLOADERS,
        "looks": looks,
    }


def _cpu_seconds(client: redis.Redis) -> float:
    info: dict[str, Any] = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def _make_fleet(client: redis.Redis) -> None:
    register_run(
        client,
        RunRecord(
            run_id=RUN,
            model="m",
            samples=10**6,
            tokens=10**9,
            batches=10**5,
            squares=10**12,
            submitted_at=time.time(),
        ),
    )
    names = [
        (f"gpu_worker-host-{number}", "gpu_worker", extract_queue_name(RUN)) for number in range(_WORKERS)
    ]
    names += [(f"uploader-host-{number}", "uploader", upload_queue_name("s")) for number in range(_UPLOADERS)]
    with client.pipeline(transaction=False) as pipe:
        for name, role, queue in names:
            presence = Presence(name, role)
            presence.serve(queue, "", 3)
            pipe.hset(
                rq_keys.worker_key(name),
                items=[part for pair in presence.fields(3)[1].items() for part in pair],
            )
            pipe.sadd(rq_keys.WORKERS, rq_keys.worker_key(name))
        for number in range(_WORKERS):
            _note(pipe, number)
        pipe.execute()


def _note(pipe: redis.client.Pipeline, number: int) -> None:
    batch = ExtractBatch(
        run_id=RUN, batch_id=number, tokens=tokens_key(RUN), row_group=number, samples=10, tokens_total=1000, longest=9,
        squares=10**6,
    )  # fmt: skip
    report = BatchReport(
        worker=f"gpu_worker-host-{number}", device="cuda:0", forward_seconds=2.0, total_seconds=3.0
    )
    message = UploadFile(batch=batch, spool="s", path="p", key="k", size_bytes=1, checksum="c", report=report)
    receipt = UploadReceipt(
        run_id=RUN,
        batch_id=number,
        key=batch_key(RUN, number),
        outcome="stored",
        size_bytes=1,
        upload_seconds=1.0,
    )
    note_stored(pipe, message, receipt, time.time(), uploader=f"uploader-host-{number % _UPLOADERS}")
