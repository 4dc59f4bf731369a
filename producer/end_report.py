"""How a run went, put together when it is complete: from its documents, its proof, and what Redis remembers of it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from common.batch_cost import fit
from common.check_words import Finding, findings
from common.checks import Checks
from common.history import Point, Rates, rates_of
from common.run_state import Progress, UploaderProgress, WorkerProgress
from hiddenfeed.proof import ComputedWith, Proof
from hiddenfeed.run import RunDocument

REPORT_VERSION = 1


class WorkerLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU worker did."""

    worker: str
    device: str
    #: What the device is, as `NVIDIA H200`; empty if nobody said.
    kind: str = ""
    batches: int
    samples: int
    tokens: int
    tokens_per_second: float | None
    #: Share of the clock in which the device computed.
    busy: float | None
    #: Share of padding in what the device saw.
    padding: float
    #: Seconds of all its batches, by stage.
    seconds: dict[str, float]


class UploaderLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one uploader did."""

    uploader: str
    files: int
    duplicates: int
    size_bytes: int
    bytes_per_second: float | None
    transfer_bytes_per_second: float | None


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How different the workers were, in tokens per second."""

    slowest: float
    median: float
    fastest: float


class UploadLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far uploads were behind, over the points of the history."""

    mean_files: float
    most_files: int
    #: Mean files over files stored per second: how long a file waited on average.
    mean_seconds: float | None


class CostLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch cost on a kind of device: seconds = a · thousand tokens + b · million squared lengths."""

    device: str
    batches: int
    a: float
    b: float
    #: Standard deviation of one batch's seconds over their mean.
    spread: float


class EndReport(msgspec.Struct, frozen=True, kw_only=True):
    """report.json."""

    report_version: int = REPORT_VERSION
    run_id: str
    store: str
    model: str
    taps: tuple[int, ...]
    dtype: str
    #: Seconds since the epoch; None where Redis does not remember.
    first_batch_at: float | None
    last_batch_at: float | None
    seconds: float | None
    tokens_per_second: float | None
    samples_per_second: float | None
    stored_bytes_per_second: float | None
    #: The proof in numbers; its files are in complete.json.
    proof: dict[str, Any]
    #: Share of padding in the plan, and in what the devices saw.
    padding_planned: float
    padding_seen: float | None
    workers: tuple[WorkerLine, ...]
    spread: Spread | None
    uploaders: tuple[UploaderLine, ...]
    upload_lag: UploadLag | None
    costs: tuple[CostLine, ...]
    rates: tuple[Rates, ...]
    #: What was checked of the batches that Redis was told of: the worst of each kind, and the same in sentences.
    checks: Checks
    findings: tuple[Finding, ...]
    #: Reasons of skipped rows and quarantined samples, with how many there were of each, the most frequent first.
    skipped: dict[str, int]
    quarantined: dict[str, int]
    #: What the states were computed with, and in how many files.
    computed: tuple[ComputedWith, ...]
    #: Of the producer, which made the plan.
    versions: dict[str, str]
    settings: dict[str, Any]


def make_report(
    document: RunDocument,
    proof: Proof,
    store: str,
    progress: Progress | None,
    points: Sequence[Point],
    skipped: dict[str, int],
    quarantined: dict[str, int],
) -> EndReport:
    """The report; `progress` is None where Redis could not be read."""
    known = progress or Progress(run_id=document.run_id)
    workers = tuple(_worker(worker) for worker in known.workers)
    seconds = known.last_at - known.first_at if known.batches > 1 else None
    padded = sum(worker.padded_tokens for worker in known.workers)
    return EndReport(
        run_id=document.run_id,
        store=store,
        model=document.model,
        taps=document.identity.taps,
        dtype=document.identity.dtype,
        first_batch_at=known.first_at or None,
        last_batch_at=known.last_at or None,
        seconds=seconds,
        tokens_per_second=known.tokens_per_second,
        samples_per_second=known.samples_per_second,
        stored_bytes_per_second=known.bytes / seconds if seconds else None,
        proof={
            name: value
            for name, value in msgspec.to_builtins(proof).items()
            if name not in ("files", "computed")
        },
        padding_planned=1 - document.plan.tokens / max(1, document.plan.padded_tokens),
        padding_seen=max(0.0, 1 - sum(worker.tokens for worker in known.workers) / padded)
        if padded
        else None,
        workers=workers,
        spread=_spread(workers),
        uploaders=tuple(_uploader(uploader) for uploader in known.uploaders),
        upload_lag=_lag(points),
        costs=tuple(
            CostLine(device=sums.device, batches=cost.batches, a=cost.a, b=cost.b, spread=cost.spread)
            for sums in known.costs
            if (cost := fit(sums)) is not None
        ),
        rates=tuple(rates_of(points)),
        checks=known.checks,
        findings=findings(known.checks, known.halvings),
        skipped=skipped,
        quarantined=quarantined,
        computed=proof.computed,
        versions=document.versions,
        settings=document.settings,
    )


def _worker(worker: WorkerProgress) -> WorkerLine:
    return WorkerLine(
        worker=worker.worker,
        device=worker.device,
        kind=worker.kind,
        batches=worker.batches,
        samples=worker.samples,
        tokens=worker.tokens,
        tokens_per_second=worker.tokens_per_second,
        busy=worker.busy,
        padding=worker.padding,
        seconds=worker.stage_seconds,
    )


def _uploader(uploader: UploaderProgress) -> UploaderLine:
    return UploaderLine(
        uploader=uploader.uploader,
        files=uploader.files,
        duplicates=uploader.duplicates,
        size_bytes=uploader.bytes,
        bytes_per_second=uploader.bytes_per_second,
        transfer_bytes_per_second=uploader.transfer_bytes_per_second,
    )


def _spread(workers: Sequence[WorkerLine]) -> Spread | None:
    rates = [worker.tokens_per_second for worker in workers if worker.tokens_per_second is not None]
    if not rates:
        return None
    return Spread(slowest=min(rates), median=statistics.median(rates), fastest=max(rates))


def _lag(points: Sequence[Point]) -> UploadLag | None:
    if len(points) < 2:
        return None
    mean = statistics.mean(point.backlog for point in points)
    per_second = (points[-1].batches - points[0].batches) / (points[-1].at - points[0].at)
    # Little's law: how many there are, over how many come through per second.
    seconds = mean / per_second if per_second > 0 else None
    return UploadLag(mean_files=mean, most_files=max(point.backlog for point in points), mean_seconds=seconds)
