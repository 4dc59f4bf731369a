"""Why a GPU worker takes no batch: a full spool, uploads that lag behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from common import rq_keys
from common.messages import BatchReport, UploadFile
from common.queues import enqueue, upload_queue_name, upload_request
from common.settings.catalogue import ExtractSettings, QueueSettings, SpoolSettings
from common.spool import Spool
from gpu_worker.admission import Admission, Held, Pressure, batch_bytes, held_back
from hiddenfeed.layout import batch_key
from hiddenfeed.words import size_text
from tests.extraction import TinyRun, tiny_run

MIB = 1 << 20


def _upload(run: TinyRun, batch_id: int) -> UploadFile:
    return UploadFile(
        batch=run.manifests[batch_id],
        spool="tiny",
        path=f"{run.run_id}/{batch_id:06d}-t0.safetensors",
        key=batch_key(run.run_id, batch_id),
        size_bytes=1,
        checksum="crc32:AAAAAA==",
        report=BatchReport(worker="w", device="cpu"),
    )


def test_full_spool(tmp_path: Path, redis_client: redis.Redis) -> None:
    run = tiny_run(tmp_path)
    spool, service = run.spool(cap_bytes=MIB), run.service()
    admission = Admission(redis_client, spool, service, ExtractSettings)
    filler = spool.reserve("other", 0, "t0", MIB - 100)
    assert filler is not None
    # Without a run in service nothing is known of the size of a batch.
    assert admission.why_not() is None
    service.prepare(run.run_id)
    assert admission.why_not() == "spool full"
    filler.discard()
    # Room for a batch, and still more than four fifths of the cap: not before it is down to them.
    for size, why in ((MIB * 9 // 10, "spool full"), (MIB * 4 // 5, None), (MIB * 9 // 10, None)):
        with spool.reserve("other", 0, "t0", size) or pytest.fail("no room"):
            assert admission.why_not() == why
    service.close()


def test_disk_that_others_fill_is_not_called_a_full_spool(tmp_path: Path, redis_client: redis.Redis) -> None:
    run = tiny_run(tmp_path)
    service = run.service()
    service.prepare(run.run_id)
    free = SpoolSettings(spool="tiny", spool_dir=str(tmp_path / "spool"), spool_free_bytes=0)
    short = msgspec.structs.replace(free, spool_free_bytes=1 << 60)
    limits = [short]
    admission = Admission(redis_client, Spool(short, lambda: limits[0]), service, ExtractSettings)
    assert admission.why_not() == "disk short of --spool-free-bytes"
    limits[0] = free
    assert admission.why_not() is None
    service.close()


def test_batch_that_never_fits(
    tmp_path: Path, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    run = tiny_run(tmp_path, taps=(0, 1, 2, 3, 4))
    size = batch_bytes(run.document)
    spool, service = run.spool(cap_bytes=size - 1), run.service()
    service.prepare(run.run_id)
    admission = Admission(redis_client, spool, service, ExtractSettings)
    with caplog.at_level("WARNING", logger="hiddenfeed"):
        for _ in range(2):
            assert admission.why_not() == f"spool cap below a batch file of {size_text(size)}"
    assert [record.getMessage() for record in caplog.records] == [
        "the run's batch files never fit the spool; raise --spool-cap-bytes"
    ]
    service.close()


def test_upload_backlog(tmp_path: Path, redis_client: redis.Redis) -> None:
    run = tiny_run(tmp_path)
    settings = ExtractSettings(upload_backlog_max=3, upload_backlog_low_percent=40)
    admission = Admission(redis_client, run.spool(), run.service(), lambda: settings)
    queue = upload_queue_name("tiny")
    for count, why in ((1, None), (2, None), (3, "upload backlog")):
        enqueue(redis_client, [upload_request(_upload(run, count))], QueueSettings())
        assert admission.why_not() == why
    for why in ("upload backlog", None):
        redis_client.lpop(rq_keys.queue_key(queue))
        assert admission.why_not() == why
    enqueue(redis_client, [upload_request(_upload(run, 1))], QueueSettings())
    assert admission.why_not() is None


EASY = Pressure(room=True, spool=0, spool_low=80, backlog=0, backlog_max=10, backlog_low=8)


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        ({}, Held(), Held()),
        ({}, Held(spool=True, backlog=True), Held()),
        ({"room": False}, Held(), Held(spool=True)),
        # Something else fills the disk.
        ({"room": False, "spool": 0}, Held(spool=True), Held(spool=True)),
        ({"spool": 81}, Held(), Held()),
        ({"spool": 81}, Held(spool=True), Held(spool=True)),
        ({"spool": 80}, Held(spool=True), Held()),
        ({"backlog": 9}, Held(), Held()),
        ({"backlog": 10}, Held(), Held(backlog=True)),
        ({"backlog": 9}, Held(backlog=True), Held(backlog=True)),
        ({"backlog": 8}, Held(backlog=True), Held()),
        # A limit that was raised meanwhile.
        ({"backlog": 9, "backlog_max": 100, "backlog_low": 80}, Held(backlog=True), Held()),
        # Each has its own memory.
        ({"spool": 81, "backlog": 9}, Held(spool=True), Held(spool=True)),
        ({"spool": 81, "backlog": 9}, Held(backlog=True), Held(backlog=True)),
        # No low mark to speak of.
        ({"backlog": 10, "backlog_low": 10}, Held(backlog=True), Held(backlog=True)),
        ({"backlog": 9, "backlog_low": 10}, Held(backlog=True), Held()),
    ],
)
def test_stops_at_the_high_mark_and_goes_on_at_the_low_one(
    change: dict[str, Any], before: Held, after: Held
) -> None:
    assert held_back(replace(EASY, **change), before) == after


def test_size_of_a_batch_is_about_right(tmp_path: Path) -> None:
    for final_state in ("none", "pre"):
        run = tiny_run(tmp_path / final_state, final_state=final_state)
        mean_tokens = run.document.plan.tokens / run.document.plan.batches
        states = 3 + (final_state != "none")
        assert abs(batch_bytes(run.document) - mean_tokens * (states * 32 * 4 + 5)) < states * 32 * 4 + 5
