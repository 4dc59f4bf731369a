"""One worker in this process: how each way of ending a handler ends the job."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest
import redis
from redis.client import Pipeline
from rq.results import Result as RqResult

from common import rq_keys
from common.queues import enqueue, failed_jobs, open_queue, queue_counts, requeue_failed
from common.redis_client import text
from common.worker import GiveBack, JobContext, list_workers
from hiddenfeed.errors import ConfigError, DataError, PermanentError, TransientError
from tests.worker_rig import (
    QUEUE,
    SETTINGS,
    Gate,
    Result,
    make_worker,
    returns,
    running,
    state,
    wait_until,
    work,
)


@pytest.fixture(autouse=True)
def _quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries that are due are found sooner."""
    monkeypatch.setattr("common.worker.chores.TICK_SECONDS", 0.2)


def outcome_text(client: redis.Redis, job_id: str) -> Any:
    """What rq shows as the job's return value."""
    job = open_queue(client, QUEUE).fetch_job(job_id)
    assert job is not None
    return job.return_value()


def test_a_job_runs_once_and_its_result_is_kept(redis_client: redis.Redis) -> None:
    seen: list[tuple[Any, str, int]] = []

    def handler(payload: Any, context: JobContext) -> Result:
        seen.append((payload, context.job_id, context.attempt))
        return Result("done")

    job = work(1, "hello")
    assert enqueue(redis_client, [job], SETTINGS) == 1
    with running(make_worker(redis_client, handler)) as codes:
        wait_until(lambda: state(redis_client, job) == "finished")
    assert seen == [({"text": "hello"}, job.job_id, 1)]
    assert codes == [0]
    assert outcome_text(redis_client, job.job_id) == {"text": "done"}
    assert queue_counts(redis_client, QUEUE).unfinished == 0
    assert redis_client.ttl(rq_keys.job_key(job.job_id)) > 0


def test_nothing_of_a_worker_or_its_executions_is_left_behind(redis_client: redis.Redis) -> None:
    job = work(1)
    enqueue(redis_client, [job], SETTINGS)
    with running(make_worker(redis_client, returns("done"))):
        wait_until(lambda: state(redis_client, job) == "finished")
    left = {text(key) for key in redis_client.keys("*")}
    assert left == {
        rq_keys.QUEUES,
        rq_keys.job_key(job.job_id),
        rq_keys.results_key(job.job_id),
        rq_keys.finished_key(QUEUE),
    }


def test_jobs_run_at_once_up_to_the_slots_and_no_more_are_taken(redis_client: redis.Redis) -> None:
    gate = Gate()
    enqueue(redis_client, [work(number) for number in range(5)], SETTINGS)
    with running(make_worker(redis_client, gate, slots=2)):
        gate.wait_entered()
        gate.wait_entered()
        counts = queue_counts(redis_client, QUEUE)
        assert (counts.started, counts.queued) == (2, 3)
        wait_until(lambda: [info.running for info in list_workers(redis_client)] == [2])
        gate.open()
        wait_until(lambda: queue_counts(redis_client, QUEUE).finished == 5)


def test_a_transient_error_is_tried_again_beyond_all_attempts(redis_client: redis.Redis) -> None:
    starts: list[int] = []

    def handler(payload: Any, context: JobContext) -> Result:
        starts.append(context.attempt)
        if len(starts) <= SETTINGS.job_attempts + 1:
            raise TransientError("the store is away")
        return Result("at last")

    job = work(1)
    enqueue(redis_client, [job], SETTINGS)
    with running(make_worker(redis_client, handler)):
        wait_until(lambda: state(redis_client, job) == "finished")
    assert starts == [1, 2, 3, 4, 5]
    assert redis_client.hget(rq_keys.job_key(job.job_id), rq_keys.JobField.TRANSIENTS) == b"4"
    assert redis_client.hget(rq_keys.job_key(job.job_id), "meta") is None


def test_an_unknown_error_uses_the_attempts_and_then_fails_with_its_traceback(
    redis_client: redis.Redis,
) -> None:
    starts: list[int] = []

    def handler(payload: Any, context: JobContext) -> None:
        starts.append(context.attempt)
        raise ZeroDivisionError("by zero")

    job = work(1)
    enqueue(redis_client, [job], SETTINGS)
    with running(make_worker(redis_client, handler)):
        wait_until(lambda: state(redis_client, job) == "failed")
    assert starts == [1, 2, 3]
    [failed] = failed_jobs(redis_client, QUEUE, 10)
    assert tuple(failed) == (job.job_id, "work 1", "ZeroDivisionError: by zero (failed in all of 3 attempts)")
    record = open_queue(redis_client, QUEUE).fetch_job(job.job_id)
    assert record is not None
    latest = record.latest_result()
    assert latest is not None
    assert latest.type is RqResult.Type.FAILED
    assert "Traceback" in (latest.exc_string or "")


@pytest.mark.parametrize("kind", [DataError, PermanentError, ConfigError])
def test_a_final_error_fails_at_once(redis_client: redis.Redis, kind: type[Exception]) -> None:
    starts: list[int] = []

    def handler(payload: Any, context: JobContext) -> None:
        starts.append(context.attempt)
        raise kind("row 7 is empty")

    job = work(1)
    enqueue(redis_client, [job], SETTINGS)
    with running(make_worker(redis_client, handler)):
        wait_until(lambda: state(redis_client, job) == "failed")
    assert starts == [1]
    assert [failed.error for failed in failed_jobs(redis_client, QUEUE, 10)] == [
        f"{kind.__name__}: row 7 is empty"
    ]


def test_a_failed_job_that_is_requeued_has_all_its_attempts_again(redis_client: redis.Redis) -> None:
    healed = threading.Event()
    starts: list[int] = []

    def handler(payload: Any, context: JobContext) -> Result:
        starts.append(context.attempt)
        if not healed.is_set() or len(starts) < 5:
            raise ZeroDivisionError("by zero")
        return Result("healed")

    job = work(1)
    enqueue(redis_client, [job], SETTINGS)
    with running(make_worker(redis_client, handler)):
        wait_until(lambda: state(redis_client, job) == "failed")
        healed.set()
        assert requeue_failed(redis_client, QUEUE) == 1
        wait_until(lambda: state(redis_client, job) == "finished")
    assert starts == [1, 2, 3, 1, 2]
    assert queue_counts(redis_client, QUEUE).failed == 0
    assert requeue_failed(redis_client, QUEUE) == 0


def test_a_job_past_its_deadline_that_gives_itself_back_has_used_an_attempt(
    redis_client: redis.Redis,
) -> None:
    def handler(payload: Any, context: JobContext) -> None:
        assert context.stopping.wait(30)
        raise GiveBack("stopped as told")

    job = work(1)
    enqueue(redis_client, [job], SETTINGS)
    # A retry far away: nobody's chores may make it due before it is looked at.
    settings = msgspec.structs.replace(SETTINGS, retry_base_seconds=600.0, retry_max_seconds=600.0)
    with running(make_worker(redis_client, handler, settings=settings, job_timeout_seconds=0.5)) as codes:
        wait_until(lambda: codes == [75])
    assert state(redis_client, job) == "scheduled"
    assert redis_client.hget(rq_keys.job_key(job.job_id), rq_keys.JobField.FAILURES) == b"1"


def test_give_back_uses_no_attempt_and_goes_to_the_head(redis_client: redis.Redis) -> None:
    order: list[tuple[str, int]] = []

    def handler(payload: Any, context: JobContext) -> None:
        order.append((payload["text"], context.attempt))
        if len(order) <= SETTINGS.job_attempts + 1:
            raise GiveBack("no room")

    enqueue(redis_client, [work(1, "first"), work(2, "second")], SETTINGS)
    with running(make_worker(redis_client, handler, slots=1)):
        wait_until(lambda: queue_counts(redis_client, QUEUE).finished == 2)
    assert order == [("first", 1)] * 5 + [("second", 1)]


def test_finish_follow_ups_and_extra_commands_are_one_multi(redis_client: redis.Redis) -> None:
    follow_up = work(7, "next", queue="upload-test")

    def handler(payload: Any, context: JobContext) -> Result:
        context.follow_up(follow_up)
        context.on_finish(lambda pipe: pipe.incr("extra"))
        return Result("done")

    job = work(1)
    enqueue(redis_client, [job], SETTINGS)
    with redis_client.monitor() as monitor:  # type: ignore[no-untyped-call]
        with running(make_worker(redis_client, handler)):
            wait_until(lambda: state(redis_client, job) == "finished")
        redis_client.echo("the end")
        commands = []
        for entry in monitor.listen():
            if "the end" in entry["command"]:
                break
            commands.append((entry["client_port"], entry["command"]))
    assert state(redis_client, follow_up) == "queued"
    assert redis_client.get("extra") == b"1"
    [port] = [port for port, command in commands if command == "INCRBY extra 1"]
    mine = [command for at, command in commands if at == port]
    at = mine.index("INCRBY extra 1")
    begin = max(index for index, command in enumerate(mine[:at]) if command == "MULTI")
    end = at + next(index for index, command in enumerate(mine[at:]) if command == "EXEC")
    inside = "\n".join(mine[begin:end])
    assert "status finished" in inside
    assert follow_up.job_id in inside
    assert f"ZREM {rq_keys.started_key(QUEUE)}" in inside


def test_a_follow_up_is_not_enqueued_when_the_job_does_not_finish(redis_client: redis.Redis) -> None:
    follow_up = work(7, queue="upload-test")

    def handler(payload: Any, context: JobContext) -> None:
        context.follow_up(follow_up)
        raise DataError("no")

    job = work(1)
    enqueue(redis_client, [job], SETTINGS)
    with running(make_worker(redis_client, handler)):
        wait_until(lambda: state(redis_client, job) == "failed")
    assert state(redis_client, follow_up) is None


def test_a_finisher_that_raises_fails_the_job_and_the_worker_lives_on(redis_client: redis.Redis) -> None:
    def broken(pipe: Pipeline) -> None:
        raise RuntimeError("finisher")

    def handler(payload: Any, context: JobContext) -> None:
        if payload["text"] == "broken":
            context.on_finish(broken)

    bad, good = work(1, "broken"), work(2)
    enqueue(redis_client, [bad, good], SETTINGS)
    with running(make_worker(redis_client, handler)):
        wait_until(lambda: state(redis_client, bad) == "failed")
        wait_until(lambda: state(redis_client, good) == "finished")
    assert "finisher" in failed_jobs(redis_client, QUEUE, 1)[0].error


def test_the_reason_for_waiting_is_shown_and_no_job_is_taken(redis_client: redis.Redis) -> None:
    reason: list[str | None] = ["the spool is full"]
    job = work(1)
    enqueue(redis_client, [job], SETTINGS)
    with running(make_worker(redis_client, returns("done"), may_take=lambda: reason[0])):
        wait_until(lambda: [info.waiting for info in list_workers(redis_client)] == ["the spool is full"])
        assert state(redis_client, job) == "queued"
        reason[0] = None
        wait_until(lambda: state(redis_client, job) == "finished")


def test_the_reason_for_having_no_queue_is_shown(redis_client: redis.Redis) -> None:
    why = ["cannot serve demo: the self-test failed"]
    with running(make_worker(redis_client, returns("done"), queues=lambda _: None, why_idle=lambda: why[0])):
        wait_until(lambda: [info.waiting for info in list_workers(redis_client)] == why)
        why[0] = ""
        wait_until(lambda: [info.waiting for info in list_workers(redis_client)] == [""])


def test_the_chooser_moves_the_worker_from_queue_to_queue(redis_client: redis.Redis) -> None:
    second = "extract-second"

    def choose(current: str | None) -> str | None:
        for name in (QUEUE, second):
            if queue_counts(redis_client, name).queued:
                return name
        return current

    jobs = [work(1), work(2, queue=second)]
    enqueue(redis_client, jobs, SETTINGS)
    with running(make_worker(redis_client, returns("done"), queues=choose)):
        wait_until(lambda: all(state(redis_client, job) == "finished" for job in jobs))
        wait_until(lambda: [info.queue for info in list_workers(redis_client)] == [second])
        assert redis_client.scard(rq_keys.queue_workers_key(QUEUE)) == 0
        assert redis_client.scard(rq_keys.queue_workers_key(second)) == 1


def test_slots_are_used_and_shown_as_soon_as_they_are_changed(redis_client: redis.Redis) -> None:
    gate, slots = Gate(), [1]
    enqueue(redis_client, [work(number) for number in range(3)], SETTINGS)
    worker = make_worker(redis_client, gate)
    worker._slots = lambda: slots[0]
    with running(worker):
        gate.wait_entered()
        assert queue_counts(redis_client, QUEUE).started == 1
        slots[0] = 3
        gate.wait_entered()
        gate.wait_entered()
        # Fewer, while all are busy.
        slots[0] = 2
        wait_until(lambda: [(one.running, one.slots) for one in list_workers(redis_client)] == [(3, 2)])
        gate.open()


def test_old_finished_jobs_are_forgotten_beyond_the_newest(redis_client: redis.Redis) -> None:
    settings = msgspec.structs.replace(SETTINGS, finished_jobs_max=2)
    jobs = [work(number) for number in range(6)]
    enqueue(redis_client, jobs, settings)
    with running(make_worker(redis_client, returns("done"), settings=settings, slots=1)):
        wait_until(
            lambda: (
                queue_counts(redis_client, QUEUE).finished == 2
                and not queue_counts(redis_client, QUEUE).queued
            )
        )
    assert [state(redis_client, job) for job in jobs] == [None] * 4 + ["finished"] * 2
    assert not redis_client.exists(rq_keys.results_key(jobs[0].job_id))


def test_settings_that_would_take_over_healthy_jobs_are_refused(redis_client: redis.Redis) -> None:
    settings = msgspec.structs.replace(SETTINGS, heartbeat_seconds=2)
    with pytest.raises(ConfigError, match="more than a third"):
        make_worker(redis_client, returns(""), settings=settings)


def test_two_workers_share_the_jobs_and_none_runs_twice(redis_client: redis.Redis) -> None:
    lock, runs = threading.Lock(), dict[str, int]()

    def handler(payload: Any, context: JobContext) -> None:
        with lock:
            runs[context.job_id] = runs.get(context.job_id, 0) + 1

    jobs = [work(number) for number in range(100)]
    enqueue(redis_client, jobs, SETTINGS)
    with running(make_worker(redis_client, handler)), running(make_worker(redis_client, handler)):
        wait_until(lambda: queue_counts(redis_client, QUEUE).finished == 100)
    assert runs == {job.job_id: 1 for job in jobs}
