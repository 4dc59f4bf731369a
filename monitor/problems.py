"""What a person should know of the runs, as sentences: failures, what stands still, who is silent, a full spool. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hiddenfeed.words import count_text
from monitor.commands import run_of
from monitor.facts import Facts
from monitor.views import ProcessView, RunView, SpoolView, UploadQueueView

#: Share of the spool's cap from which it is worth a warning.
_NEARLY_FULL = 0.9
#: How the reason of a GPU worker begins that a run's model, tokens or self-test keeps from serving it.
_CANNOT_SERVE = "cannot serve "
#: Processes with the same trouble that are named.
_MOST_NAMED = 5
_OVER = ("complete", "cancelled")


def unserved(
    uploads: Sequence[UploadQueueView], processes: Sequence[ProcessView]
) -> list[tuple[UploadQueueView, int]]:
    """Queues of uploads that no living uploader takes from, each with the files that wait in it."""
    living = [each for each in processes if each.role == "uploader" and each.state != "silent"]
    served = {each.queue for each in living}
    # One that looks for work has no queue yet.
    waiting = [(queue, queue.queued + queue.started + queue.retrying) for queue in uploads]
    return [(queue, count) for queue, count in waiting if count and not served & {queue.name, ""}]


def looked_at(runs: Sequence[RunView]) -> Sequence[RunView]:
    """Runs whose trouble is trouble now: those that are not over, or else the last one. The others show their own."""
    return [run for run in runs if run.state not in _OVER] or runs[-1:]


def failed_now(queue: UploadQueueView, runs: Sequence[RunView]) -> int:
    """Files that failed to upload, without those of runs that nobody looks at any more."""
    past = {run.run_id for run in runs} - {run.run_id for run in looked_at(runs)}
    # Only the newest are known by name; what is older than those of past runs is past as well.
    of_past = sum(run_of(failure.job_id) in past for failure in queue.failures)
    return 0 if of_past == len(queue.failures) > 0 else queue.failed - of_past


def foreign_keys(keys: Sequence[str]) -> list[str]:
    """A sentence for each key in Redis that should be ours and holds something else."""
    found = [
        f"the key {key} in Redis holds something of another kind, put there by another program: what it should tell is unknown"
        for key in keys[:_MOST_NAMED]
    ]
    if len(keys) > _MOST_NAMED:
        found.append(f"{count_text(len(keys) - _MOST_NAMED, 'more key')} of another kind in Redis")
    return found


def _of_run(run: RunView, facts: Facts, processes: tuple[ProcessView, ...]) -> list[str]:
    found = []
    if run.failed:
        found.append(
            f"{count_text(run.failed, 'batch', 'batches')} of {run.run_id} failed and must be looked at"
        )
    if run.set_aside:
        found.append(
            f"{count_text(run.set_aside, 'sample')} of {run.run_id} set aside, the last because: {run.set_aside_reason}"
        )
    if run.state == "stalled":
        waits = sorted(
            {process.waits_for for process in processes if process.role == "gpu_worker" and process.waits_for}
        )
        why = f"its workers wait: {', '.join(waits)}" if waits else "no GPU worker takes its batches"
        found.append(f"{run.run_id} stands still: {why}")
    if run.state == "complete" and run.proved is False:
        found.append(
            f"Redis says that {run.run_id} is complete, and {facts.store} holds no proof of it: is --store the right one?"
        )
    return found


def problems_of(
    facts: Facts,
    runs: tuple[RunView, ...],
    uploads: tuple[UploadQueueView, ...],
    processes: tuple[ProcessView, ...],
    spool: SpoolView | None,
) -> list[str]:
    """What a person should know, the worst first, a sentence each."""
    found = [error for error in (facts.redis_error, facts.store_error) if error]
    found += foreign_keys(facts.foreign)
    for run in looked_at(runs):
        found += _of_run(run, facts, processes)
    for queue, waiting in unserved(uploads, processes):
        found.append(f"no uploader takes from {queue.name}: {count_text(waiting, 'file')} waiting")
    for queue in uploads:
        if failed := failed_now(queue, runs):
            found.append(
                f"{count_text(failed, 'file', 'files')} of {queue.name} failed to upload and must be looked at"
            )
    silent = [process for process in processes if process.state == "silent"]
    found += [
        f"{process.name} has been silent for {process.heartbeat_seconds_ago:.0f} s"
        for process in silent[:_MOST_NAMED]
    ]
    if len(silent) > _MOST_NAMED:
        found.append(
            f"silent as well: {count_text(len(silent) - _MOST_NAMED, 'more process', 'more processes')}"
        )
    hindered = [
        process
        for process in processes
        if process.state == "waiting" and process.waits_for.startswith(_CANNOT_SERVE)
    ]
    found += [f"{process.name} {process.waits_for}" for process in hindered[:_MOST_NAMED]]
    if len(hindered) > _MOST_NAMED:
        found.append(f"cannot serve a run: {count_text(len(hindered) - _MOST_NAMED, 'more GPU worker')}")
    if spool and spool.used >= _NEARLY_FULL:
        found.append(f"the spool {spool.name} is {spool.used:.0%} full: GPU workers wait for uploads")
    return found
