"""What a person should know of the runs, as sentences: failures, what stands still, who is silent, a full spool. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hiddenfeed.words import count_text
from monitor.facts import Facts
from monitor.views import ProcessView, RunView, SpoolView, UploadQueueView

#: Share of the spool's cap from which it is worth a warning.
_NEARLY_FULL = 0.9
#: How the reason of a GPU worker begins that a run's model, tokens or self-test keeps from serving it.
_CANNOT_SERVE = "cannot serve "
#: Processes with the same trouble that are named.
_MOST_NAMED = 5


def unserved(
    uploads: Sequence[UploadQueueView], processes: Sequence[ProcessView]
) -> list[tuple[UploadQueueView, int]]:
    """Queues of uploads that no living uploader takes from, each with the files that wait in it."""
    living = [each for each in processes if each.role == "uploader" and each.state != "silent"]
    served = {each.queue for each in living}
    # One that looks for work has no queue yet.
    waiting = [(queue, queue.queued + queue.started + queue.retrying) for queue in uploads]
    return [(queue, count) for queue, count in waiting if count and not served & {queue.name, ""}]


def foreign_keys(keys: Sequence[str]) -> list[str]:
    """A sentence for each key in Redis that should be ours and holds something else."""
    found = [
        f"the key {key} in Redis holds something of another kind, put there by another program: what it should tell is unknown"
        for key in keys[:_MOST_NAMED]
    ]
    if len(keys) > _MOST_NAMED:
        found.append(f"{count_text(len(keys) - _MOST_NAMED, 'more key')} of another kind in Redis")
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
    for run in runs:
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
                {
                    process.waits_for
                    for process in processes
                    if process.role == "gpu_worker" and process.waits_for
                }
            )
            why = f"its workers wait: {', '.join(waits)}" if waits else "no GPU worker takes its batches"
            found.append(f"{run.run_id} stands still: {why}")
        if run.state == "complete" and run.proved is False:
            found.append(
                f"Redis says that {run.run_id} is complete, and {facts.store} holds no proof of it: is --store the right one?"
            )
    for queue, waiting in unserved(uploads, processes):
        found.append(f"no uploader takes from {queue.name}: {count_text(waiting, 'file')} waiting")
    for queue in uploads:
        if queue.failed:
            found.append(
                f"{count_text(queue.failed, 'file', 'files')} of {queue.name} failed to upload and must be looked at"
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
