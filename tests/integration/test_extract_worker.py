"""`python -m gpu_worker` as a process: serves runs from a real Redis, survives kill -9, ends when told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import redis

from common.messages import UploadFile
from common.queues import (
    enqueue,
    extract_queue_name,
    extract_request,
    job_states,
    open_queue,
    queue_counts,
    upload_job_id,
    upload_queue_name,
)
from common.run_state import RunRecord, register_run
from common.settings.catalogue import QueueSettings
from common.worker import list_workers
from hiddenfeed.checksum import file_checksum
from tests.extraction import TinyRun, tiny_run

_ROOT = Path(__file__).parents[2]
_DEADLINE_SECONDS = 120.0
_QUICK_LEASES = ("--lease-seconds", "3", "--heartbeat-seconds", "1", "--maintenance-seconds", "1")


def _submit(client: redis.Redis, run: TinyRun, batches: int | None = None) -> None:
    plan = run.document.plan
    record = RunRecord(
        run_id=run.run_id,
        model=run.document.model,
        samples=plan.samples,
        tokens=plan.tokens,
        batches=plan.batches,
        submitted_at=time.time(),
    )
    register_run(client, record)
    enqueue(client, [extract_request(message) for message in run.manifests[:batches]], QueueSettings())


def _arguments(run: TinyRun, redis_url: str) -> list[str]:
    return [
        *("--store", str(run.store.root), "--redis-url", redis_url),
        *("--spool-dir", str(run.folder / "spool"), "--spool", "tiny", "--spool-free-bytes", "0"),
        *("--device", "cpu", "--threads", "1", *_QUICK_LEASES),
    ]


@contextmanager
def _worker(run: TinyRun, redis_url: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "gpu_worker", *_arguments(run, redis_url), *flags]
    process = subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _wait_for(true: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not true():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"the worker ended with {process.returncode}: {process.communicate()[1]}")
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


def _announced(client: redis.Redis, run: TinyRun) -> list[UploadFile]:
    """The upload jobs on the queue."""
    queue = open_queue(client, upload_queue_name("tiny"))
    payloads = [job.args[0] for job in queue.jobs]
    return [msgspec.convert(payload, UploadFile) for payload in payloads]


def _assert_all_there(client: redis.Redis, run: TinyRun) -> None:
    uploads = _announced(client, run)
    assert sorted(upload.batch.batch_id for upload in uploads) == list(range(len(run.manifests)))
    spool = run.spool()
    for upload in uploads:
        path = spool.resolve(upload.path)
        assert path.stat().st_size == upload.size_bytes
        assert file_checksum(path) == upload.checksum


def test_fleet_serves_a_run_and_ends_when_told_though_a_worker_was_killed(
    tmp_path: Path, redis_url: str, redis_client: redis.Redis
) -> None:
    run = tiny_run(tmp_path)
    uploads, count = upload_queue_name("tiny"), len(run.manifests)
    with _worker(run, redis_url, "--devices", "cpu") as supervisor:
        # The worker is there before the run is.
        _wait_for(lambda: len(list_workers(redis_client)) == 1, supervisor)
        (worker,) = list_workers(redis_client)
        assert worker.pid != supervisor.pid
        _submit(redis_client, run)
        _wait_for(lambda: queue_counts(redis_client, uploads).queued > 0, supervisor)
        os.kill(worker.pid, signal.SIGKILL)
        _wait_for(lambda: queue_counts(redis_client, uploads).queued == count, supervisor)
        supervisor.send_signal(signal.SIGTERM)
        _, errors = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 0, errors
    assert errors.count("process started") == 2
    assert queue_counts(redis_client, extract_queue_name(run.run_id)).unfinished == 0
    assert set(job_states(redis_client, [upload_job_id(run.run_id, 0)]).values()) == {"queued"}
    _assert_all_there(redis_client, run)
    assert not list((tmp_path / "spool").glob("*/*.part"))
    assert run.spool().usage().part_bytes == 0


def test_pinned_run_whose_model_is_gone_ends_the_worker(
    tmp_path: Path, redis_url: str, redis_client: redis.Redis
) -> None:
    run = tiny_run(tmp_path)
    run.model.rename(tmp_path / "elsewhere")
    _submit(redis_client, run)
    with _worker(run, redis_url, "--run", run.run_id) as process:
        _, errors = process.communicate(timeout=_DEADLINE_SECONDS)
    assert process.returncode == 2
    assert errors.splitlines()[-1] == f"error: model folder {run.model} is not there"
    assert queue_counts(redis_client, extract_queue_name(run.run_id)).queued == len(run.manifests)
