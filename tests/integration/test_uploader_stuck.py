"""An upload that gets stuck is seen to be, given up and started anew, and its file stays until the store has it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from common.queues import UPLOAD_FUNCTION, enqueue, failed_jobs, upload_queue_name, upload_request
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.store import open_store
from tests.faults.scripted_faults import Fault, Hang, StopReading, Trickle
from tests.faults.scripted_s3 import ScriptedS3
from tests.upload_rig import finished_file, make_spool
from tests.worker_rig import SETTINGS, make_worker, running, state, wait_until
from uploader.upload import FileUploader

QUEUE = upload_queue_name("default")
#: More than the kernel's buffers take from a connection that nobody reads, or that is read a little at a time.
DATA = os.urandom(24 * MIB)
SLOWLY = Trickle(pause_seconds=0.5)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedS3]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with ScriptedS3() as server:
        yield server


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (StopReading(), "the connection to .* failed"),
        (Hang(), "did not answer in time"),
        (SLOWLY, "was not stored within .*so it is started anew"),
    ],
    ids=["the body stalls", "no reply", "too slow"],
)
def test_a_stuck_upload_is_given_up_and_started_anew(
    scripted: ScriptedS3,
    redis_client: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Fault,
    reason: str,
) -> None:
    spool = make_spool(tmp_path / "spool")
    message = finished_file(spool, 7, DATA)
    request = upload_request(message)
    monkeypatch.setattr("hiddenfeed.store.s3_link.WORTH_ASKING_BYTES", 9 * len(DATA))
    seconds = 20.0 if fault == SLOWLY else 0.5
    if fault == SLOWLY:
        monkeypatch.setattr("hiddenfeed.store.deadline.GRACE_SECONDS", 2.0)
    options = StoreOptions(
        s3_endpoint=scripted.endpoint,
        s3_connect_timeout_seconds=seconds,
        s3_read_timeout_seconds=seconds,
        s3_max_attempts=1,
        s3_min_bytes_per_second=1_000_000_000,
    )
    scripted.script("PutObject", fault)
    handler = FileUploader(open_store("s3://bucket/runs", options), spool).upload_file
    enqueue(redis_client, [request], SETTINGS)
    with running(make_worker(redis_client, {UPLOAD_FUNCTION: handler}, queue=QUEUE)):
        wait_until(lambda: "PutObject" in scripted.log)
        assert [file.path for file in spool.files()] == [message.path]
        wait_until(lambda: state(redis_client, request) == "finished")
    assert scripted.log.count("PutObject") == 2
    assert scripted.objects[f"runs/{message.key}"].data == DATA
    assert spool.files() == []
    assert failed_jobs(redis_client, QUEUE, 10) == []
    said = [str(vars(record).get("hiddenfeed_fields")) for record in caplog.records]
    assert [line for line in said if re.search(reason, line)], said
