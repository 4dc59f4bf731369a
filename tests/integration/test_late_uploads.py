"""Files that are uploaded long after they were computed: each rate is that of what it names."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import redis

from common.messages import BatchReport, UploadReceipt
from common.queues import UPLOAD_FUNCTION, enqueue, upload_queue_name, upload_request
from common.redis_client import clock_of
from common.rq_keys import JobField, job_key
from common.run_progress import progress_keys
from common.run_state import FoundBatch, note_found, note_stored, read_progress
from common.worker import JobContext
from hiddenfeed.store.memory import MemoryStore
from tests.upload_rig import RUN, batch, batch_bytes, finished_file, make_spool
from tests.worker_rig import SETTINGS, make_worker, running, state, wait_until
from uploader.upload import FileUploader

QUEUE = upload_queue_name("default")
#: A batch has three samples and 30 tokens.
TOKENS, SECONDS = 30, 10.0


def _note(
    client: redis.Redis, tmp_path: Path, batch_id: int, stored_at: float, computed_at: float | None
) -> None:
    report = BatchReport(worker="gpu_worker-h-1", device="cpu", forward_seconds=5.0, total_seconds=9.0)
    message = msgspec.structs.replace(
        finished_file(make_spool(tmp_path), 0, b"x"), batch=batch(batch_id), report=report, size_bytes=1000
    )
    receipt = UploadReceipt(
        run_id=RUN, batch_id=batch_id, key="k", outcome="stored", size_bytes=1000, upload_seconds=0.1
    )
    with client.pipeline() as pipe:
        note_stored(pipe, message, receipt, stored_at, computed_at=computed_at, uploader="uploader-h-2")
        pipe.execute()


def test_a_late_uploader_makes_no_device_faster(redis_client: redis.Redis, tmp_path: Path) -> None:
    # A batch every ten seconds; after an hour the store is back and takes them all within a second, in any order.
    for place, number in enumerate((1, 0, 2, 5, 3, 4, 6, 7, 9, 8)):
        _note(redis_client, tmp_path, number, 5600.0 + 0.1 * place, 2000.0 + SECONDS * number)
    progress = read_progress(redis_client, RUN)
    (worker,), (uploader,) = progress.workers, progress.uploaders
    assert worker.tokens_per_second == pytest.approx(TOKENS / SECONDS)
    assert progress.tokens_per_second == pytest.approx(TOKENS / SECONDS)
    assert progress.samples_per_second == pytest.approx(3 / SECONDS)
    assert worker.busy == pytest.approx(0.5, rel=0.2)
    assert (worker.last_at, worker.last_computed_at) == (5600.9, 2090.0)
    # What was stored came within the second.
    assert uploader.bytes_per_second == pytest.approx(10_000)
    assert progress.stored_tokens_per_second == pytest.approx(10 * TOKENS)


def test_batches_found_in_the_store_took_no_time(redis_client: redis.Redis, tmp_path: Path) -> None:
    note_found(
        redis_client,
        RUN,
        [FoundBatch(batch_id=number, samples=3, tokens=TOKENS, bytes=1000) for number in range(100, 200)],
    )
    for number in range(5):
        _note(redis_client, tmp_path, number, 2001.0 + SECONDS * number, 2000.0 + SECONDS * number)
    progress = read_progress(redis_client, RUN)
    assert progress.batches == 105
    assert progress.tokens_per_second == pytest.approx(TOKENS / SECONDS)


def test_counters_of_an_earlier_version_go_on(redis_client: redis.Redis, tmp_path: Path) -> None:
    for number in range(5):
        _note(redis_client, tmp_path, number, 2000.0 + SECONDS * number, None)
    _, totals, workers, *_ = progress_keys(RUN)
    redis_client.hdel(totals, "first_computed_at", "last_computed_at")
    for name in ("first_computed_at", "last_computed_at"):
        redis_client.hdel(workers, f"{name} gpu_worker-h-1")
    for expected in (5, 6):
        progress = read_progress(redis_client, RUN)
        assert progress.batches == expected
        assert progress.tokens_per_second == pytest.approx(TOKENS / SECONDS)
        assert progress.workers[0].tokens_per_second == pytest.approx(TOKENS / SECONDS)
        _note(redis_client, tmp_path, 5, 2060.0, 2050.0)


def test_when_a_batch_was_computed_comes_with_its_job(redis_client: redis.Redis, tmp_path: Path) -> None:
    spool, store = make_spool(tmp_path / "spool"), MemoryStore()
    before = clock_of(redis_client)
    contexts: list[JobContext] = []
    uploader = FileUploader(store, spool)

    def handle(payload: object, context: JobContext) -> UploadReceipt:
        contexts.append(context)
        return uploader.upload_file(payload, context)

    request = upload_request(finished_file(spool, 7, batch_bytes(7)))
    assert enqueue(redis_client, [request], SETTINGS) == 1
    noted = float(redis_client.hget(job_key(request.job_id), JobField.QUEUED_AT) or 0)
    assert before <= noted <= clock_of(redis_client)
    # It waited for an hour.
    redis_client.hset(job_key(request.job_id), JobField.QUEUED_AT, noted - 3600)
    with running(make_worker(redis_client, {UPLOAD_FUNCTION: handle}, queue=QUEUE)):
        wait_until(lambda: state(redis_client, request) == "finished")
    progress = read_progress(redis_client, RUN)
    assert contexts[0].queued_at == pytest.approx(noted - 3600)
    assert progress.workers[0].last_computed_at == pytest.approx(noted - 3600)
    assert progress.last_at >= before


@pytest.mark.parametrize("noted", ["", "soon", "nan", "-1"])
def test_a_job_that_says_no_time_is_taken_as_computed_now(
    redis_client: redis.Redis, tmp_path: Path, noted: str
) -> None:
    spool = make_spool(tmp_path / "spool")
    request = upload_request(finished_file(spool, 7, batch_bytes(7)))
    enqueue(redis_client, [request], SETTINGS)
    redis_client.hset(job_key(request.job_id), JobField.QUEUED_AT, noted)
    handlers = {UPLOAD_FUNCTION: FileUploader(MemoryStore(), spool).upload_file}
    with running(make_worker(redis_client, handlers, queue=QUEUE)):
        wait_until(lambda: state(redis_client, request) == "finished")
    progress = read_progress(redis_client, RUN)
    assert progress.last_computed_at == progress.last_at > 0
