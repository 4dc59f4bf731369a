"""Chores are done by one worker at a time, whichever it is."""

from __future__ import annotations

import threading
import time

import pytest
import redis

from common import rq_keys
from common.queues import enqueue
from common.worker.turn import TURN_SECONDS, Turn
from tests.worker_rig import QUEUE, SETTINGS, make_worker, returns, running, state, wait_until, work


def test_one_has_the_turn_until_it_ends(redis_client: redis.Redis) -> None:
    first, second = Turn(redis_client, "first"), Turn(redis_client, "second")
    assert first.mine(0.0)
    assert not second.mine(0.0)
    assert first.mine(0.0)
    second.end()
    assert not second.mine(0.0)
    first.end()
    assert second.mine(0.0)
    assert not first.mine(0.0)


def test_a_silent_holder_loses_its_turn(redis_client: redis.Redis) -> None:
    first, second = Turn(redis_client, "first"), Turn(redis_client, "second")
    assert first.mine(0.0)
    wait_until(lambda: second.mine(0.0))
    assert not first.mine(0.0)


def test_who_stands_aside_leaves_others_the_time_to_step_in(redis_client: redis.Redis) -> None:
    turn = Turn(redis_client, "first")
    turn.stand_aside(100.0)
    assert not turn.mine(100.0)
    assert not turn.mine(100.0 + TURN_SECONDS)
    assert turn.mine(100.0 + 2 * TURN_SECONDS)


def test_a_worker_does_chores_only_in_its_turn(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.worker.chores.TICK_SECONDS", 0.05)
    job = work(1)
    enqueue(redis_client, [job], SETTINGS)
    redis_client.lrem(rq_keys.queue_key(QUEUE), 1, job.job_id)
    redis_client.hset(rq_keys.job_key(job.job_id), "status", "scheduled")
    redis_client.zadd(rq_keys.scheduled_key(QUEUE), {job.job_id: time.time()})
    other = Turn(redis_client, "other")
    assert other.mine(0.0)
    with running(make_worker(redis_client, returns("done"))):
        for _ in range(10):
            threading.Event().wait(0.05)
            assert other.mine(0.0)
        assert state(redis_client, job) == "scheduled"
        other.end()
        wait_until(lambda: state(redis_client, job) == "finished")
