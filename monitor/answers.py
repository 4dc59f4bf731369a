"""The five questions that people ask of a run, answered from what the snapshot shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hiddenfeed.words import count_text, duration_text, size_rate_text, size_text
from monitor.problems import failed_now, looked_at, unserved
from monitor.views import Answer, ProcessView, RunView, SpoolView, UploadQueueView, left_text
from monitor.words import share

QUESTIONS = {
    "busy": "Is every GPU busy?",
    "upload": "Is upload keeping up?",
    "done": "When will it be done?",
    "wrong": "What went wrong?",
    "disk": "Is the disk filling?",
}
#: Extraction that is faster than upload by less than this is no reason to worry.
_FASTER = 1.1
#: A spool that is nearly full, or half full and will be full so soon, is worth a look.
_NEARLY_FULL, _HALF_FULL, _SOON_SECONDS = 0.9, 0.5, 1800.0
#: What would happen later than this is not worth saying.
_FAR_SECONDS = 48 * 3600.0
#: Different reasons to wait that are told.
_MOST_REASONS = 2
_OVER = ("complete", "cancelled")


def answers(
    problems: Sequence[str],
    runs: Sequence[RunView],
    uploads: Sequence[UploadQueueView],
    processes: Sequence[ProcessView],
    spool: SpoolView | None,
    redis_error: str = "",
) -> tuple[Answer, ...]:
    """One sentence for each question."""
    if redis_error:
        # What the spool's own folder says is known all the same.
        unknown = [
            _answer(about, "unknown", "unknown", "not known while Redis is away")
            for about in ("busy", "upload", "done")
        ]
        return (*unknown, _wrong(problems, looked_at(runs), uploads), _disk(spool, processes))
    going = [run for run in runs if run.state not in _OVER]
    return (
        _busy(runs, going, processes),
        _upload(runs, going, uploads, processes),
        _done(runs, uploads, processes, named=len(going) > 1),
        _wrong(problems, looked_at(runs), uploads),
        _disk(spool, processes),
    )


def main_run(runs: Sequence[RunView]) -> RunView | None:
    """The one that is asked about where nobody chose: the first that goes on and can be foreseen, or the last of all."""
    going = [run for run in runs if run.state not in _OVER]
    foreseen = [run for run in going if run.remaining_seconds is not None]
    return next(iter([*foreseen, *going, *runs[-1:]]), None)


def when_done(
    run: RunView, uploads: Sequence[UploadQueueView], processes: Sequence[ProcessView], *, named: bool = False
) -> Answer:
    """When that run will be done; `named` where others go on as well."""
    if run.state in _OVER:
        return _answer("done", "good", run.state, f"{run.run_id} is {run.state}")
    text = f"{run.run_id}: {share(run.done, 1)}" if named else share(run.done, 1)
    if left := left_text(run):
        if unserved(uploads, processes):
            return _answer(
                "done", "bad", "waits for uploads", f"{text}, {left} once files are uploaded again"
            )
        return _answer("done", "good", f"about {duration_text(run.remaining_seconds)}", f"{text}, {left}")
    verdict = {"stalled": "bad", "paused": "warn"}.get(run.state, "unknown")
    brief = {"stalled": "standing still", "paused": "paused"}.get(run.state, "not known yet")
    return _answer("done", verdict, brief, f"{text}, {run.state}; how long it will take is not known yet")


def _answer(about: str, verdict: str, brief: str, text: str) -> Answer:
    return Answer(about=about, question=QUESTIONS[about], verdict=verdict, brief=brief, text=text)


def _busy(runs: Sequence[RunView], going: Sequence[RunView], processes: Sequence[ProcessView]) -> Answer:
    workers = [process for process in processes if process.role == "gpu_worker"]
    alive = [worker for worker in workers if worker.state != "silent"]
    busy = [worker for worker in alive if worker.state == "busy"]
    if runs and not going and not busy and len(alive) == len(workers):
        idle = f"; {count_text(len(alive), 'worker')} idle" if alive else ""
        return _answer("busy", "good", "nothing to do", f"there is nothing to do{idle}")
    if not workers:
        needed = any(run.queued or run.started for run in going)
        return _answer("busy", "bad" if needed else "unknown", "no worker", "no GPU worker is there")
    text = f"{len(busy):,} of {count_text(len(workers), 'worker')} busy"
    shares = [
        device.busy
        for run in going
        for device in run.workers
        if device.busy is not None and device.state == "busy"
    ]
    if shares:
        text += f", devices computing {sum(shares) / len(shares):.0%} of the time"
    reasons = {worker.waits_for for worker in alive if worker.state == "waiting" and worker.waits_for}
    if reasons:
        text += f"; waiting: {_listed(reasons)}"
    if silent := len(workers) - len(alive):
        return _answer("busy", "bad", f"{silent:,} of {len(workers):,} silent", f"{text}; {silent:,} silent")
    queued = any(run.queued for run in going if run.state != "paused")
    missed = _missed(going)
    if missed:
        text += f"; {missed:,} gone within the last hour"
    short = queued and (len(busy) < len(alive) or missed)
    return _answer(
        "busy", "warn" if short or reasons else "good", f"{len(busy):,} of {len(workers):,} busy", text
    )


def _missed(going: Sequence[RunView]) -> int:
    """GPU workers that worked on a run within the last hour and are known no more."""
    return sum(host.states.count("g") for run in going for host in run.hosts)


def _listed(reasons: set[str]) -> str:
    """The first few."""
    told = sorted(reasons)[:_MOST_REASONS]
    if more := len(reasons) - len(told):
        told.append(f"and {count_text(more, 'other reason')}")
    return "; ".join(told)


def _why(failing: Sequence[RunView] | Sequence[UploadQueueView]) -> str:
    """The latest reason to try again, in brackets."""
    reasons = [failure.error for each in failing for failure in each.retries if failure.error]
    return f" ({reasons[0]})" if reasons else ""


def _upload(
    runs: Sequence[RunView],
    going: Sequence[RunView],
    uploads: Sequence[UploadQueueView],
    processes: Sequence[ProcessView],
) -> Answer:
    waiting = sum(queue.queued + queue.started + queue.retrying for queue in uploads)
    retrying = sum(queue.retrying for queue in uploads)
    failed = sum(failed_now(queue, runs) for queue in uploads)
    text = f"{count_text(waiting, 'file')} on the way"
    if retrying:
        text += f", {retrying:,} to be tried again{_why(uploads)}"
    if failed:
        text += f", {failed:,} failed"
    recent = [run.recent for run in going if run.recent is not None]
    verdict, brief = "good", "keeping up" if waiting or recent else "nothing to upload"
    if going and waiting and not recent:
        # Nobody has watched for long enough.
        verdict, brief = "unknown", "not known yet"
    if recent:
        extracted = sum(each.extract_bytes_per_second for each in recent)
        stored = sum(each.upload_bytes_per_second for each in recent)
        growth = max(each.backlog_growth for each in recent)
        text += f"; {size_rate_text(stored)} stored, {size_rate_text(extracted)} extracted"
        if extracted > _FASTER * stored and growth > 1:
            text += f", {count_text(growth, 'file')} more than {duration_text(recent[0].seconds)} ago"
            verdict, brief = "warn", "falling behind"
    if retrying:
        verdict, brief = "warn", "trying again"
    if failed:
        verdict, brief = "bad", f"{count_text(failed, 'file')} failed"
    if unserved(uploads, processes):
        verdict, brief = "bad", "no uploader"
        text += "; no uploader is there to take them"
    return _answer("upload", verdict, brief, text)


def _done(
    runs: Sequence[RunView],
    uploads: Sequence[UploadQueueView],
    processes: Sequence[ProcessView],
    *,
    named: bool,
) -> Answer:
    run = main_run(runs)
    if run is None:
        return _answer("done", "unknown", "no runs yet", "no runs yet")
    return when_done(run, uploads, processes, named=named)


def _wrong(problems: Sequence[str], runs: Sequence[RunView], uploads: Sequence[UploadQueueView]) -> Answer:
    batches, files = (sum(each.retrying for each in failing) for failing in (runs, uploads))
    if problems:
        more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        return _answer("wrong", "bad", count_text(len(problems), "problem"), problems[0] + more)
    if batches:
        text = f"{count_text(batches, 'batch', 'batches')} to be tried again{_why(runs)}"
        return _answer("wrong", "warn", "trying again", text)
    if files:
        text = f"{count_text(files, 'file')} to be tried again{_why(uploads)}"
        return _answer("wrong", "warn", "trying again", text)
    return _answer("wrong", "good", "nothing", "nothing")


def _disk(spool: SpoolView | None, processes: Sequence[ProcessView]) -> Answer:
    held = {process.waits_for for process in processes if process.waits_for.startswith(("disk", "spool"))}
    if spool is None:
        if held:
            return _answer("disk", "bad", "workers wait", f"workers of other hosts wait: {_listed(held)}")
        return _answer("disk", "unknown", "no spool here", "this host has no spool")
    text = f"{share(spool.used)} of {size_text(spool.cap_bytes)} used by {count_text(spool.files, 'file')}"
    verdict, brief = "good", f"{share(spool.used)} full"
    if spool.full_in_seconds is not None and spool.full_in_seconds < _FAR_SECONDS:
        soon = f"full in {duration_text(spool.full_in_seconds)}"
        text += f", {soon}"
        if spool.full_in_seconds < _SOON_SECONDS and spool.used > _HALF_FULL:
            verdict, brief = "warn", soon
    elif spool.empty_in_seconds is not None and spool.used:
        text += f", empty in {duration_text(spool.empty_in_seconds)}"
    text += f"; {size_text(spool.disk_free_bytes)} free on disk"
    if spool.used >= _NEARLY_FULL:
        verdict, brief = "bad", f"{share(spool.used)} full"
    if held:
        text += f"; workers wait: {_listed(held)}"
        verdict, brief = "bad", "workers wait"
    return _answer("disk", verdict, brief, text)
