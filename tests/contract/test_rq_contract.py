"""Every piece of rq's inside that we lean on, by name: one test fails when a new rq moves it.

Our scripts write rq's keys themselves, so rq's own readers are asked here what they see.
"""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import redis
from rq import Worker as StockWorker
from rq import serializers
from rq.executions import WORKER_EXECUTIONS_KEY_TEMPLATE, Execution, ExecutionRegistry
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.registry import (
    FailedJobRegistry,
    FinishedJobRegistry,
    StartedJobRegistry,
)
from rq.results import Result as RqResult
from rq.version import VERSION
from rq.worker_registration import REDIS_WORKER_KEYS, WORKERS_BY_QUEUE_KEY

from common import rq_keys
from common.queues import enqueue, open_queue
from common.redis_client import text
from common.rq_keys import JobField
from common.safe_job import SafeJob, parse_call
from common.serializer import JsonSerializer
from hiddenfeed.errors import TransientError
from tests.worker_rig import FUNCTION, QUEUE, SETTINGS, Gate, make_worker, running, state, wait_until, work


def test_the_major_version_is_the_one_that_was_read() -> None:
    assert VERSION.split(".")[0] == "3"


def test_names_of_keys() -> None:
    assert (rq_keys.QUEUES, rq_keys.WORKERS) == ("rq:queues", "rq:workers")
    assert REDIS_WORKER_KEYS == rq_keys.WORKERS
    assert rq_keys.queue_key("q") == "rq:queue:q"
    assert rq_keys.intermediate_key("q") == "rq:queue:q:intermediate"
    assert rq_keys.job_key("j") == "rq:job:j"
    assert rq_keys.results_key("j") == "rq:results:j"
    assert rq_keys.started_key("q") == "rq:wip:q"
    assert rq_keys.scheduled_key("q") == "rq:scheduled:q"
    assert rq_keys.finished_key("q") == "rq:finished:q"
    assert rq_keys.failed_key("q") == "rq:failed:q"
    assert rq_keys.other_registries("q") == ("rq:deferred:q", "rq:canceled:q")
    assert rq_keys.execution_key("j", "e") == "rq:execution:j:e"
    assert rq_keys.job_executions_key("j") == "rq:executions:j"
    assert rq_keys.worker_key("w") == "rq:worker:w"
    assert rq_keys.worker_executions_key("w") == "rq:worker:w:executions"
    assert rq_keys.queue_workers_key("q") == "rq:workers:q"
    assert rq_keys.queue_workers_key("q") == WORKERS_BY_QUEUE_KEY % "q"
    assert WORKER_EXECUTIONS_KEY_TEMPLATE.format("w") == rq_keys.worker_executions_key("w")


def test_names_of_keys_as_rq_makes_them(redis_client: redis.Redis) -> None:
    queue = Queue("q", connection=redis_client, serializer=JsonSerializer)
    execution = Execution("e", "j", redis_client, "w")
    assert queue.key == rq_keys.queue_key("q")
    assert IntermediateQueue(queue.key, redis_client).key == rq_keys.intermediate_key("q")
    assert StartedJobRegistry(queue=queue).key == rq_keys.started_key("q")
    assert queue.scheduled_job_registry.key == rq_keys.scheduled_key("q")
    assert FinishedJobRegistry(queue=queue).key == rq_keys.finished_key("q")
    assert FailedJobRegistry(queue=queue).key == rq_keys.failed_key("q")
    assert execution.composite_key == rq_keys.composite("j", "e")
    assert execution.key == rq_keys.execution_key("j", "e")
    assert execution.worker_executions_key == rq_keys.worker_executions_key("w")
    assert ExecutionRegistry("j", redis_client).key == rq_keys.job_executions_key("j")


def test_status_words() -> None:
    used = ("queued", "started", "scheduled", "finished", "failed")
    assert [JobStatus(word).value for word in used] == list(used)


def test_a_job_as_rq_writes_it_is_a_call_to_us(redis_client: redis.Redis) -> None:
    stock = Queue(QUEUE, connection=redis_client, serializer="json")
    job = stock.enqueue(FUNCTION, {"text": "x"}, job_id="stock", job_timeout=-1)
    call = parse_call(redis_client.hgetall(job.key), {FUNCTION})  # type: ignore[arg-type]
    assert (call.function, call.payload) == (FUNCTION, {"text": "x"})


def test_a_job_as_we_write_it_is_a_job_to_rq(redis_client: redis.Redis) -> None:
    enqueue(redis_client, [work(1, "x")], SETTINGS)
    job = Job.fetch(work(1).job_id, connection=redis_client, serializer=JsonSerializer)
    assert (job.func_name, job.args, job.kwargs, job.instance) == (FUNCTION, [{"text": "x"}], {}, None)
    assert (job.origin, job.description, job.timeout, job.get_status()) == (
        QUEUE,
        "work 1",
        -1,
        JobStatus.QUEUED,
    )
    assert job.result_ttl == SETTINGS.result_ttl_seconds
    assert job.enqueued_at is not None
    # Everything that rq writes into the hash is written by us, so that its tools find nothing missing.
    ours = {JobField.QUEUED_AT}
    assert {*job.to_dict(), *ours} >= {text(name) for name in redis_client.hkeys(job.key)}


def test_what_a_running_job_looks_like_to_rq(redis_client: redis.Redis) -> None:
    gate, job = Gate(), work(1)
    enqueue(redis_client, [job], SETTINGS)
    with running(make_worker(redis_client, gate)):
        gate.wait_entered()
        queue = open_queue(redis_client, QUEUE)
        [(job_id, execution_id)] = queue.started_job_registry.get_job_and_execution_ids(cleanup=False)
        assert job_id == job.job_id
        record = queue.fetch_job(job_id)
        assert record is not None
        assert record.get_status() == JobStatus.STARTED
        assert record.started_at is not None
        [execution] = record.get_executions()
        assert execution.id == execution_id
        wait_until(
            lambda: [one.queue_names() for one in StockWorker.all(connection=redis_client)] == [[QUEUE]]
        )
        [worker] = StockWorker.all(connection=redis_client, serializer=JsonSerializer)
        assert (worker.name, worker.queue_names()) == (record.worker_name, [QUEUE])
        assert worker.get_current_job_id() == job_id
        assert worker.birth_date is not None
        assert worker.last_heartbeat is not None
        gate.open()
        wait_until(lambda: state(redis_client, job) == "finished")
    assert queue.finished_job_registry.get_job_ids(cleanup=False) == [job.job_id]
    record.refresh()  # type: ignore[no-untyped-call]
    latest = record.latest_result()
    assert latest is not None
    assert (latest.type, latest.return_value) == (RqResult.Type.SUCCESSFUL, {"text": "through the gate"})
    assert (latest.execution_id, latest.worker_name) == (execution_id, worker.name)


def test_what_a_job_that_waits_for_its_retry_looks_like_to_rq(redis_client: redis.Redis) -> None:
    def handler(payload: Any, context: Any) -> None:
        raise TransientError("the store is away")

    settings = msgspec.structs.replace(SETTINGS, retry_base_seconds=600.0, retry_max_seconds=600.0)
    job = work(1)
    enqueue(redis_client, [job], settings)
    with running(make_worker(redis_client, handler, settings=settings)):
        wait_until(lambda: state(redis_client, job) == "scheduled")
    queue = open_queue(redis_client, QUEUE)
    assert queue.scheduled_job_registry.get_job_ids(cleanup=False) == [job.job_id]
    assert queue.scheduled_job_registry.get_scheduled_time(job.job_id) is not None
    record = queue.fetch_job(job.job_id)
    assert record is not None
    latest = record.latest_result()
    assert latest is not None
    assert latest.type is RqResult.Type.RETRIED
    assert "the store is away" in str(latest.exc_string)


def test_overridden_members_exist() -> None:
    for name in ("func", "success_callback", "failure_callback", "stopped_callback"):
        assert isinstance(inspect.getattr_static(Job, name), property)
        assert name in vars(SafeJob)
    assert "restore" in vars(Job)


def test_rq_resolves_its_serializer_at_the_time_of_the_call() -> None:
    """The dashboard replaces these names; rq must look them up there and nowhere else."""
    assert {"DefaultSerializer", "PickleSerializer", "JSONSerializer", "SERIALIZER_ALIASES"} <= set(
        vars(serializers)
    )
    source = inspect.getsource(serializers.resolve_serializer)
    assert "return PickleSerializer" in source
    assert "SERIALIZER_ALIASES" in source
