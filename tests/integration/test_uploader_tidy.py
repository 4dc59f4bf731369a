"""Files of the spool that no job speaks of: announced again, held against the plan, or taken away."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from threading import Barrier, Thread

import pytest
import redis

from common import rq_keys
from common.messages import ExtractBatch, UploadFile, parse_message
from common.queues import (
    UPLOAD_FUNCTION,
    enqueue,
    extract_queue_name,
    extract_request,
    open_queue,
    queue_counts,
    upload_queue_name,
    upload_request,
)
from common.spool import Spool
from hiddenfeed.layout import batch_key, quarantine_note_key, tokens_key
from hiddenfeed.store.memory import MemoryStore
from tests.synthetic_run import SyntheticRun, encode_batch, synthetic_run
from tests.upload_rig import make_spool
from tests.worker_rig import SETTINGS, make_worker, running, state, wait_until
from uploader.tidy import Tidier
from uploader.upload import FileUploader

QUEUE = upload_queue_name("default")


class Host:
    """The spool of one host, a store with a prepared run, and an uploader."""

    def __init__(self, folder: Path, client: redis.Redis) -> None:
        self.spool: Spool = make_spool(folder / "spool")
        self.run: SyntheticRun = synthetic_run(batches=4)
        self.store = MemoryStore()
        self.run.prepare(self.store)
        self.client = client
        self.tidier = self.another_tidier()

    def another_tidier(self) -> Tidier:
        return Tidier(self.spool, self.store, self.client, SETTINGS, 60)

    def tidy(self) -> list[str]:
        """As if an hour had passed."""
        return self.tidier.tidy(time.time() + 3600)

    def leave(self, batch: int, data: bytes, suffix: str = ".safetensors", run_id: str = "") -> str:
        """A finished file, as a writer leaves it that dies before it announces it."""
        part = self.spool.reserve(run_id or self.run.run_id, batch, uuid.uuid4().hex, len(data), suffix)
        assert part is not None
        with part:
            part.write_at(data, 0)
            return part.publish()

    def manifest(self, batch: int) -> ExtractBatch:
        lengths = [len(sample.input_ids) for sample in self.run.batches[batch]]
        return ExtractBatch(
            run_id=self.run.run_id,
            batch_id=batch,
            tokens=tokens_key(self.run.run_id),
            row_group=batch,
            samples=len(lengths),
            tokens_total=sum(lengths),
            longest=max(lengths),
        )

    def announced(self) -> list[UploadFile]:
        """Messages on the upload queue."""
        return [parse_message(UploadFile, job.args[0]) for job in open_queue(self.client, QUEUE).jobs]

    def paths(self) -> list[str]:
        return [file.path for file in self.spool.files()]

    def upload_all(self) -> None:
        """A real worker does all upload jobs."""
        handlers = {UPLOAD_FUNCTION: FileUploader(self.store, self.spool).upload_file}
        with running(make_worker(self.client, handlers, queue=QUEUE)):
            wait_until(lambda: queue_counts(self.client, QUEUE).unfinished == 0)


@pytest.fixture
def host(tmp_path: Path, redis_client: redis.Redis) -> Host:
    return Host(tmp_path, redis_client)


def test_files_and_notes_that_redis_forgot_are_announced_as_their_writer_would_have(host: Host) -> None:
    left = host.leave(0, host.run.batch_file(0)), host.leave(1, host.run.note(1), ".json")
    assert host.tidy() == list(left)
    file, note = host.announced()
    assert (file.batch, note.batch) == (host.manifest(0), host.manifest(1))
    assert (file.path, note.path) == left
    assert host.tidy() == []
    host.upload_all()
    assert host.store.read(batch_key(host.run.run_id, 0)) == host.run.batch_file(0)
    assert host.store.read(quarantine_note_key(host.run.run_id, 1)) == host.run.note(1)
    assert host.paths() == []


def test_what_the_store_has_already_is_found_out_by_the_upload_and_removed(host: Host) -> None:
    other = synthetic_run(batches=4, seed=1)
    assert other.run_id != host.run.run_id
    host.store.write(host.run.key(0), host.run.batch_file(0))
    tensors = dict(host.run.tensors(1))
    tensors["hidden_states"] = tensors["hidden_states"][::-1].copy()
    another = encode_batch(host.run.layout(1), tensors)
    assert another != host.run.batch_file(1)
    host.store.write(host.run.key(1), another)
    for batch in (0, 0, 1):
        host.leave(batch, host.run.batch_file(batch))
    while host.paths():
        assert host.tidy()
        host.upload_all()
    assert host.store.read(host.run.key(1)) == another


@pytest.mark.parametrize("kind", ["cut", "longer", "garbage", "header", "other-batch", "beyond", "note"])
def test_a_file_that_is_not_its_batchs_is_removed(
    host: Host, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = host.run.batch_file(0)
    wrong = {
        "cut": whole[:-1],
        "longer": whole + b"x",
        "garbage": os.urandom(5000),
        "header": whole[:4096].replace(b"example/tiny", b"example/tinx") + whole[4096:],
        "other-batch": host.run.batch_file(1),
        "beyond": whole,
        "note": host.run.note(1),
    }[kind]
    host.leave(4 if kind == "beyond" else 0, wrong, ".json" if kind == "note" else ".safetensors")
    assert host.tidy() == []
    assert host.paths() == []
    assert host.announced() == []
    assert "removed a file that is not what its name says" in caplog.text


def test_damaged_states_send_the_batch_back_to_extraction(host: Host) -> None:
    whole = bytearray(host.run.batch_file(0))
    whole[4100] ^= 1
    path = host.leave(0, bytes(whole))
    assert host.tidy() == [path]
    host.upload_all()
    assert host.paths() == []
    assert host.store.head(host.run.key(0)) is None
    (job,) = open_queue(host.client, extract_queue_name(host.run.run_id)).jobs
    assert parse_message(ExtractBatch, job.args[0]) == host.manifest(0)


def test_files_of_a_run_that_the_store_does_not_have_are_kept_and_said_once(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    path = host.leave(0, host.run.batch_file(0), run_id="elsewhere-1")
    assert host.tidy() == []
    assert host.tidy() == []
    assert host.paths() == [path]
    assert caplog.text.count("a run that is not in the store") == 1


def test_files_that_somebody_will_come_for_are_left_alone(host: Host) -> None:
    queued = host.leave(0, host.run.batch_file(0))
    host.tidy()
    computing, young = host.leave(1, host.run.batch_file(1)), host.leave(2, host.run.batch_file(2))
    request = extract_request(host.manifest(1))
    enqueue(host.client, [request], SETTINGS)
    host.client.hset(rq_keys.job_key(request.job_id), mapping={"status": "started", "hf_execution": "x"})
    host.client.zadd(rq_keys.started_key(request.queue), {rq_keys.composite(request.job_id, "x"): 2**40})
    future = time.time() + 3600 - 10
    os.utime(host.spool.resolve(young), (future, future))
    dead = host.spool.reserve(host.run.run_id, 3, "dead", 10)
    assert dead is not None
    os.close(dead.fd)
    assert host.tidy() == []
    assert host.paths() == [queued, computing, young]
    assert not dead.path.exists()
    # The lease is gone with a part of Redis's memory: nobody will end that extraction.
    host.client.delete(rq_keys.started_key(request.queue))
    assert host.tidy() == [computing]


def test_an_upload_whose_list_redis_lost_is_announced_again(host: Host) -> None:
    path = host.leave(0, host.run.batch_file(0))
    host.tidy()
    (message,) = host.announced()
    host.client.delete(rq_keys.queue_key(QUEUE))
    assert state(host.client, upload_request(message)) == "lost"
    assert host.tidy() == [path]
    assert host.announced() == [message]


def test_two_uploaders_that_tidy_at_once_announce_each_file_once(host: Host) -> None:
    for batch in range(4):
        host.leave(batch, host.run.batch_file(batch))
    together, announced = Barrier(2), list[str]()
    tidiers = [host.tidier, host.another_tidier()]

    def tidy(tidier: Tidier) -> None:
        together.wait()
        announced.extend(tidier.tidy(time.time() + 3600))

    threads = [Thread(target=tidy, args=(tidier,)) for tidier in tidiers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(announced) == host.paths()
    host.upload_all()
    assert host.paths() == []
    assert [info.key for info in host.store.list(f"{host.run.run_id}/batches/")] == [
        host.run.key(batch) for batch in range(4)
    ]
