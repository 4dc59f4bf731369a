"""A scene for tests of the monitor: a run in the middle, with workers, uploads, a spool and a history."""

from __future__ import annotations

import msgspec

from common.batch_cost import CostSums, cost_terms
from common.checks import Checks, Extreme, StateRange
from common.history import Point
from common.queues import FailedJob, QueueCounts
from common.run_state import Progress, RunRecord, UploaderProgress, WorkerProgress
from common.spool import SpoolUsage
from common.worker.presence import WorkerInfo
from monitor.facts import Facts, QueueFacts, RunFacts

NOW = 1_790_000_000.0
RUN = "demo-0123456789ab"
QUEUE = f"extract-{RUN}"
GIB = 2**30
#: All is well but for three samples that gave values that are not finite.
CHECKED = Checks(
    batches=99,
    canaries=98,
    canary_cosine=Extreme(0.99912, 42),
    canary_error=Extreme(0.0123, 17),
    selftest_cosine=Extreme(0.99987, 0),
    selftest_error=Extreme(0.0045, 0),
    states=(
        StateRange(
            state="tap 2",
            norm_low=Extreme(5.25, 3),
            norm_high=Extreme(97.3, 8),
            zero_share=Extreme(0.0012, 5),
        ),
        StateRange(
            state="tap 18",
            norm_low=Extreme(61.5, 3),
            norm_high=Extreme(1234.5, 9),
            zero_share=Extreme(0.0, 0),
        ),
    ),
    failed={"finite": 3},
)


def worker(name: str, role: str = "gpu_worker", **changes: object) -> WorkerInfo:
    """A process that is alive and busy."""
    base = WorkerInfo(
        name=name, role=role, queue=QUEUE if role == "gpu_worker" else "upload-default", state="busy", waiting="",
        running=3, slots=3, finished=50, failed=0, working_seconds=100.0, host="h", pid=1, started_at=NOW - 600,
        last_heartbeat=NOW - 3,
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def device(name: str, batches: int = 50, seconds: float = 2.0) -> WorkerProgress:
    """What a GPU worker did: batches of 1,000 tokens, each `seconds` long, one after the other."""
    return WorkerProgress(
        worker=name, device="cuda:0", batches=batches, samples=10 * batches, tokens=1000 * batches,
        squares=10**6 * batches, padded_tokens=1010 * batches, bytes=10**9 * batches, read_seconds=0.1 * batches,
        forward_seconds=seconds * batches, stall_seconds=0.02 * batches, write_seconds=0.5 * batches,
        active_seconds=seconds * 1.05 * (batches - 1), first_at=NOW - 105, last_at=NOW - 1,
    )  # fmt: skip


def points(count: int = 13, backlog_step: int = 0, spool_step: int = 0) -> tuple[Point, ...]:
    """The last two minutes, a point every ten seconds."""
    return tuple(
        Point(
            at=NOW - 10 * (count - 1 - number), batches=80 + number, tokens=80_000 + 1000 * number,
            bytes=(80 + number) * 10**9, backlog=5 + backlog_step * number, queued=100, started=6, failed=0, workers=2,
            uploaders=2, spool_bytes=5 * GIB + spool_step * number, spool_cap_bytes=50 * GIB,
        )
        for number in range(count)
    )  # fmt: skip


def scene(**changes: object) -> Facts:
    """Two workers half way through a run, one failed batch."""
    workers = (device("gpu_worker-h-1"), device("gpu_worker-h-2"))
    sums: dict[str, float] = {}
    for name, amount in cost_terms(1000, 10**6, 2.0).items():
        sums[name] = 100 * amount
    progress = Progress(
        run_id=RUN, batches=100, samples=1000, tokens=100_000, squares=10**8, bytes=100 * 10**9, first_at=NOW - 105,
        last_at=NOW - 1, workers=workers,
        uploaders=(
            UploaderProgress(uploader="uploader-h-3", files=100, duplicates=1, bytes=100 * 10**9, upload_seconds=50.0,
                             first_at=NOW - 105, last_at=NOW - 1),
        ),
        costs=(msgspec.convert({"device": "cuda", **sums}, CostSums, strict=False),),
        checks=CHECKED,
    )  # fmt: skip
    failed = (FailedJob(f"{QUEUE}-000007", f"extract batch 7 of {RUN}", "the sample in row 3 is broken"),)
    run = RunFacts(
        record=RunRecord(run_id=RUN, model="Qwen/Qwen3-8B", samples=2000, tokens=200_000, batches=200,
                         squares=2 * 10**8, submitted_at=NOW - 700),
        progress=progress,
        extract=QueueFacts(name=QUEUE, counts=QueueCounts(queued=93, started=6, failed=1), failed=failed),
        proved=False,
        recent=points(),
    )  # fmt: skip
    base = Facts(
        lease_seconds=45.0,
        store="s3://bucket/runs",
        runs=(run,),
        uploads=(QueueFacts(name="upload-default", counts=QueueCounts(queued=3, started=2)),),
        workers=(worker("gpu_worker-h-1"), worker("gpu_worker-h-2"), worker("uploader-h-3", "uploader")),
        hands={"gpu_worker-h-1": (f"{QUEUE}-000101",)},
        spool=SpoolUsage(
            files=5, bytes=5 * GIB, part_bytes=GIB, cap_bytes=50 * GIB, disk_free_bytes=900 * GIB
        ),
        spool_name="default",
        upload_queue="upload-default",
    )
    return msgspec.structs.replace(base, **changes)
