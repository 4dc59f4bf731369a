"""What people want to know of the runs: a pure function of facts and a clock."""

from __future__ import annotations

import re
from collections.abc import Sequence

from common.check_words import findings
from common.eta import Estimate, estimate
from common.queues import FailedJob
from common.run_state import UploaderProgress, WorkerProgress
from common.worker.presence import WorkerInfo
from monitor.answers import answers, main_run, when_done
from monitor.commands import retry_command
from monitor.facts import Facts, QueueFacts, RunFacts
from monitor.problems import foreign_keys, problems_of
from monitor.rows import MISSED_SECONDS, host_of
from monitor.trend import recent_of, spool_pace, until
from monitor.views import (
    DeviceView,
    FailureView,
    HostView,
    ProcessView,
    RunView,
    Snapshot,
    SpoolView,
    UploaderView,
    UploadQueueView,
)
from monitor.words import cut

#: Characters of a reason that are shown; the job itself has all of it.
_LONGEST_TEXT = 2000


def take_snapshot(facts: Facts, now: float) -> Snapshot:
    """What `facts` mean at `now`, in seconds since the epoch; Redis's clock, where it is known, counts in its place."""
    now = facts.clock or now
    processes = tuple(_process(worker, facts.lease_seconds, now) for worker in facts.workers)
    runs = tuple(_run(run, facts, processes, now) for run in facts.runs)
    uploads = tuple(_upload(queue) for queue in facts.uploads)
    spool = _spool(facts, now)
    problems = tuple(problems_of(facts, runs, uploads, processes, spool))
    return Snapshot(
        at=now,
        problems=problems,
        answers=answers(problems, runs, uploads, processes, spool, facts.redis_error),
        main_run=main.run_id if (main := main_run(runs)) else "",
        when_done=tuple(when_done(run, uploads, processes) for run in runs),
        live=facts.live,
        runs=runs,
        uploads=uploads,
        processes=processes,
        spool=spool,
        store=facts.store,
        redis_error=facts.redis_error,
        store_error=facts.store_error,
        unreadable=tuple(foreign_keys(facts.foreign)),
        exit_code=facts.exit_code,
    )


def _run(run: RunFacts, facts: Facts, processes: tuple[ProcessView, ...], now: float) -> RunView:
    record, progress, counts = run.record, run.progress, run.extract.counts
    state = _state(run, facts, processes)
    left = _time_left(run, state, processes, now)
    workers = tuple(_devices(run, facts, processes, now))
    return RunView(
        run_id=record.run_id,
        state=state,
        model=record.model,
        batches=progress.batches,
        batches_total=record.batches,
        samples=progress.samples,
        samples_total=record.samples,
        tokens=progress.tokens,
        tokens_total=record.tokens,
        size_bytes=progress.bytes,
        done=1.0 if state == "complete" else _share(progress.tokens, record.tokens),
        proved=run.proved,
        tokens_per_second=progress.tokens_per_second,
        samples_per_second=progress.samples_per_second,
        remaining_seconds=left.seconds if left else None,
        remaining_low_seconds=left.low_seconds if left else None,
        remaining_high_seconds=left.high_seconds if left else None,
        queued=counts.queued,
        started=counts.started,
        retrying=counts.scheduled,
        failed=counts.failed,
        failures=_failures(run.extract.failed),
        retries=_failures(run.extract.retrying),
        workers=workers,
        hosts=_hosts(workers),
        uploaders=tuple(_uploader(uploader, now) for uploader in progress.uploaders),
        set_aside=progress.set_aside,
        set_aside_reason=cut(progress.set_aside_reason, _LONGEST_TEXT),
        recent=recent_of(run.recent, now),
        checks=progress.checks,
        findings=findings(progress.checks, progress.halvings),
        halvings=progress.halvings,
        quarantined_batches=sum(worker.quarantined for worker in progress.workers),
    )


def _state(run: RunFacts, facts: Facts, processes: tuple[ProcessView, ...]) -> str:
    """One word for where the run is."""
    record, counts = run.record, run.extract.counts
    if record.state != "active":
        return record.state
    if run.proved:
        return "complete"
    if run.progress.batches >= record.batches:
        return "proving"
    if counts.started:
        return "running"
    if any(queue.counts.unfinished for queue in facts.uploads) and not counts.unfinished:
        return "uploading"
    if not any(process.queue == run.extract.name and process.state != "silent" for process in processes):
        return "stalled" if run.progress.batches else "waiting"
    return "running" if run.progress.batches else "waiting"


def _time_left(run: RunFacts, state: str, processes: tuple[ProcessView, ...], now: float) -> Estimate | None:
    """Until the last batch is stored; None where nobody can say."""
    record, progress = run.record, run.progress
    if state not in ("running", "uploading"):
        return None
    living = [
        process.name
        for process in processes
        if process.role == "gpu_worker" and process.queue == run.extract.name and process.state != "silent"
    ]
    if living and (progress.costs or progress.first_costs):
        return estimate(record, progress, living, now)
    if state == "running" and not living:
        return None
    rate = progress.stored_tokens_per_second
    if not rate:
        return None
    # Nobody computes any more, or programs did not say what batches cost: by tokens, with a wide range.
    seconds = max(0, record.tokens - progress.tokens) / rate
    return Estimate(seconds=seconds, low_seconds=seconds / 2, high_seconds=seconds * 2)


def _devices(run: RunFacts, facts: Facts, processes: tuple[ProcessView, ...], now: float) -> list[DeviceView]:
    """Those that did something for the run, and those that serve it and have not yet."""
    known = {worker.worker: worker for worker in run.progress.workers}
    serving = {
        process.name: process.state
        for process in processes
        if process.role == "gpu_worker" and (process.name in known or process.queue == run.extract.name)
    }
    for name in serving:
        known.setdefault(name, WorkerProgress(worker=name))
    return [
        _device(
            worker,
            serving.get(name, "gone"),
            tuple(job for job in facts.hands.get(name, ()) if job.rpartition("-")[0] == run.extract.name),
            now,
        )
        for name, worker in sorted(known.items())
    ]


def _device(worker: WorkerProgress, state: str, current: tuple[str, ...], now: float) -> DeviceView:
    stages = worker.stage_seconds
    whole = sum(stages.values())
    return DeviceView(
        worker=worker.worker,
        device=worker.device,
        kind=worker.kind,
        batches=worker.batches,
        samples=worker.samples,
        tokens=worker.tokens,
        size_bytes=worker.bytes,
        tokens_per_second=worker.tokens_per_second,
        samples_per_second=worker.samples_per_second,
        stages={name: _share(seconds, whole) for name, seconds in stages.items()},
        padding=worker.padding,
        last_seconds_ago=_ago(worker.last_computed_at or worker.last_at, now),
        state=state,
        busy=worker.busy,
        current=current,
        halvings=worker.halvings,
        quarantined=worker.quarantined,
    )


def _hosts(workers: tuple[DeviceView, ...]) -> tuple[HostView, ...]:
    """Of workers that are there, or were within the last hour."""
    found: dict[str, str] = {}
    for worker in workers:
        if worker.state != "gone" or (worker.last_seconds_ago or MISSED_SECONDS) < MISSED_SECONDS:
            host = host_of(worker.worker)
            found[host] = found.get(host, "") + worker.state[0]
    return tuple(HostView(host=host, states=states) for host, states in sorted(found.items(), key=_natural))


def _natural(host: tuple[str, str]) -> list[tuple[int, str]]:
    """`node9` before `node10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", host[0])]


def _uploader(uploader: UploaderProgress, now: float) -> UploaderView:
    return UploaderView(
        uploader=uploader.uploader,
        files=uploader.files,
        duplicates=uploader.duplicates,
        size_bytes=uploader.bytes,
        bytes_per_second=uploader.bytes_per_second,
        transfer_bytes_per_second=uploader.transfer_bytes_per_second,
        last_seconds_ago=_ago(uploader.last_at, now),
    )


def _upload(queue: QueueFacts) -> UploadQueueView:
    counts = queue.counts
    return UploadQueueView(
        name=queue.name,
        queued=counts.queued,
        started=counts.started,
        retrying=counts.scheduled,
        failed=counts.failed,
        failures=_failures(queue.failed),
        retries=_failures(queue.retrying),
    )


def _process(worker: WorkerInfo, lease_seconds: float, now: float) -> ProcessView:
    ago = _ago(worker.last_heartbeat, now)
    if ago is not None and ago > lease_seconds:
        state = "silent"
    elif worker.running:
        state = "busy"
    else:
        state = "waiting" if worker.waiting else "idle"
    return ProcessView(
        name=worker.name,
        role=worker.role,
        state=state,
        queue=worker.queue or "",
        running=worker.running,
        slots=worker.slots,
        finished=worker.finished,
        failed=worker.failed,
        waits_for=cut(worker.waiting, _LONGEST_TEXT),
        heartbeat_seconds_ago=ago,
    )


def _spool(facts: Facts, now: float) -> SpoolView | None:
    usage = facts.spool
    if usage is None:
        return None
    points = max(
        (run.recent for run in facts.runs), key=lambda recent: recent[-1].at if recent else 0, default=()
    )
    pace = spool_pace(points, usage, now)
    full, empty = until(usage, pace)
    return SpoolView(
        name=facts.spool_name,
        files=usage.files,
        size_bytes=usage.bytes,
        part_bytes=usage.part_bytes,
        cap_bytes=usage.cap_bytes,
        disk_free_bytes=usage.disk_free_bytes,
        used=_share(usage.bytes + usage.part_bytes, usage.cap_bytes),
        bytes_per_second=pace,
        full_in_seconds=full,
        empty_in_seconds=empty,
    )


def _failures(jobs: Sequence[FailedJob]) -> tuple[FailureView, ...]:
    return tuple(
        FailureView(
            job_id=job.job_id,
            description=cut(job.description, _LONGEST_TEXT),
            error=cut(job.error, _LONGEST_TEXT),
            command=retry_command(job.job_id),
        )
        for job in jobs
    )


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0


def _ago(moment: float, now: float) -> float | None:
    return max(0.0, now - moment) if moment else None
