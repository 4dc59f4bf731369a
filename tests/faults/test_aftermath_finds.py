"""The check that every fault run ends with sees what it is there to see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from common import rq_keys
from common.queues import EXTRACT_FUNCTION, JobRequest, enqueue, extract_job_id, extract_queue_name
from common.settings.catalogue import QueueSettings
from hiddenfeed.layout import complete_key, quarantine_note_key
from hiddenfeed.proof import finish
from hiddenfeed.store.memory import MemoryStore
from tests.faults.aftermath import Findings, check_store, stuck_jobs, take_reference
from tests.faults.fleet import Fleet, processes_of
from tests.synthetic_run import SyntheticRun, synthetic_run
from tests.worker_rig import Work, wait_until

RUN = synthetic_run()


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def lose_batch(store: MemoryStore, run: SyntheticRun) -> None:
    store.delete(run.key(1))


def add_note(store: MemoryStore, run: SyntheticRun) -> None:
    store.write(quarantine_note_key(run.run_id, 1), run.note(1))


def flip_state(store: MemoryStore, run: SyntheticRun) -> None:
    store.write(run.key(1), flipped(run.batch_file(1), 5000))


def swap_batches(store: MemoryStore, run: SyntheticRun) -> None:
    store.write(run.key(1), run.batch_file(2))


def take_proof_away(store: MemoryStore, run: SyntheticRun) -> None:
    store.delete(complete_key(run.run_id))


@pytest.mark.parametrize(
    ("tamper", "lost", "duplicated", "corrupted"),
    [
        (lambda store, run: None, [], [], []),
        (lose_batch, ["batches/000001.safetensors"], [], []),
        (add_note, [], ["quarantine/000001.json"], []),
        (flip_state, [], [], ["batches/000001.safetensors"]),
        (swap_batches, [], [], ["batches/000001.safetensors"]),
        (take_proof_away, ["complete.json"], [], []),
    ],
)
def test_store_is_held_against_the_reference(
    tamper: Callable[[MemoryStore, SyntheticRun], None],
    lost: list[str],
    duplicated: list[str],
    corrupted: list[str],
) -> None:
    store, findings = MemoryStore(), Findings()
    RUN.write(store)
    finish(store, RUN.run_id)
    reference = take_reference(store, RUN.run_id)
    assert reference.batches == len(RUN.batches)
    tamper(store, RUN)
    check_store(store, reference, RUN.run_id, findings)
    assert (findings.lost, findings.duplicated, findings.corrupted) == (lost, duplicated, corrupted)
    # The proof is a second opinion on the same store; a note beside a file says nothing to it.
    assert bool(findings.troubles) is (tamper in (lose_batch, flip_state, swap_batches, take_proof_away))


def test_jobs_that_are_not_over_are_found_wherever_they_are(redis_client: redis.Redis) -> None:
    run_id, queue = "t-0123456789", extract_queue_name("t-0123456789")
    assert stuck_jobs(redis_client, run_id) == []
    for number, places in enumerate((rq_keys.started_key, rq_keys.scheduled_key, rq_keys.failed_key)):
        redis_client.zadd(places(queue), {f"{extract_job_id(run_id, number)}:x": 2e9})
    redis_client.lpush(rq_keys.intermediate_key(queue), extract_job_id(run_id, 3))
    ids = [extract_job_id(run_id, 4)]
    requests = [
        JobRequest(queue=queue, function=EXTRACT_FUNCTION, job_id=id_, payload=Work(), description="")
        for id_ in ids
    ]
    enqueue(redis_client, requests, QueueSettings())
    found = stuck_jobs(redis_client, run_id)
    assert [sentence for sentence in found if queue in sentence and "rq:job" not in sentence] == [
        f"2 jobs are queued on {queue}",
        f"1 jobs are started on {queue}",
        f"1 jobs are scheduled on {queue}",
        f"1 jobs are failed on {queue}",
    ]
    # In no list any more: nobody will ever do it.
    redis_client.delete(rq_keys.queue_key(queue))
    assert f"rq:job:{ids[0]} says queued" in stuck_jobs(redis_client, run_id)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found through /proc")
def test_fleet_restarts_what_ended_and_leaves_nobody(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, {"PATH": "/usr/bin"})
    try:
        # A module that ends at once, with 0.
        fleet.enlist("once", "this", ends=True)
        fleet.enlist("again", "this")
        wait_until(lambda: fleet.is_done("once") and fleet.starts("again") >= 2)
        assert {(end.member, end.code, end.struck) for end in fleet.ends} == {("again", 0, False)}
        assert not fleet.ends[0].is_as_asked()
        # One that goes on until it is told to end.
        fleet.enlist("serves", "http.server", "0", "--bind", "127.0.0.1")
        wait_until(lambda: bool(processes_of(tmp_path) & fleet.pids()))
    finally:
        assert fleet.close() == []
    assert processes_of(tmp_path) == set()
