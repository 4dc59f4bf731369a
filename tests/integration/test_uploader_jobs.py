"""The uploader's handler under a real worker, Redis and store: every way in which a file's upload ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest
import redis

from common.messages import ExtractBatch, UploadFile, UploadReceipt, parse_message
from common.queues import (
    EXTRACT_FUNCTION,
    UPLOAD_FUNCTION,
    enqueue,
    extract_queue_name,
    failed_jobs,
    job_states,
    open_queue,
    upload_queue_name,
    upload_request,
)
from common.run_state import read_progress
from common.spool import Spool
from common.worker import JobContext
from hiddenfeed.checksum import CRC32, checksum_of
from hiddenfeed.errors import ConfigError, PermanentError, TransientError
from hiddenfeed.layout import batch_key
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.store import PutOutcome, Store, open_store
from hiddenfeed.store.directory import DirectoryStore
from hiddenfeed.store.memory import MemoryStore
from hiddenfeed.store.s3_judge import declared
from tests.faults.scripted_faults import Foreign, Lack, Well
from tests.faults.scripted_s3 import ScriptedS3, Stored
from tests.upload_rig import RUN, batch_bytes, finished_file, make_spool
from tests.worker_rig import SETTINGS, make_worker, running, state, wait_until
from uploader.circuit import FAILURES_OF_AN_OUTAGE, Circuit
from uploader.upload import FileUploader

QUEUE = upload_queue_name("default")
DATA = batch_bytes(7)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return make_spool(tmp_path / "spool")


@pytest.fixture(params=["directory", "s3", "s3-parts"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind a person can have."""
    if request.param == "directory":
        folder = open_store(str(tmp_path / "store"))
        folder.check(create=True)
        return folder
    access = request.getfixturevalue("s3")
    threshold = 128 * MIB if request.param == "s3" else MIB
    return open_store(
        access.url, StoreOptions(s3_endpoint=access.endpoint, multipart_threshold_bytes=threshold)
    )


@contextmanager
def uploading(client: redis.Redis, store: Store, spool: Spool) -> Iterator[None]:
    """A worker that uploads, in this process."""
    handlers = {UPLOAD_FUNCTION: FileUploader(store, spool).upload_file}
    with running(make_worker(client, handlers, queue=QUEUE)):
        yield


def upload(client: redis.Redis, store: Store, spool: Spool, message: UploadFile) -> UploadReceipt:
    """Run the handler, and then what it asks to be done as its job ends; returns its receipt."""
    context = JobContext(job_id=upload_request(message).job_id, worker_name="uploader-1")
    receipt = FileUploader(store, spool).upload_file(msgspec.to_builtins(message), context)
    with client.pipeline(transaction=True) as pipeline:
        for add in context.finishers:
            add(pipeline)
        enqueue(client, context.follow_ups, SETTINGS, pipeline=pipeline)
        pipeline.execute()
    return receipt


def upload_by_worker(client: redis.Redis, store: Store, spool: Spool, message: UploadFile) -> UploadReceipt:
    """Run the message's job to its end in a real worker; returns its receipt."""
    request = upload_request(message)
    assert enqueue(client, [request], SETTINGS) == 1
    with uploading(client, store, spool):
        wait_until(lambda: state(client, request) == "finished")
    job = open_queue(client, QUEUE).fetch_job(request.job_id)
    assert job is not None
    return msgspec.convert(job.return_value(), UploadReceipt)


def waiting_extractions(client: redis.Redis) -> list[ExtractBatch]:
    """Messages on the run's extract queue."""
    jobs = open_queue(client, extract_queue_name(RUN)).jobs
    assert all(job.func_name == EXTRACT_FUNCTION for job in jobs)
    return [parse_message(ExtractBatch, job.args[0]) for job in jobs]


def test_a_finished_file_is_stored_and_then_gone(
    redis_client: redis.Redis, store: Store, spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    message = finished_file(spool, 7, DATA)
    with caplog.at_level("INFO", logger="hiddenfeed"):
        receipt = upload_by_worker(redis_client, store, spool, message)
    # One line for it, by which it is found beside the worker's of the same batch.
    (said,) = [vars(line)["hiddenfeed_fields"] for line in caplog.records if line.getMessage() == "uploaded"]
    assert (said["run"], said["batch"], said["size_bytes"]) == (RUN, 7, len(DATA))
    assert (receipt.run_id, receipt.batch_id, receipt.key) == (RUN, 7, message.key)
    assert (receipt.outcome, receipt.size_bytes) == ("stored", len(DATA))
    assert store.read(message.key) == DATA
    info = store.head(message.key, checksum=True)
    assert info is not None
    assert info.checksum == message.checksum
    assert spool.files() == []
    progress = read_progress(redis_client, RUN)
    assert (progress.batches, progress.samples, progress.tokens, progress.bytes) == (1, 3, 30, len(DATA))
    assert [(up.files, up.duplicates) for up in progress.uploaders] == [(1, 0)]
    assert waiting_extractions(redis_client) == []


def test_a_redelivery_after_the_file_was_deleted(
    redis_client: redis.Redis, store: Store, spool: Spool
) -> None:
    """The process died between deleting the file and ending the job."""
    message = finished_file(spool, 7, DATA)
    upload(redis_client, store, spool, message)
    assert upload(redis_client, store, spool, message).outcome == "already-there"
    assert store.read(message.key) == DATA
    assert read_progress(redis_client, RUN).batches == 1
    assert waiting_extractions(redis_client) == []


def test_a_redelivery_before_the_file_was_deleted(
    redis_client: redis.Redis, store: Store, spool: Spool
) -> None:
    """The process died between the store's answer and deleting the file."""
    message = finished_file(spool, 7, DATA)
    path = spool.resolve(message.path)
    assert (
        store.put_file(message.key, path, size_bytes=len(DATA), checksum=message.checksum)
        is PutOutcome.STORED
    )
    assert upload(redis_client, store, spool, message).outcome == "already-there"
    assert spool.files() == []


def test_a_second_extraction_of_the_batch_is_dropped(
    redis_client: redis.Redis, store: Store, spool: Spool
) -> None:
    upload(redis_client, store, spool, finished_file(spool, 7, DATA))
    second = finished_file(spool, 7, batch_bytes(7))
    assert upload(redis_client, store, spool, second).outcome == "other-wins"
    assert store.read(second.key) == DATA
    assert spool.files() == []
    progress = read_progress(redis_client, RUN)
    assert progress.batches == 1
    assert [(up.files, up.duplicates) for up in progress.uploaders] in (
        [(2, 1)],
        [(1, 0), (1, 1)],
        [(1, 1), (1, 0)],
    )


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("junk", "why"),
    [
        (b"junk", "only 4 bytes long"),
        (b"<html>sign in</html>", "is no batch file"),
        (_half(DATA), "its header says"),
        (_damaged(batch_bytes(7)), "and its header makes"),
        (batch_bytes(8), "it is batch 8 of run run-1"),
    ],
    ids=["a few bytes", "a page", "half of it", "a byte of it changed", "another batch"],
)
@pytest.mark.parametrize("gone", [False, True], ids=["file there", "file gone"])
def test_what_is_no_batch_is_in_the_way_and_costs_no_file(
    request: pytest.FixtureRequest,
    redis_client: redis.Redis,
    store: Store,
    spool: Spool,
    junk: bytes,
    why: str,
    gone: bool,
) -> None:
    """Somebody else's object: neither replaced nor taken for another extraction."""
    message = finished_file(spool, 7, DATA)
    _put_by_hand(request, store, message.key, junk)
    if gone:
        spool.resolve(message.path).unlink()
    with pytest.raises(
        PermanentError, match=f"is in the way.*{why}.*hiddenfeed tidy .*/{RUN} .*retry-failed {RUN}"
    ):
        upload(redis_client, store, spool, message)
    assert store.read(message.key) == junk
    assert len(spool.files()) == (not gone)
    assert read_progress(redis_client, RUN).batches == 0
    store.delete(message.key)
    assert upload(redis_client, store, spool, message).outcome == ("sent-back" if gone else "stored")


def test_keys_that_are_in_the_way_fail_their_jobs_and_no_others(
    redis_client: redis.Redis, spool: Spool, tmp_path: Path
) -> None:
    """However many there are in a row, they are no outage of the store."""
    store = open_store(str(tmp_path / "store"))
    store.check(create=True)
    messages = [
        finished_file(spool, number, batch_bytes(number)) for number in range(FAILURES_OF_AN_OUTAGE + 2)
    ]
    *blocked, last = messages
    for message in blocked:
        store.write(message.key, b"junk")
    requests = [upload_request(message) for message in messages]
    enqueue(redis_client, requests, SETTINGS)
    with uploading(redis_client, store, spool):
        wait_until(lambda: state(redis_client, requests[-1]) == "finished")
        wait_until(lambda: {state(redis_client, request) for request in requests[:-1]} == {"failed"})
    assert {file.path for file in spool.files()} == {message.path for message in blocked}
    assert store.head(last.key) is not None


@pytest.mark.parametrize("gone", [False, True], ids=["file there", "file gone"])
def test_an_endpoint_that_has_something_under_every_key_costs_no_file(
    redis_client: redis.Redis, spool: Spool, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    message = finished_file(spool, 7, DATA)
    if gone:
        spool.resolve(message.path).unlink()
    page = b"<html>sign in</html>"
    with ScriptedS3() as server:
        for tag in ({}, {"ETag": '"page"'}):
            for operation in ("PutObject", "HeadObject", "GetObject"):
                server.always(operation, Foreign(200, page, tag))
            for threshold in (128 * MIB, MIB):
                options = StoreOptions(
                    s3_endpoint=server.endpoint, s3_max_attempts=1, multipart_threshold_bytes=threshold
                )
                with pytest.raises(TransientError):
                    upload(redis_client, open_store("s3://bucket/runs", options), spool, message)
    assert len(spool.files()) == (not gone)


def test_another_extraction_that_nobody_has_compared_is_read_before_it_wins(
    redis_client: redis.Redis, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what it was meant to be, and a byte of it changed on its way to a store without checksums."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    ours, other = finished_file(spool, 7, DATA), batch_bytes(7)
    with ScriptedS3() as server:
        server.lacks.add(Lack.CHECKSUMS)
        options = StoreOptions(s3_endpoint=server.endpoint, s3_checksum="off", s3_max_attempts=1)
        store = open_store("s3://bucket/runs", options)
        said = {
            f"x-amz-meta-{name}": value for name, value in declared(len(other), checksum_of(other)).items()
        }
        server.objects[f"runs/{ours.key}"] = Stored(_damaged(other), said)
        with pytest.raises(PermanentError, match=r"is in the way.*and its header makes"):
            upload(redis_client, store, spool, ours)
        assert [file.path for file in spool.files()] == [ours.path]
        server.objects[f"runs/{ours.key}"] = Stored(other, said)
        assert upload(redis_client, store, spool, ours).outcome == "other-wins"


def test_an_extraction_with_checksums_of_another_kind_is_no_stranger(
    redis_client: redis.Redis, spool: Spool, tmp_path: Path
) -> None:
    """A file whose writer had CRC32 alone, and a file of one that had not."""
    store = open_store(str(tmp_path / "store"))
    store.check(create=True)
    data = batch_bytes(7, algorithm=CRC32)
    store.write(batch_key(RUN, 7), data)
    assert upload(redis_client, store, spool, finished_file(spool, 7, DATA)).outcome == "other-wins"
    assert store.read(batch_key(RUN, 7)) == data


def _put_by_hand(request: pytest.FixtureRequest, store: Store, key: str, data: bytes) -> None:
    """As other programs do: nothing of it says what it was meant to be."""
    if isinstance(store, DirectoryStore):
        path = store.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return
    access = request.getfixturevalue("s3")
    bucket, _, prefix = access.url.removeprefix("s3://").partition("/")
    client = boto3.client("s3", endpoint_url=access.endpoint, region_name="us-east-1")
    client.put_object(Bucket=bucket, Key=f"{prefix}/{key}".lstrip("/"), Body=data)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def replace_by_a_link(path: Path) -> None:
    """Even one to the very bytes that were announced."""
    elsewhere = path.parent.parent.parent / "elsewhere.bin"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def replace_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda path: os.truncate(path, len(DATA) - 1),
        lambda path: os.truncate(path, len(DATA) + 1),
        Path.unlink,
        replace_by_a_link,
        replace_by_a_pipe,
    ],
    ids=["flipped", "truncated", "grown", "gone", "a link", "a pipe"],
)
def test_a_file_that_is_lost_sends_its_batch_back(
    redis_client: redis.Redis, store: Store, spool: Spool, damage: Callable[[Path], None]
) -> None:
    message = finished_file(spool, 7, DATA)
    path = spool.resolve(message.path)
    damage(path)
    receipt = upload(redis_client, store, spool, message)
    assert receipt.outcome == "sent-back"
    assert not os.path.lexists(path)
    assert store.head(message.key) is None
    assert spool.files() == []
    assert waiting_extractions(redis_client) == [message.batch]
    assert read_progress(redis_client, RUN).batches == 0


def test_a_worker_sends_the_batch_back_in_one_step_with_ending_the_job(
    redis_client: redis.Redis, spool: Spool
) -> None:
    message = finished_file(spool, 7, DATA)
    spool.remove(message.path)
    assert upload_by_worker(redis_client, MemoryStore(), spool, message).outcome == "sent-back"
    assert waiting_extractions(redis_client) == [message.batch]


def test_a_lost_file_of_a_batch_that_is_stored_costs_nothing(
    redis_client: redis.Redis, store: Store, spool: Spool
) -> None:
    upload(redis_client, store, spool, finished_file(spool, 7, DATA))
    message = finished_file(spool, 7, DATA)
    flip(spool.resolve(message.path))
    # In parts the store is asked first, so the file is not even read.
    assert upload(redis_client, store, spool, message).outcome in ("already-there", "other-wins")
    assert spool.files() == []
    assert waiting_extractions(redis_client) == []


@pytest.mark.parametrize(
    "change",
    [
        {"spool": "other"},
        {"path": "../secret/000007-a.safetensors"},
        {"key": "run-1/run.json"},
        {"version": 2},
    ],
)
def test_a_message_that_is_not_ours_fails_and_touches_nothing(
    redis_client: redis.Redis, tmp_path: Path, spool: Spool, change: dict[str, Any]
) -> None:
    message = finished_file(spool, 7, DATA)
    secret = tmp_path / "secret" / "000007-a.safetensors"
    secret.parent.mkdir()
    secret.write_bytes(DATA)
    forged = msgspec.structs.replace(message, **change)
    request = msgspec.structs.replace(upload_request(forged), queue=QUEUE)
    store = MemoryStore()
    enqueue(redis_client, [request], SETTINGS)
    with uploading(redis_client, store, spool):
        wait_until(lambda: state(redis_client, request) == "failed")
    ((_, _, error),) = failed_jobs(redis_client, QUEUE, 10)
    assert error.startswith("PermanentError: ")
    assert list(store.list("")) == []
    assert [file.path for file in spool.files()] == [message.path]
    assert secret.exists()


class MovingStore(MemoryStore):
    """A store that refuses us until `open` is set, as after a change of credentials."""

    open = False
    refused = 0

    def put_file(self, key: str, path: Path, **details: Any) -> PutOutcome:
        if not self.open:
            self.refused += 1
            raise ConfigError("the credentials have expired")
        return super().put_file(key, path, **details)


def test_a_store_that_refuses_us_for_a_while_fails_no_job(redis_client: redis.Redis, spool: Spool) -> None:
    store = MovingStore()
    message = finished_file(spool, 7, DATA)
    request = upload_request(message)
    enqueue(redis_client, [request], SETTINGS)
    with uploading(redis_client, store, spool):
        # More often than a failing job is tried: it uses no attempt.
        wait_until(lambda: store.refused > SETTINGS.job_attempts)
        assert [file.path for file in spool.files()] == [message.path]
        store.open = True
        wait_until(lambda: state(redis_client, request) == "finished")
    assert store.read(message.key) == DATA
    assert spool.files() == []


def test_a_file_waits_for_a_folder_that_was_unmounted(
    redis_client: redis.Redis, spool: Spool, tmp_path: Path
) -> None:
    root, message = tmp_path / "store", finished_file(spool, 7, DATA)
    store = open_store(str(root))
    store.check(create=True)
    root.rename(tmp_path / "away")
    root.mkdir()
    with pytest.raises(TransientError, match="is another folder than before"):
        upload(redis_client, store, spool, message)
    assert [file.path for file in spool.files()] == [message.path]
    assert list(root.iterdir()) == []
    root.rmdir()
    (tmp_path / "away").rename(root)
    assert upload(redis_client, store, spool, message).outcome == "stored"


@pytest.mark.parametrize(
    "fault",
    [Foreign(302, b"", {"Location": "/login"}), Foreign(404, b"<html><br>")],
    ids=["redirect", "page"],
)
def test_what_answers_in_the_stores_place_for_a_while_fails_no_job(
    redis_client: redis.Redis, spool: Spool, monkeypatch: pytest.MonkeyPatch, fault: Foreign
) -> None:
    monkeypatch.setattr("uploader.circuit.FIRST_PAUSE_SECONDS", 0.1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    message = finished_file(spool, 7, b"data")
    request = upload_request(message)
    enqueue(redis_client, [request], SETTINGS)
    with ScriptedS3() as server:
        server.always("PutObject", fault)
        store = open_store("s3://bucket/runs", StoreOptions(s3_endpoint=server.endpoint))
        with uploading(redis_client, store, spool):
            wait_until(lambda: server.log.count("PutObject") > FAILURES_OF_AN_OUTAGE)
            assert [file.path for file in spool.files()] == [message.path]
            server.always("PutObject", Well())
            wait_until(lambda: state(redis_client, request) == "finished")
        assert server.objects[f"runs/{message.key}"].data == b"data"
    assert spool.files() == []


def test_an_outage_burns_no_attempt_and_sends_all_files_when_it_ends(
    redis_client: redis.Redis, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some failures in a row one file at a time tries; the others wait in the queue, not for a delay."""
    monkeypatch.setattr("uploader.circuit.LONGEST_PAUSE_SECONDS", 0.2)
    store, circuit = MovingStore(), Circuit()
    messages = [finished_file(spool, number, b"data") for number in range(12)]
    requests = [upload_request(message) for message in messages]
    enqueue(redis_client, requests, SETTINGS)
    handler = FileUploader(store, spool, circuit=circuit).upload_file
    worker = make_worker(
        redis_client, {UPLOAD_FUNCTION: handler}, queue=QUEUE, slots=3, may_take=circuit.why_not
    )
    with running(worker):
        wait_until(lambda: circuit.is_open)
        before = store.refused
        assert before <= FAILURES_OF_AN_OUTAGE + 3
        wait_until(lambda: store.refused >= before + 3)
        states = job_states(redis_client, [request.job_id for request in requests])
        assert list(states.values()).count("scheduled") <= FAILURES_OF_AN_OUTAGE
        store.open = True
        wait_until(lambda: all(state(redis_client, request) == "finished" for request in requests))
    assert spool.files() == []
    assert circuit.why_not() is None
