"""Redis goes away, comes back, or forgets everything while workers have jobs in hand."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from common import rq_keys
from common.queues import enqueue, queue_counts
from common.redis_client import connect
from common.settings.catalogue import RedisSettings
from common.worker import list_workers
from standalone.redis_server import RedisServer
from tests.worker_rig import QUEUE, SETTINGS, Gate, make_worker, returns, running, state, wait_until, work


class Server:
    """This test's own Redis."""

    def __init__(self, start: Callable[[], RedisServer]) -> None:
        self._start = start
        self._running = start()
        self.client = connect(RedisSettings(redis_url=self._running.url))

    def kill(self) -> None:
        """At once, as a power cut would."""
        os.kill(self._running.pid, signal.SIGKILL)
        wait_until(lambda: not self._running.record.alive())

    def start(self) -> None:
        """Again, with its data and its port."""
        self._running = self._start()


@pytest.fixture
def server(private_redis: Callable[[], RedisServer]) -> Iterator[Server]:
    """A Redis that may be killed."""
    server = Server(private_redis)
    yield server
    server.client.close()


def lease_end(client: redis.Redis) -> float:
    """When the one lease lapses, seconds since the epoch; 0 without one."""
    entries = client.zrange(rq_keys.started_key(QUEUE), 0, -1, withscores=True)
    return float(entries[0][1]) if entries else 0.0


def test_an_outage_longer_than_the_lease_takes_no_healthy_job_over(server: Server) -> None:
    gate, job = Gate(), work(1)
    enqueue(server.client, [job], SETTINGS)
    with running(make_worker(server.client, gate)), running(make_worker(server.client, gate)):
        gate.wait_entered()
        lapses = lease_end(server.client)
        server.kill()
        # Down until the lease has lapsed on the server's clock, which the restarted server shows at once.
        wait_until(lambda: time.time() > lapses + 1)
        server.start()
        wait_until(lambda: lease_end(server.client) > lapses)
        gate.open()
        wait_until(lambda: state(server.client, job) == "finished")
    assert len(gate.contexts) == 1


def test_a_job_that_ends_while_redis_is_away_is_finished_when_it_is_back(server: Server) -> None:
    gate, job, next_job = Gate(), work(1), work(2)
    enqueue(server.client, [job], SETTINGS)
    with running(make_worker(server.client, gate)) as codes:
        gate.wait_entered()
        server.kill()
        gate.open()
        wait_until(gate.left.is_set)
        server.start()
        wait_until(lambda: state(server.client, job) == "finished")
        enqueue(server.client, [next_job], SETTINGS)
        wait_until(lambda: state(server.client, next_job) == "finished")
    assert len(gate.contexts) == 2
    assert codes == [0]


def test_flushall_under_an_idle_worker_is_survived(server: Server) -> None:
    with running(make_worker(server.client, returns("done"))):
        wait_until(lambda: len(list_workers(server.client)) == 1)
        server.client.flushall()
        wait_until(lambda: len(list_workers(server.client)) == 1)
        job = work(1)
        enqueue(server.client, [job], SETTINGS)
        wait_until(lambda: state(server.client, job) == "finished")


def test_flushall_under_a_running_job_passes_its_work_on_and_resurrects_nothing(server: Server) -> None:
    gate, job, follow_up = Gate(), work(1), work(2, queue="upload-test")
    enqueue(server.client, [job], SETTINGS)
    with running(make_worker(server.client, gate)):
        gate.wait_entered()
        gate.contexts[0].follow_up(follow_up)
        server.client.flushall()
        wait_until(gate.contexts[0].lost.is_set)
        assert queue_counts(server.client, QUEUE).started == 0
        gate.open()
        wait_until(lambda: state(server.client, follow_up) == "queued")
        assert state(server.client, job) is None


def test_a_job_submitted_again_after_flushall_is_not_ended_by_its_old_start(server: Server) -> None:
    gate, job, dropped = Gate(), work(1), list[str]()
    enqueue(server.client, [job], SETTINGS)
    with running(make_worker(server.client, gate, slots=1)):
        gate.wait_entered()
        gate.contexts[0].on_lost(lambda: dropped.append("cleaned up"))
        server.client.flushall()
        assert enqueue(server.client, [job], SETTINGS) == 1
        gate.open()
        wait_until(lambda: state(server.client, job) == "finished")
    assert dropped == ["cleaned up"]
    assert len(gate.contexts) == 2


@pytest.mark.parametrize("ended", [False, True], ids=["job runs", "job has ended"])
def test_a_worker_without_redis_stops_when_told(
    server: Server, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    monkeypatch.setattr("common.worker.shutdown._SETTLING_SECONDS", 0.5)
    gate = Gate()
    enqueue(server.client, [work(1)], SETTINGS)
    worker = make_worker(server.client, gate)
    with running(worker) as codes:
        gate.wait_entered()
        server.kill()
        if ended:
            gate.open()
            wait_until(gate.left.is_set)
        worker.stop()
        worker.stop()
        wait_until(lambda: codes == [0])
        gate.open()
    server.start()
    # It could tell nobody; the next worker finds the lapsed lease.
    with running(make_worker(server.client, gate)):
        wait_until(lambda: queue_counts(server.client, QUEUE).finished == 1)
