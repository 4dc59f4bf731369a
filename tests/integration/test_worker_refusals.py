"""Redis is not trusted: what a hostile job asks for is refused, and the worker lives on."""

from __future__ import annotations

import pickle
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from rq import Callback
from rq.job import Job
from rq.queue import Queue

from common import rq_keys
from common.queues import cancel_jobs, enqueue, failed_jobs, open_queue, requeue_failed
from hiddenfeed.errors import PermanentError
from tests.worker_rig import FUNCTION, QUEUE, SETTINGS, make_worker, returns, running, state, wait_until, work


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def push(client: redis.Redis, job_id: str, fields: dict[Any, Any]) -> None:
    """A job written by hand."""
    client.hset(
        rq_keys.job_key(job_id),
        mapping={"status": "queued", "origin": QUEUE, "description": job_id, **fields},
    )
    client.rpush(rq_keys.queue_key(QUEUE), job_id)
    client.sadd(rq_keys.QUEUES, rq_keys.queue_key(QUEUE))


def call(
    function: Any = FUNCTION, instance: Any = None, arguments: Any = ({},), keywords: Any = None
) -> bytes:
    """A call as rq writes it, in JSON."""
    return msgspec.json.encode([function, instance, arguments, keywords or {}])


def test_every_hostile_job_fails_with_its_reason_and_the_next_job_runs(
    redis_client: redis.Redis, tmp_path: Path
) -> None:
    mark = tmp_path / "unpickled"
    bomb = pickle.dumps(Bomb(mark))
    hostile: dict[str, tuple[dict[Any, Any], str]] = {
        "other-function": ({"data": call("os.system", arguments=["true"])}, "names the function 'os.system'"),
        "no-function": ({"data": call(None)}, "names the function None"),
        "listed-function": ({"data": call([FUNCTION])}, "names the function"),
        "instance": ({"data": call(instance={"a": 1})}, "carries an instance"),
        "keywords": ({"data": call(keywords={"a": 1})}, "keyword arguments"),
        "two-arguments": ({"data": call(arguments=[1, 2])}, "exactly one argument"),
        "pickle": ({"data": bomb}, "is not JSON"),
        "packed-pickle": ({"data": zlib.compress(bomb)}, "is not JSON"),
        "no-data": ({}, "is not JSON"),
        "not-a-call": ({"data": b"[1]"}, "is not a call"),
        "deep": ({"data": b"[" * 100_000}, "is not JSON"),
        "bomb": ({"data": zlib.compress(bytes(50_000_000))}, "larger than"),
        "callback": ({"data": call(), "success_callback_name": "os.abort"}, "sets success_callback_name"),
        "failure-callback": (
            {"data": call(), "failure_callback_name": "os.abort"},
            "sets failure_callback_name",
        ),
        "webhook": ({"data": call(), "webhooks": b'[{"url": "http://127.0.0.1:1/"}]'}, "sets webhooks"),
        "dependency": ({"data": call(), "dependency_ids": b'["x"]'}, "sets dependency_ids"),
    }
    for job_id, (fields, _) in hostile.items():
        push(redis_client, job_id, fields)
    # What rq itself would choke on: every other field is garbage, and so is the entry on the queue.
    push(
        redis_client,
        "garbage",
        {"data": call(), "timeout": b"\xff", "created_at": b"never", "meta": bomb, "result": bomb},
    )
    redis_client.rpush(rq_keys.queue_key(QUEUE), b"\xff\xfe", "rq:job:../../x", "nobody")
    good = work(1)
    enqueue(redis_client, [good], SETTINGS)
    with running(make_worker(redis_client, returns("done"))) as codes:
        wait_until(lambda: state(redis_client, good) == "finished")
        wait_until(lambda: len(failed_jobs(redis_client, QUEUE)) == len(hostile))
    assert codes == [0]
    reasons = {failed.job_id: failed.error for failed in failed_jobs(redis_client, QUEUE)}
    for job_id, (_, reason) in hostile.items():
        assert reason in reasons[job_id]
        assert reasons[job_id].startswith("PermanentError: ")
    assert redis_client.hget(rq_keys.job_key("garbage"), "status") == b"finished"
    assert redis_client.llen(rq_keys.intermediate_key(QUEUE)) == 0
    assert not mark.exists()


def test_the_job_class_of_our_queues_can_run_nothing(redis_client: redis.Redis) -> None:
    stock = Queue(QUEUE, connection=redis_client, serializer="json")
    stock.enqueue(
        "os.getpid", job_id="stock", on_success=Callback("os.abort"), on_failure=Callback("os.abort")
    )
    [job] = open_queue(redis_client, QUEUE).jobs
    assert isinstance(job, Job)
    with pytest.raises(PermanentError, match="cannot be run outside of a worker"):
        job.perform()
    assert (job.success_callback, job.failure_callback, job.stopped_callback, job.webhooks) == (
        None,
        None,
        None,
        [],
    )


@pytest.mark.parametrize("place", ["queue", "intermediate", "scheduled", "started"])
def test_a_key_of_another_kind_in_a_jobs_place_stops_nobody(redis_client: redis.Redis, place: str) -> None:
    redis_client.set(rq_keys.job_key("notahash"), "a string")
    redis_client.sadd(rq_keys.QUEUES, rq_keys.queue_key(QUEUE))
    if place == "queue":
        redis_client.rpush(rq_keys.queue_key(QUEUE), "notahash")
    elif place == "intermediate":
        redis_client.rpush(rq_keys.intermediate_key(QUEUE), "notahash")
    elif place == "scheduled":
        redis_client.zadd(rq_keys.scheduled_key(QUEUE), {"notahash": 1.0})
    else:
        redis_client.zadd(rq_keys.started_key(QUEUE), {"notahash:0": 1.0})
    good = work(1)
    enqueue(redis_client, [good], SETTINGS)
    with running(make_worker(redis_client, returns("done"))):
        wait_until(lambda: state(redis_client, good) == "finished")
        wait_until(
            lambda: (
                not redis_client.lrange(rq_keys.intermediate_key(QUEUE), 0, -1)
                and not redis_client.zcard(rq_keys.scheduled_key(QUEUE))
                and not redis_client.zcard(rq_keys.started_key(QUEUE))
            )
        )


def test_a_key_of_another_kind_in_a_jobs_place_stops_no_command(redis_client: redis.Redis) -> None:
    job = work(1)
    for registry in (rq_keys.failed_key, rq_keys.scheduled_key):
        redis_client.zadd(registry(QUEUE), {job.job_id: 2**40})
    redis_client.rpush(rq_keys.queue_key(QUEUE), job.job_id)
    redis_client.set(rq_keys.job_key(job.job_id), "a string")
    assert state(redis_client, job) is None
    assert requeue_failed(redis_client, QUEUE) == 0
    assert cancel_jobs(redis_client, QUEUE) == 2
    redis_client.set(rq_keys.job_key(job.job_id), "a string")
    assert enqueue(redis_client, [job], SETTINGS) == 1
    assert state(redis_client, job) == "queued"
