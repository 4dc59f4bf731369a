"""Workers as processes: killed, stopped, frozen and hung, and what becomes of their jobs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import redis

from common import rq_keys
from common.queues import enqueue, failed_jobs, job_states, queue_counts
from common.rq_keys import JobField
from common.worker import list_workers
from tests.worker_rig import QUEUE, SETTINGS, state, wait_until, work

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(redis_url: str) -> Iterator[Start]:
    """A function that starts a worker process; all are killed at the end."""
    processes: list[subprocess.Popen[bytes]] = []

    def start_one(*options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.worker_process", redis_url, QUEUE, *options]
        processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        return processes[-1]

    yield start_one
    for process in processes:
        process.kill()
        process.wait()


def runs(client: redis.Redis, number: int) -> list[int]:
    """Process ids in which a job's handler was entered, in order."""
    return [int(pid) for pid in client.lrange(f"runs:{work(number).job_id}", 0, -1)]


def test_kill_9_loses_nothing_and_a_survivor_takes_over(redis_client: redis.Redis, start: Start) -> None:
    jobs = [work(number, "wait") for number in range(4)]
    enqueue(redis_client, jobs, SETTINGS)
    victim = start()
    wait_until(lambda: all(len(runs(redis_client, number)) == 1 for number in range(4)))
    survivor = start()
    wait_until(lambda: len(list_workers(redis_client)) == 2)
    victim.kill()
    wait_until(lambda: all(runs(redis_client, number) == [victim.pid, survivor.pid] for number in range(4)))
    redis_client.set("open", 1)
    wait_until(lambda: set(job_states(redis_client, [job.job_id for job in jobs]).values()) == {"finished"})
    counters = redis_client.hmget(rq_keys.job_key(jobs[0].job_id), JobField.TAKEOVERS, JobField.FAILURES)
    assert counters == [b"1", None]
    wait_until(lambda: len(list_workers(redis_client)) == 1)
    assert queue_counts(redis_client, QUEUE).unfinished == 0
    assert not redis_client.keys(rq_keys.execution_key("*", "*").removesuffix(":*"))


def test_a_job_that_kills_its_process_is_failed_in_the_end(redis_client: redis.Redis, start: Start) -> None:
    job = work(1, "crash")
    enqueue(redis_client, [job], SETTINGS)
    processes = [start("job_takeovers=2")]
    wait_until(lambda: processes[0].poll() == 9)
    processes.append(start("job_takeovers=2"))
    wait_until(lambda: processes[1].poll() == 9)
    start("job_takeovers=2")
    wait_until(lambda: state(redis_client, job) == "failed")
    assert runs(redis_client, 1) == [process.pid for process in processes]
    assert "2 times while the job ran" in failed_jobs(redis_client, QUEUE, 1)[0].error


def test_sigterm_finishes_what_it_can_gives_back_the_rest_and_exits_0(
    redis_client: redis.Redis, start: Start
) -> None:
    slow, waiting = work(1, "wait"), work(2, "quick")
    enqueue(redis_client, [slow], SETTINGS)
    process = start("slots=1", "grace_seconds=1")
    wait_until(lambda: runs(redis_client, 1) == [process.pid])
    enqueue(redis_client, [waiting], SETTINGS)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    # At the head, as if it had never been started.
    assert redis_client.lrange(rq_keys.queue_key(QUEUE), 0, -1) == [
        slow.job_id.encode(),
        waiting.job_id.encode(),
    ]
    counters = (JobField.STARTS, JobField.FAILURES, JobField.TRANSIENTS, JobField.TAKEOVERS)
    assert redis_client.hmget(rq_keys.job_key(slow.job_id), counters) == [b"0", None, None, None]
    assert queue_counts(redis_client, QUEUE).started == 0
    assert list_workers(redis_client) == []


def test_sigterm_waits_for_a_job_that_ends_within_the_grace(redis_client: redis.Redis, start: Start) -> None:
    job = work(1, "wait")
    enqueue(redis_client, [job], SETTINGS)
    process = start()
    wait_until(lambda: runs(redis_client, 1) == [process.pid])
    process.send_signal(signal.SIGTERM)
    redis_client.set("open", 1)
    assert process.wait(20) == 0
    assert state(redis_client, job) == "finished"


def test_a_second_sigterm_gives_back_at_once(redis_client: redis.Redis, start: Start) -> None:
    job = work(1, "wait")
    enqueue(redis_client, [job], SETTINGS)
    process = start("grace_seconds=600")
    wait_until(lambda: runs(redis_client, 1) == [process.pid])
    process.send_signal(signal.SIGTERM)
    # A signal that arrives while the same one is pending is not delivered twice.
    pause = threading.Event()
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        pause.wait(0.05)
    assert process.wait(20) == 0
    assert state(redis_client, job) == "queued"
    counters = redis_client.hmget(rq_keys.job_key(job.job_id), JobField.STARTS, JobField.FAILURES)
    assert counters == [b"0", None]


def test_a_native_call_that_hangs_costs_an_attempt_and_the_process(
    redis_client: redis.Redis, start: Start
) -> None:
    hung, healthy = work(1, "hang"), work(2, "wait")
    enqueue(redis_client, [hung, healthy], SETTINGS)
    process = start("timeout=1")
    wait_until(lambda: len(runs(redis_client, 2)) == 1)
    redis_client.set("open", 1)
    assert process.wait(30) == 75
    assert state(redis_client, healthy) == "finished"
    assert state(redis_client, hung) == "scheduled"
    assert redis_client.hget(rq_keys.job_key(hung.job_id), JobField.FAILURES) == b"1"


def test_a_process_frozen_past_its_lease_cannot_touch_what_others_did(
    redis_client: redis.Redis, start: Start
) -> None:
    job = work(1, "wait")
    enqueue(redis_client, [job], SETTINGS)
    zombie = start("slots=1")
    wait_until(lambda: runs(redis_client, 1) == [zombie.pid])
    zombie.send_signal(signal.SIGSTOP)
    survivor = start("slots=1")
    wait_until(lambda: runs(redis_client, 1) == [zombie.pid, survivor.pid])
    redis_client.set("open", 1)
    wait_until(lambda: state(redis_client, job) == "finished")
    before = redis_client.hgetall(rq_keys.job_key(job.job_id))
    zombie.send_signal(signal.SIGCONT)
    # Proven by what it does next: it has ended the job and takes another.
    survivor.send_signal(signal.SIGTERM)
    survivor.wait(20)
    after = work(2, "quick")
    enqueue(redis_client, [after], SETTINGS)
    wait_until(lambda: state(redis_client, after) == "finished")
    assert runs(redis_client, 2) == [zombie.pid]
    assert redis_client.hgetall(rq_keys.job_key(job.job_id)) == before
    assert redis_client.xlen(rq_keys.results_key(job.job_id)) == 1
