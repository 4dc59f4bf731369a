"""Why a GPU worker takes no batch: a full spool, uploads that lag behind."""

from __future__ import annotations

from pathlib import Path

import redis

from common.messages import BatchReport, UploadFile
from common.queues import enqueue, upload_request
from common.settings.catalogue import QueueSettings
from gpu_worker.admission import Admission, batch_bytes
from hiddenfeed.layout import batch_key
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
    admission = Admission(redis_client, spool, service, lambda: 1000)
    filler = spool.reserve("other", 0, "t0", MIB - 100)
    assert filler is not None
    # Without a run in service nothing is known of the size of a batch.
    assert admission.why_not() is None
    service.prepare(run.run_id)
    assert admission.why_not() == "spool full"
    filler.discard()
    assert admission.why_not() is None
    service.close()


def test_batch_that_never_fits(tmp_path: Path, redis_client: redis.Redis) -> None:
    run = tiny_run(tmp_path, taps=(0, 1, 2, 3, 4))
    size = batch_bytes(run.document)
    spool, service = run.spool(cap_bytes=size - 1), run.service()
    service.prepare(run.run_id)
    admission = Admission(redis_client, spool, service, lambda: 1000)
    assert admission.why_not() == f"spool cap below a batch file of {size} bytes"
    service.close()


def test_upload_backlog(tmp_path: Path, redis_client: redis.Redis) -> None:
    run = tiny_run(tmp_path)
    admission = Admission(redis_client, run.spool(), run.service(), lambda: 2)
    enqueue(redis_client, [upload_request(_upload(run, 0))], QueueSettings())
    assert admission.why_not() is None
    enqueue(redis_client, [upload_request(_upload(run, 1))], QueueSettings())
    assert admission.why_not() == "upload backlog"


def test_size_of_a_batch_is_about_right(tmp_path: Path) -> None:
    for final_state in ("none", "pre"):
        run = tiny_run(tmp_path / final_state, final_state=final_state)
        mean_tokens = run.document.plan.tokens / run.document.plan.batches
        states = 3 + (final_state != "none")
        assert abs(batch_bytes(run.document) - mean_tokens * (states * 32 * 4 + 5)) < states * 32 * 4 + 5
