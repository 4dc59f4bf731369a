"""Enqueueing: in bulk, atomic, and never a job twice."""

from __future__ import annotations

import threading

import pytest
import redis

from common import rq_keys
from common.messages import BatchReport, ExtractBatch, UploadFile
from common.queues import (
    EXTRACT_FUNCTION,
    JobRequest,
    QueueCounts,
    cancel_jobs,
    drop_queue,
    enqueue,
    extract_request,
    job_states,
    open_queue,
    queue_counts,
    queue_names,
    upload_request,
)
from common.safe_job import parse_call
from common.worker.lease import Leases
from tests.worker_rig import QUEUE, SETTINGS, Gate, make_worker, returns, running, state, wait_until, work


def ids(client: redis.Redis, queue: str = QUEUE) -> list[str]:
    """Job ids on the queue, head first."""
    return open_queue(client, queue).get_job_ids()


def test_jobs_keep_their_order_and_a_bulk_takes_few_round_trips(redis_client: redis.Redis) -> None:
    requests = [work(number) for number in range(600)]
    # The script is in the server's cache from here on.
    enqueue(redis_client, [work(0)], SETTINGS)
    redis_client.flushdb()
    with redis_client.monitor() as monitor:  # type: ignore[no-untyped-call]
        assert enqueue(redis_client, requests, SETTINGS) == 600
        redis_client.echo("the end")
        database, seen = redis_client.connection_pool.connection_kwargs["db"], list[str]()
        while not seen or "the end" not in seen[-1]:
            entry = monitor.next_command()
            if entry["db"] == database and entry["client_type"] != "lua":
                seen.append(entry["command"])
    # The monitor took the pooled connection, so there is another handshake.
    names = [command.split()[0] for command in seen]
    assert [name for name in names if name not in ("HELLO", "CLIENT", "SELECT")] == ["EVALSHA"] * 3 + ["ECHO"]
    assert ids(redis_client) == [request.job_id for request in requests]
    assert queue_counts(redis_client, QUEUE) == QueueCounts(queued=600)
    assert queue_names(redis_client) == [QUEUE]


def test_a_queued_or_repeated_job_is_left_as_it_is(redis_client: redis.Redis) -> None:
    assert enqueue(redis_client, [work(1, "first"), work(1, "twice in one call")], SETTINGS) == 1
    assert enqueue(redis_client, [work(1, "again"), work(2)], SETTINGS) == 1
    assert ids(redis_client) == [work(1).job_id, work(2).job_id]
    raw = redis_client.hgetall(rq_keys.job_key(work(1).job_id))
    assert parse_call(raw, {"tests.work"}).payload == {"text": "first"}  # type: ignore[arg-type]


def test_two_producers_at_once_queue_nothing_twice(redis_client: redis.Redis) -> None:
    requests = [work(number) for number in range(500)]
    counts: list[int] = []
    together = threading.Barrier(4)

    def produce() -> None:
        together.wait()
        counts.append(enqueue(redis_client, requests, SETTINGS))

    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 500
    assert sorted(ids(redis_client)) == [request.job_id for request in requests]


def test_a_started_job_is_left_alone_and_a_finished_one_is_replaced(redis_client: redis.Redis) -> None:
    gate, job = Gate(), work(1)
    enqueue(redis_client, [job], SETTINGS)
    with running(make_worker(redis_client, gate)):
        gate.wait_entered()
        assert enqueue(redis_client, [job], SETTINGS) == 0
        gate.open()
        wait_until(lambda: state(redis_client, job) == "finished")
    assert enqueue(redis_client, [job], SETTINGS) == 1
    assert state(redis_client, job) == "queued"
    assert redis_client.ttl(rq_keys.job_key(job.job_id)) == -1
    assert not redis_client.exists(rq_keys.results_key(job.job_id))
    assert queue_counts(redis_client, QUEUE) == QueueCounts(queued=1)


def test_a_failed_job_is_replaced_and_leaves_the_failed_registry(redis_client: redis.Redis) -> None:
    job = work(1, function="os.system")
    enqueue(redis_client, [job], SETTINGS)
    with running(make_worker(redis_client, returns(""))):
        wait_until(lambda: state(redis_client, job) == "failed")
    assert enqueue(redis_client, [work(1)], SETTINGS) == 1
    assert queue_counts(redis_client, QUEUE) == QueueCounts(queued=1)


@pytest.mark.parametrize("status", ["queued", "started", "scheduled"])
def test_a_job_that_no_list_holds_is_not_taken_for_alive(redis_client: redis.Redis, status: str) -> None:
    key = rq_keys.job_key(work(1).job_id)
    redis_client.hset(key, mapping={"status": status, "origin": QUEUE, "hf_execution": "gone"})
    assert enqueue(redis_client, [work(0), work(1), work(2)], SETTINGS) == 3
    assert redis_client.hget(key, "hf_execution") is None


def test_a_job_that_redis_lost_a_part_of_is_called_lost(redis_client: redis.Redis) -> None:
    held, waiting = work(1), work(2)
    enqueue(redis_client, [held, waiting], SETTINGS)
    leases = Leases(redis_client, "a-worker", SETTINGS)
    popped = leases.pop(QUEUE, 1)
    assert popped is not None

    def states() -> list[str | None]:
        return list(job_states(redis_client, [held.job_id, waiting.job_id]).values())

    assert states() == ["queued", "queued"]
    assert leases.claim(popped) is not None
    assert states() == ["started", "queued"]
    redis_client.delete(rq_keys.started_key(QUEUE), rq_keys.queue_key(QUEUE))
    assert states() == ["lost", "lost"]
    redis_client.hset(rq_keys.job_key(held.job_id), "status", "scheduled")
    assert states() == ["lost", "lost"]
    redis_client.zadd(rq_keys.scheduled_key(QUEUE), {held.job_id: 2**40})
    assert states() == ["scheduled", "lost"]
    assert enqueue(redis_client, [held, waiting], SETTINGS) == 1
    assert states() == ["scheduled", "queued"]
    redis_client.hset(rq_keys.job_key(held.job_id), "status", "failed")
    assert states() == ["lost", "queued"]
    redis_client.zadd(rq_keys.failed_key(QUEUE), {held.job_id: 2**40})
    assert states() == ["failed", "queued"]


def test_a_popped_job_counts_as_queued(redis_client: redis.Redis) -> None:
    enqueue(redis_client, [work(1)], SETTINGS)
    redis_client.lmove(rq_keys.queue_key(QUEUE), rq_keys.intermediate_key(QUEUE))
    assert queue_counts(redis_client, QUEUE).queued == 1
    assert enqueue(redis_client, [work(1)], SETTINGS) == 0


def test_a_popped_job_that_nobody_started_comes_back(redis_client: redis.Redis) -> None:
    lost, stale = work(1), work(2)
    enqueue(redis_client, [lost], SETTINGS)
    redis_client.lmove(rq_keys.queue_key(QUEUE), rq_keys.intermediate_key(QUEUE))
    redis_client.rpush(rq_keys.intermediate_key(QUEUE), stale.job_id)
    with running(make_worker(redis_client, returns("done"))):
        wait_until(lambda: state(redis_client, lost) == "finished")
        wait_until(lambda: redis_client.llen(rq_keys.intermediate_key(QUEUE)) == 0)
    assert redis_client.hget(rq_keys.job_key(lost.job_id), rq_keys.JobField.TAKEOVERS) is None
    assert state(redis_client, stale) is None


def test_enqueue_into_a_pipeline_happens_with_it(redis_client: redis.Redis) -> None:
    with redis_client.pipeline(transaction=True) as pipe:
        pipe.incr("other")
        assert enqueue(redis_client, [work(1), work(2)], SETTINGS, pipeline=pipe) == 2
        assert ids(redis_client) == []
        assert pipe.execute() == [1, 2]
    assert ids(redis_client) == [work(1).job_id, work(2).job_id]


def test_cancelling_takes_waiting_jobs_and_leaves_started_ones(redis_client: redis.Redis) -> None:
    gate, jobs = Gate(), [work(number) for number in range(300)]
    enqueue(redis_client, jobs, SETTINGS)
    with running(make_worker(redis_client, gate, slots=1)):
        gate.wait_entered()
        assert cancel_jobs(redis_client, QUEUE) == 299
        assert queue_counts(redis_client, QUEUE) == QueueCounts(started=1)
        gate.open()
        wait_until(lambda: queue_counts(redis_client, QUEUE) == QueueCounts(finished=1))
    drop_queue(redis_client, QUEUE)
    assert redis_client.keys("*") == []


def test_requests_of_messages_have_speaking_names(redis_client: redis.Redis) -> None:
    batch = ExtractBatch(
        run_id="chat-0123456789ab",
        batch_id=42,
        tokens="chat-0123456789ab/tokens.parquet",
        row_group=42,
        samples=128,
        tokens_total=51234,
        longest=900,
    )
    upload = UploadFile(
        batch=batch,
        spool="default",
        path="chat-0123456789ab/000042-x.safetensors",
        key="chat-0123456789ab/batches/000042.safetensors",
        size_bytes=3_000_000,
        checksum="crc32:AAAAAA==",
        report=BatchReport(worker="gpu_worker-a", device="cpu"),
    )
    requests: list[JobRequest] = [extract_request(batch), upload_request(upload)]
    assert [(request.queue, request.job_id) for request in requests] == [
        ("extract-chat-0123456789ab", "extract-chat-0123456789ab-000042"),
        ("upload-default", "upload-chat-0123456789ab-000042"),
    ]
    enqueue(redis_client, requests, SETTINGS)
    raw = redis_client.hgetall(rq_keys.job_key(requests[0].job_id))
    call = parse_call(raw, {EXTRACT_FUNCTION})  # type: ignore[arg-type]
    assert call.payload["row_group"] == 42
    assert raw[b"description"] == b"extract batch 42 of chat-0123456789ab: 128 samples, 51,234 tokens"
    assert job_states(redis_client, ["nobody"]) == {"nobody": None}
