"""One run on its queue, step by step against a real Redis: what is enqueued, and what is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from common import rq_keys
from common.messages import BatchReport, ExtractBatch, UploadFile
from common.queues import (
    enqueue,
    extract_job_id,
    extract_queue_name,
    job_states,
    upload_job_id,
    upload_queue_name,
    upload_request,
)
from common.redis_client import text
from common.rq_keys import JobField
from common.run_state import get_run, set_run_priority, set_run_state
from common.settings.catalogue import QueueSettings
from hiddenfeed.errors import TransientError
from hiddenfeed.layout import batch_key, tokens_key
from hiddenfeed.store.directory import DirectoryStore
from producer.decide import MAX_LOST, UPLOAD_PATIENCE_SECONDS
from producer.failed import failures, retry_failed
from producer.submission import AUDIT_SECONDS, Submission
from tests.synthetic_run import SyntheticRun, synthetic_run

BATCHES = 6
SETTINGS = QueueSettings()


class Bench:
    """A prepared run of six batches in a folder, and ways to change what Redis says of its jobs."""

    def __init__(self, store: DirectoryStore, client: redis.Redis) -> None:
        self.store, self.client = store, client
        self.run: SyntheticRun = synthetic_run(batches=BATCHES)
        self.run.prepare(store)
        self.now = 0.0
        self.manifests = [
            ExtractBatch(
                run_id=self.run.run_id,
                batch_id=batch,
                tokens=tokens_key(self.run.run_id),
                row_group=batch,
                samples=len(samples),
                tokens_total=sum(len(sample.input_ids) for sample in samples),
                longest=max(len(sample.input_ids) for sample in samples),
            )
            for batch, samples in enumerate(self.run.batches)
        ]

    def submission(self, window: int = 100) -> Submission:
        """A producer that has just come up."""
        submission = Submission(
            self.store,
            self.client,
            self.run.document,
            self.manifests,
            queue_settings=SETTINGS,
            window=window,
            clock=lambda: self.now,
        )
        submission.open()
        return submission

    def retry(self) -> int:
        """What failed is tried again."""
        return retry_failed(self.client, self.run.run_id, self.manifests, SETTINGS)

    def queued(self) -> list[int]:
        """Batches on the queue, in order."""
        raw = self.client.lrange(rq_keys.queue_key(extract_queue_name(self.run.run_id)), 0, -1)
        return [int(text(job_id).rpartition("-")[2]) for job_id in raw]

    def take(self, *batches: int, status: str) -> None:
        """Take extractions off the queue into another state, as a worker does."""
        for batch in batches:
            job_id, queue = extract_job_id(self.run.run_id, batch), extract_queue_name(self.run.run_id)
            self.client.lrem(rq_keys.queue_key(queue), 0, job_id)
            self._put(queue, job_id, status)

    def upload(self, batch: int, status: str = "queued") -> None:
        """An upload job of a batch, in a state."""
        message = UploadFile(
            batch=self.manifests[batch],
            spool="default",
            path="x.safetensors",
            key=batch_key(self.run.run_id, batch),
            size_bytes=1,
            checksum="crc32:AAAAAA==",
            report=BatchReport(worker="w", device="cpu"),
        )
        request = upload_request(message)
        enqueue(self.client, [request], SETTINGS)
        if status != "queued":
            self.client.lrem(rq_keys.queue_key(request.queue), 0, request.job_id)
            self._put(request.queue, request.job_id, status)

    def _put(self, queue: str, job_id: str, status: str) -> None:
        self.client.hset(rq_keys.job_key(job_id), mapping={"status": status, JobField.EXECUTION: "x"})
        if status == "started":
            self.client.zadd(rq_keys.started_key(queue), {rq_keys.composite(job_id, "x"): 2**40})
        elif status in ("failed", "scheduled"):
            registry = {"failed": rq_keys.failed_key, "scheduled": rq_keys.scheduled_key}[status]
            self.client.zadd(registry(queue), {job_id: 2**40})

    def store_batch(self, *batches: int) -> None:
        for batch in batches:
            self.store.write(self.run.key(batch), self.run.batch_file(batch))


@pytest.fixture
def bench(tmp_path: Path, redis_client: redis.Redis) -> Bench:
    (tmp_path / "store").mkdir()
    return Bench(DirectoryStore(tmp_path / "store"), redis_client)


def test_exactly_what_the_store_lacks_is_enqueued_in_order(bench: Bench) -> None:
    bench.store_batch(1, 4)
    standing = bench.submission().step()
    assert bench.queued() == [0, 2, 3, 5]
    assert (standing.counts.queued, standing.pending, standing.stored) == (4, 0, False)


def test_a_window_is_filled_up_as_workers_take_from_it(bench: Bench) -> None:
    submission = bench.submission(window=2)
    assert submission.step().pending == 4
    assert bench.queued() == [0, 1]
    submission.step()
    assert bench.queued() == [0, 1]
    bench.take(0, status="started")
    submission.step()
    assert bench.queued() == [1, 2]


def test_nothing_is_enqueued_twice_by_a_second_producer(bench: Bench) -> None:
    first, second = bench.submission(window=3), bench.submission(window=6)
    first.step()
    bench.take(0, status="started")
    second.step()
    first.step()
    assert bench.queued() == [1, 2, 3, 4, 5]


def test_a_second_producer_that_lags_leaves_done_batches_alone(bench: Bench) -> None:
    lagging = bench.submission(window=2)
    lagging.step()
    bench.submission(window=6).step()
    # While it slept, everything was extracted; two files are on their way, one was stored.
    bench.take(*range(BATCHES), status="finished")
    bench.upload(2)
    bench.upload(3, "started")
    bench.store_batch(0, 1, 4, 5)
    standing = lagging.step()
    assert bench.queued() == []
    assert not standing.stored


def test_a_file_on_its_way_is_waited_for(bench: Bench) -> None:
    submission = bench.submission()
    submission.step()
    bench.take(*range(BATCHES), status="finished")
    bench.store_batch(*range(1, BATCHES))
    bench.upload(0)
    for _ in range(3):
        bench.now += 100
        standing = submission.step()
        assert (bench.queued(), standing.stored, standing.stuck) == ([], False, False)
    bench.store_batch(0)
    bench.now += 100
    assert submission.step().stored


def test_jobs_that_redis_lost_are_enqueued_again_once_the_queue_is_idle(bench: Bench) -> None:
    submission = bench.submission()
    submission.step()
    bench.store_batch(0, 1)
    bench.take(0, 1, status="finished")
    # As after a crash of Redis that lost its last second.
    for batch in range(2, BATCHES):
        bench.take(batch, status="queued")
        bench.client.delete(rq_keys.job_key(extract_job_id(bench.run.run_id, batch)))
    bench.now += 100
    submission.step()
    assert bench.queued() == [2, 3, 4, 5]


@pytest.mark.parametrize("status", ["queued", "popped", "started", "scheduled"])
def test_a_job_whose_list_or_registry_redis_lost_is_enqueued_again(bench: Bench, status: str) -> None:
    submission, queue = bench.submission(), extract_queue_name(bench.run.run_id)
    submission.step()
    bench.store_batch(*range(1, BATCHES))
    bench.take(*range(1, BATCHES), status="finished")
    if status in ("started", "scheduled"):
        bench.take(0, status=status)
    elif status == "popped":
        bench.client.lmove(rq_keys.queue_key(queue), rq_keys.intermediate_key(queue))
    bench.now += 100
    assert not submission.step().stored
    assert bench.queued() == ([0] if status == "queued" else [])
    for key in (rq_keys.queue_key, rq_keys.intermediate_key, rq_keys.started_key, rq_keys.scheduled_key):
        bench.client.delete(key(queue))
    bench.now += 100
    submission.step()
    assert bench.queued() == [0]


def test_an_upload_that_redis_lost_is_left_to_its_uploaders_for_a_while(bench: Bench) -> None:
    submission = bench.submission()
    submission.step()
    bench.take(*range(BATCHES), status="finished")
    bench.store_batch(*range(1, BATCHES))
    bench.upload(0)
    bench.client.delete(rq_keys.queue_key(upload_queue_name("default")))
    for seconds, queued in ((100, []), (UPLOAD_PATIENCE_SECONDS - 1, []), (1, []), (AUDIT_SECONDS, [0])):
        bench.now += seconds
        submission.step()
        assert bench.queued() == queued


def test_a_wiped_redis_gets_the_run_its_counters_and_its_queue_back(bench: Bench) -> None:
    submission = bench.submission()
    submission.step()
    bench.store_batch(0, 3)
    bench.client.flushdb()
    standing = submission.step()
    assert bench.queued() == [1, 2, 4, 5]
    assert get_run(bench.client, bench.run.run_id) is not None
    assert (standing.progress.batches, standing.progress.bytes) == (
        2,
        len(bench.run.batch_file(0)) + len(bench.run.batch_file(3)),
    )
    assert standing.progress.samples == bench.manifests[0].samples + bench.manifests[3].samples


def test_a_wiped_redis_does_not_undo_a_pause(bench: Bench) -> None:
    submission, run_id = bench.submission(), bench.run.run_id
    submission.step()
    set_run_state(bench.client, run_id, "paused")
    set_run_priority(bench.client, run_id, 3)
    submission.step()
    bench.client.flushdb()
    assert submission.step().state == "paused"
    record = get_run(bench.client, run_id)
    assert record is not None
    assert (record.state, record.priority) == ("paused", 3)
    assert bench.queued() == []
    set_run_state(bench.client, run_id, "active")
    submission.step()
    assert bench.queued() == list(range(BATCHES))


def test_a_failed_upload_ends_the_wait_only_when_nothing_else_goes_on(bench: Bench) -> None:
    submission = bench.submission()
    submission.step()
    bench.take(*range(BATCHES), status="finished")
    bench.store_batch(2, 3, 4, 5)
    bench.upload(0, "failed")
    bench.upload(1)
    bench.now += 100
    assert not submission.step().stuck
    bench.store_batch(1)
    bench.now += 100
    standing = submission.step()
    assert (standing.stuck, standing.failed) == (True, (0,))
    assert failures(bench.client, bench.run.run_id)[0].startswith(f"upload batch 0 of {bench.run.run_id}: ")
    assert failures(bench.client, "another-run") == []
    assert bench.retry() == 1
    job_id = upload_job_id(bench.run.run_id, 0)
    assert job_states(bench.client, [job_id]) == {job_id: "queued"}
    bench.now += 100
    assert not submission.step().stuck


def test_all_that_failed_is_retried_however_few_are_shown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.submission()
    for batch in range(3):
        bench.upload(batch, "failed")
    monkeypatch.setattr("producer.failed._FAILURES_SHOWN", 1)
    assert len(failures(bench.client, bench.run.run_id)) == 1
    assert bench.retry() == 3


def test_a_failed_job_that_cannot_be_read_is_queued_anew_from_the_plan(bench: Bench) -> None:
    submission = bench.submission()
    submission.step()
    bench.take(*range(BATCHES), status="finished")
    bench.store_batch(2, 3, 4, 5)
    bench.take(0, status="failed")
    bench.upload(1, "failed")
    extracts = [rq_keys.job_key(extract_job_id(bench.run.run_id, batch)) for batch in (0, 1)]
    before = [bench.client.hget(key, JobField.DATA) for key in extracts]
    upload = upload_job_id(bench.run.run_id, 1)
    for key in (extracts[0], rq_keys.job_key(upload)):
        bench.client.hset(key, JobField.DATA, "[]")
    assert bench.retry() == 2
    assert bench.queued() == [0, 1]
    assert [bench.client.hget(key, JobField.DATA) for key in extracts] == before
    assert bench.retry() == 0
    bench.now += 100
    assert not submission.step().stuck


def test_a_run_of_a_longer_name_has_failures_of_its_own(bench: Bench) -> None:
    bench.upload(0, "failed")
    prefix = bench.run.run_id.rpartition("-")[0]
    assert failures(bench.client, prefix) == []
    assert retry_failed(bench.client, prefix, bench.manifests, SETTINGS) == 0


def test_a_batch_that_gets_lost_is_tried_a_few_times(bench: Bench) -> None:
    submission = bench.submission()
    submission.step()
    bench.store_batch(*range(1, BATCHES))
    bench.take(*range(BATCHES), status="finished")
    for _ in range(MAX_LOST):
        bench.now += 100
        submission.step()
        assert bench.queued() == [0]
        bench.take(0, status="finished")
    bench.now += 100
    standing = submission.step()
    assert (standing.stuck, standing.failed, submission.lost) == (True, (0,), [0])


def test_a_paused_run_is_not_filled_and_a_producer_does_not_undo_the_pause(bench: Bench) -> None:
    bench.submission(window=1).step()
    set_run_state(bench.client, bench.run.run_id, "paused")
    bench.take(0, status="started")
    standing = bench.submission(window=3).step()
    assert (standing.state, bench.queued()) == ("paused", [])
    set_run_state(bench.client, bench.run.run_id, "active")


@pytest.mark.parametrize("state", ["cancelled", "complete"])
def test_a_run_that_is_taken_up_becomes_active(bench: Bench, state: Any) -> None:
    bench.submission()
    set_run_state(bench.client, bench.run.run_id, state)
    assert bench.submission().step().state == "active"


def test_what_could_not_be_enqueued_is_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    submission = bench.submission()

    def away(*arguments: Any, **options: Any) -> int:
        # The first half arrives, the reply does not.
        enqueue(arguments[0], arguments[1][:3], arguments[2])
        raise TransientError("Redis is not there")

    monkeypatch.setattr("producer.submission.enqueue", away)
    with pytest.raises(TransientError):
        submission.step()
    monkeypatch.undo()
    assert bench.queued() == [0, 1, 2]
    submission.step()
    assert bench.queued() == [0, 1, 2, 3, 4, 5]


def test_a_run_that_is_closed_is_complete(bench: Bench) -> None:
    submission = bench.submission()
    submission.step()
    submission.close()
    record = get_run(bench.client, bench.run.run_id)
    assert record is not None
    assert record.state == "complete"


def test_a_run_that_another_producer_has_ended_is_not_waited_for(bench: Bench) -> None:
    """What this one has queued once more nobody takes, as workers have nothing to do with a run that is over."""
    submission = bench.submission()
    submission.step()
    bench.run.write(bench.store)
    bench.take(*range(BATCHES - 2), status="finished")
    set_run_state(bench.client, bench.run.run_id, "complete")
    bench.now += AUDIT_SECONDS
    standing = submission.step()
    assert (standing.stored, standing.counts.queued) == (True, 2)
    submission.close()
    assert bench.queued() == []


def test_a_run_that_another_producer_has_ended_and_that_lost_a_batch_goes_on(bench: Bench) -> None:
    submission = bench.submission()
    submission.step()
    bench.run.write(bench.store, batches=range(BATCHES - 1))
    bench.take(*range(BATCHES), status="finished")
    set_run_state(bench.client, bench.run.run_id, "complete")
    bench.now += AUDIT_SECONDS
    standing = submission.step()
    assert (standing.state, standing.stored) == ("active", False)
    assert bench.queued() == [BATCHES - 1]


def test_what_was_queued_while_the_run_was_cancelled_is_taken_off_again(bench: Bench) -> None:
    submission = bench.submission(window=2)
    submission.step()
    set_run_state(bench.client, bench.run.run_id, "cancelled")
    assert bench.queued() == [0, 1]
    assert submission.step().state == "cancelled"
    assert bench.queued() == []
