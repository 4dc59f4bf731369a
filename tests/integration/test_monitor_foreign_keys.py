"""Keys under our names that hold something of another kind: named, and the rest is shown."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import redis

from common import rq_keys
from common.messages import ExtractBatch
from common.queues import enqueue, extract_job_id, extract_queue_name, extract_request
from common.run_state import RunRecord, register_run
from common.settings.catalogue import QueueSettings, SpoolSettings
from common.worker.lease import Leases
from common.worker.presence import Presence
from hiddenfeed.errors import ConfigError, DataError, HiddenfeedError, PermanentError, TransientError
from hiddenfeed.store.memory import MemoryStore
from monitor.facts import Facts, read_facts
from monitor.snapshot import take_snapshot

RUN, WORKER = "seen-0123456789ab", "gpu_worker-h-1"
QUEUE, JOB = extract_queue_name(RUN), extract_job_id(RUN, 0)
NOWHERE = SpoolSettings(spool="default", spool_dir="/nonexistent")


@pytest.fixture
def client(redis_client: redis.Redis) -> redis.Redis:
    """A run with one batch that waits, a failed one, and a worker that serves it."""
    register_run(
        redis_client,
        RunRecord(run_id=RUN, model="tiny", samples=20, tokens=20, batches=2, submitted_at=1.0),
    )
    for batch_id in (0, 1):
        batch = ExtractBatch(
            run_id=RUN, batch_id=batch_id, tokens="t", row_group=0, samples=10, tokens_total=10, longest=1
        )
        enqueue(redis_client, [extract_request(batch)], QueueSettings())
    redis_client.lrem(rq_keys.queue_key(QUEUE), 1, JOB)
    redis_client.zadd(rq_keys.failed_key(QUEUE), {JOB: 4e9})
    presence = Presence(WORKER, "gpu_worker")
    presence.serve(QUEUE, "", 3)
    _, fields = presence.fields(running=0)
    Leases(redis_client, WORKER, QueueSettings()).beat([], QUEUE, fields)
    return redis_client


def _facts(client: redis.Redis) -> Facts:
    return read_facts(client, NOWHERE, 45.0, None)


ROOT = f"hiddenfeed:progress:{RUN}"


@pytest.mark.parametrize(
    "key",
    [
        "hiddenfeed:live", f"hiddenfeed:history:{RUN}:fine", ROOT, f"{ROOT}:workers", f"{ROOT}:checks",
        rq_keys.QUEUES, rq_keys.WORKERS, rq_keys.worker_key(WORKER), rq_keys.worker_executions_key(WORKER),
        rq_keys.queue_key(QUEUE), rq_keys.started_key(QUEUE), rq_keys.failed_key(QUEUE),
        rq_keys.queue_key("upload-default"), rq_keys.scheduled_key("upload-default"),
    ],
)  # fmt: skip
def test_one_key_of_another_kind_hides_nothing_else(client: redis.Redis, key: str) -> None:
    whole = _facts(client)
    assert (whole.foreign, whole.exit_code) == ((), 0)
    client.delete(key)
    client.setbit(key, 3, 1)
    facts = _facts(client)
    assert (facts.redis_error, facts.foreign, facts.exit_code) == ("", (key,), 2)
    (run,) = facts.runs
    assert run.record == whole.runs[0].record
    of_workers = key in (rq_keys.WORKERS, rq_keys.worker_key(WORKER))
    assert [worker.name for worker in facts.workers] == ([] if of_workers else [WORKER])
    assert run.extract.counts.failed == (0 if key == rq_keys.failed_key(QUEUE) else 1)
    assert run.extract.counts.queued == (0 if key == rq_keys.queue_key(QUEUE) else 1)
    snapshot = take_snapshot(facts, 0.0)
    assert snapshot.problems[0].startswith(f"the key {key} in Redis holds something of another kind")


@pytest.mark.parametrize("key", ["hiddenfeed:runs", f"hiddenfeed:run:{RUN}"])
def test_without_its_record_a_run_is_not_known_and_the_workers_are(client: redis.Redis, key: str) -> None:
    client.delete(key)
    client.setbit(key, 3, 1)
    facts = _facts(client)
    assert (facts.runs, facts.foreign) == ((), (key,))
    assert [worker.name for worker in facts.workers] == [WORKER]


def test_a_failed_job_of_another_kind_is_told_with_the_others(client: redis.Redis) -> None:
    client.set(rq_keys.job_key(JOB), "x")
    (run,) = _facts(client).runs
    (failed,) = run.extract.failed
    assert (failed.job_id, failed.error) == (JOB, f"rq:job:{JOB} holds no job: another program wrote to it")


def test_a_look_says_so_and_ends_with_2(client: redis.Redis, redis_url: str) -> None:
    client.delete(rq_keys.WORKERS)
    client.set(rq_keys.WORKERS, "x")
    words = [sys.executable, "-m", "monitor", "--once", "--redis-url", redis_url]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the key rq:workers in Redis holds")
    assert done.stderr.count("\n") == 1
    assert "0 of 2 batches" in done.stdout


class _Broken(MemoryStore):
    def __init__(self, error: HiddenfeedError) -> None:
        super().__init__()
        self._error = error

    def check(self, *, create: bool = False) -> None:
        """See `Store.check`."""
        raise self._error


@pytest.mark.parametrize(
    ("kind", "code"), [(TransientError, 75), (ConfigError, 2), (PermanentError, 2), (DataError, 2)]
)
def test_a_look_is_worth_another_one_later_or_a_person(
    client: redis.Redis, kind: Callable[[str], HiddenfeedError], code: int
) -> None:
    facts = read_facts(client, NOWHERE, 45.0, _Broken(kind("no")))
    assert (facts.store_error, facts.exit_code) == ("no", code)
