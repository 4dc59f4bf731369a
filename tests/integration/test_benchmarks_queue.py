"""The queue's benchmarks in their quick form run to their end and say what they promise; how fast is another matter."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks.__main__ import main
from benchmarks.control_plane import BATCH_SECONDS, REDIS_SHARE, WORKERS_PER_GPU, gpus_fed


def quick(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the benchmark's last line says."""
    assert main([name, "--quick", "--json"]) == 0
    results: dict[str, Any] = msgspec.json.decode(capsys.readouterr().out.splitlines()[-1])
    assert (results["benchmark"], results["quick"]) == (name, True)
    return results


def test_control_plane(capsys: pytest.CaptureFixture[str]) -> None:
    results = quick("control_plane", capsys)
    workers = {"1", "4"}
    for figure in ("jobs_per_s", "jobs_per_s_per_process", "redis_cpu_share"):
        assert results[figure].keys() == workers
        assert all(value > 0 for value in results[figure].values())
    parts = results["overhead_parts_ms"]
    assert results["overhead_ms"] == pytest.approx(parts["extract"] + parts["upload"])
    assert results["gpus_one_redis_can_feed"] == gpus_fed(
        results["redis_cpu_ms_per_batch"], results["redis_cpu_share_per_idle_worker"]
    )
    # A message is some hundred bytes, and Redis keeps it as a hash.
    assert 300 < results["redis_bytes_per_queued_batch"] < 5000
    window = results["windowed"]
    assert 0 < window["peak_bytes_first_half"] <= window["peak_bytes"] < window["batches"] * 20_000


def test_recovery(capsys: pytest.CaptureFixture[str]) -> None:
    results = quick("recovery", capsys)
    assert len(results["seconds"]) == results["rounds"]
    # No sooner than the lease allows: a job of a living process must not be taken over.
    assert min(results["seconds"]) > results["lease_seconds"] - results["heartbeat_seconds"] - 1
    assert results["seconds_median"] <= results["seconds_max"] == max(results["seconds"])
    assert results["allowed"] == results["lease_seconds"] + 5


def test_gpus_that_one_redis_feeds_use_up_its_share() -> None:
    assert gpus_fed(1000 * BATCH_SECONDS, 0.0) == 0
    gpus, batch_ms, idle = gpus_fed(1.0, 0.0002), 1.0, 0.0002
    used = gpus * (batch_ms / 1000 / BATCH_SECONDS + WORKERS_PER_GPU * idle)
    assert REDIS_SHARE - 0.001 < used <= REDIS_SHARE
