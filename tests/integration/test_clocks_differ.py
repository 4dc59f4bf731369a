"""Hosts whose clocks differ: only Redis's clock says how old something is."""

from __future__ import annotations

import socket
import time
from datetime import timedelta

import pytest
import redis
from rq.utils import now

from common import health
from common.history import read_history
from common.messages import BatchReport, ExtractBatch, UploadFile, UploadReceipt
from common.queues import QueueCounts
from common.redis_client import clock_of
from common.run_state import Progress, RunRecord, note_stored, read_progress, register_run
from common.settings.catalogue import QueueSettings, SpoolSettings
from common.worker import presence
from common.worker.lease import Leases
from common.worker.presence import Presence
from monitor.facts import read_facts
from monitor.snapshot import take_snapshot
from monitor.views import Snapshot
from producer.recording import Recording
from producer.submission import Standing

RUN = "seen-0123456789ab"
WORKER = "gpu_worker-h-1"
KEY = f"rq:worker:{WORKER}"
HOUR = 3600.0


def _beat(client: redis.Redis, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    """The worker is heard of; its host's clock is `ahead` of Redis's by so many seconds."""
    with monkeypatch.context() as patched:
        patched.setattr(f"{presence.__name__}.now", lambda: now() + timedelta(seconds=ahead))
        _, fields = Presence(WORKER, "gpu_worker").fields(running=0)
    Leases(client, WORKER, QueueSettings()).beat([], None, fields)


def _look(client: redis.Redis, ahead: float = 0.0) -> Snapshot:
    """What a monitor sees whose clock is `ahead`."""
    facts = read_facts(client, SpoolSettings(spool_dir="/nonexistent"), 45.0, None)
    return take_snapshot(facts, time.time() + ahead)


@pytest.mark.parametrize("worker_ahead", [-HOUR, 0.0, HOUR])
@pytest.mark.parametrize("monitor_ahead", [-HOUR, HOUR])
def test_a_worker_lives_whatever_the_clocks_of_hosts_say(
    worker_ahead: float, monitor_ahead: float, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    _beat(redis_client, monkeypatch, worker_ahead)
    (process,) = _look(redis_client, monitor_ahead).processes
    assert process.state == "idle"
    assert process.heartbeat_seconds_ago is not None
    assert process.heartbeat_seconds_ago < 45


def test_a_worker_whose_clock_is_ahead_is_silent_once_it_is(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    _beat(redis_client, monkeypatch, HOUR)
    redis_client.hincrbyfloat(KEY, "hf_heard_at", -60)
    (process,) = _look(redis_client).processes
    assert process.state == "silent"


def test_what_is_stored_is_as_old_as_redis_says(redis_client: redis.Redis) -> None:
    record = RunRecord(run_id=RUN, model="m", samples=20, tokens=20, batches=2, submitted_at=1.0)
    register_run(redis_client, record)
    batch = ExtractBatch(
        run_id=RUN, batch_id=0, tokens="t", row_group=0, samples=10, tokens_total=10, longest=1
    )
    message = UploadFile(
        batch=batch, spool="s", path="p", key="k", size_bytes=1, checksum="crc32:AAAAAA==",
        report=BatchReport(worker=WORKER, device="cpu"),
    )  # fmt: skip
    receipt = UploadReceipt(
        run_id=RUN, batch_id=0, key="k", outcome="stored", size_bytes=1, upload_seconds=1.0
    )
    before = clock_of(redis_client)
    with redis_client.pipeline() as pipe:
        note_stored(pipe, message, receipt, uploader="uploader-h-2")
        pipe.execute()
    progress = read_progress(redis_client, RUN)
    (uploader,) = progress.uploaders
    for first_at, last_at in ((progress.first_at, progress.last_at), (uploader.first_at, uploader.last_at)):
        assert before <= first_at == last_at <= clock_of(redis_client)
    (run,) = _look(redis_client, -HOUR).runs
    assert run.workers[0].last_seconds_ago is not None
    assert run.workers[0].last_seconds_ago < 45


def test_the_history_has_one_clock(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    before = clock_of(redis_client)
    monkeypatch.setattr(time, "time", lambda: before + HOUR)
    standing = Standing(state="active", progress=Progress(run_id=RUN), counts=QueueCounts(), pending=0)
    Recording(redis_client, RUN).look(0.0, standing, [])
    (point,) = read_history(redis_client, RUN)
    assert abs(point.at - before) < HOUR / 2


def test_health_goes_by_redis(
    redis_client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDENFEED_REDIS_URL", redis_url)
    _beat(redis_client, monkeypatch, 0.0)
    redis_client.hset(KEY, "hostname", socket.gethostname())
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + HOUR)
    assert health.main(["gpu_worker"]) == 0
    redis_client.hincrbyfloat(KEY, "hf_heard_at", -60)
    assert health.main(["gpu_worker"]) == 1
