"""The snapshot as text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from common.check_words import STATE_HEAD, STATES_TITLE, state_row
from hiddenfeed.words import count_text, duration_text, size_text
from monitor.rows import (
    STAGES,
    UPLOADER_HEAD,
    bare_rate,
    batches_text,
    busy_share,
    device_text,
    stage_shares,
    uploader_row,
)
from monitor.views import DeviceView, RunView, Snapshot, UploadQueueView, left_text, proof_note, unknown_note
from monitor.words import ago, rate, share

_BAR_WIDTH = 24
_WORKER_HEAD = (
    "worker", "state", "device", "batches", "tokens/s", "samples/s", "busy", *STAGES, "padding", "last", "batch",
)  # fmt: skip
#: Columns of words.
_WORDS = ("state", "device", "waits for")
#: How a verdict is marked where there are no colours.
VERDICTS = {"good": "+", "warn": "~", "bad": "!", "unknown": "?"}


def render(snapshot: Snapshot) -> str:
    """The whole snapshot as lines of plain text, without a newline at the end."""
    return "\n".join(_lines(snapshot))


def _lines(snapshot: Snapshot) -> Iterator[str]:
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot.at))
    yield printable(f"hiddenfeed at {clock}{f', store {snapshot.store}' if snapshot.store else ''}")
    if snapshot.runs:
        for answer in snapshot.answers:
            yield printable(f"{VERDICTS[answer.verdict]} {answer.question:24} {answer.text}")
    # The first one is the answer to what went wrong.
    for problem in snapshot.problems[1 if snapshot.runs else 0 :]:
        yield printable(f"! {problem}")
    if note := unknown_note(snapshot):
        yield f"? {note}"
    if not snapshot.runs and not snapshot.problems:
        yield "no runs yet: `python -m producer run` submits one"
    for run in snapshot.runs:
        yield ""
        yield from map(printable, _run_lines(run, proof_note(run, snapshot)))
    yield ""
    yield from map(printable, _host_lines(snapshot))


def _run_lines(run: RunView, proof: str) -> Iterator[str]:
    filled = int(run.done * _BAR_WIDTH)
    yield f"{run.run_id}  {run.state}{f', {proof}' if proof else ''}  [{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {share(run.done)}"
    yield (
        f"  {run.batches:,} of {count_text(run.batches_total, 'batch', 'batches')}, "
        f"{run.samples:,} of {count_text(run.samples_total, 'sample')}, "
        f"{run.tokens:,} of {count_text(run.tokens_total, 'token')}, {size_text(run.size_bytes)} stored; model {run.model}"
    )
    left = f", {text}" if (text := left_text(run)) else ""
    yield f"  {rate(run.tokens_per_second, 'tokens')}, {rate(run.samples_per_second, 'samples')}{left}"
    yield f"  batches: {run.queued:,} queued, {run.started:,} started, {run.retrying:,} to be tried again, {run.failed:,} failed"
    if run.workers:
        yield from _table(_WORKER_HEAD, [_worker_row(worker) for worker in run.workers])
    if run.uploaders:
        yield from _table(UPLOADER_HEAD, [uploader_row(uploader) for uploader in run.uploaders])
    if run.batches:
        yield from (f"  checks {VERDICTS[finding.verdict]} {finding.text}" for finding in run.findings)
        if run.checks.states:
            yield f"  {STATES_TITLE}"
            yield from _table(STATE_HEAD, [state_row(state) for state in run.checks.states])
    yield from _failure_lines(run)


def _worker_row(worker: DeviceView) -> tuple[str, ...]:
    return (
        worker.worker,
        worker.state,
        device_text(worker),
        f"{worker.batches:,}",
        bare_rate(worker.tokens_per_second),
        bare_rate(worker.samples_per_second),
        busy_share(worker),
        *stage_shares(worker),
        f"{worker.padding:.1%}",
        ago(worker.last_seconds_ago),
        batches_text(worker.current),
    )


def _host_lines(snapshot: Snapshot) -> Iterator[str]:
    for queue in snapshot.uploads:
        yield (
            f"{queue.name}: {count_text(queue.queued, 'file')} queued, {queue.started:,} on their way, "
            f"{queue.retrying:,} to be tried again, {queue.failed:,} failed"
        )
        yield from _failure_lines(queue)
    if snapshot.spool:
        spool = snapshot.spool
        when = ""
        if spool.full_in_seconds is not None:
            when = f"; full in {duration_text(spool.full_in_seconds)}"
        elif spool.empty_in_seconds is not None and spool.files:
            when = f"; empty in {duration_text(spool.empty_in_seconds)}"
        yield (
            f"spool {spool.name}: {count_text(spool.files, 'file')}, {size_text(spool.size_bytes)} and {size_text(spool.part_bytes)} being written, "
            f"{share(spool.used)} of {size_text(spool.cap_bytes)}; {size_text(spool.disk_free_bytes)} free on disk{when}"
        )
    if snapshot.processes:
        yield from _table(
            ("process", "state", "jobs", "slots", "done", "failed", "seen", "waits for"),
            [
                (
                    process.name,
                    process.state,
                    f"{process.running:,}",
                    f"{process.slots:,}",
                    f"{process.finished:,}",
                    f"{process.failed:,}",
                    ago(process.heartbeat_seconds_ago),
                    process.waits_for,
                )
                for process in snapshot.processes
            ],
        )


def _failure_lines(found: RunView | UploadQueueView) -> Iterator[str]:
    for word, failures in (("failed", found.failures), ("to be tried again", found.retries)):
        for failure in failures:
            yield f"  {word}: {failure.description or failure.job_id}: {failure.error}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as their widest cell, words to the left and numbers to the right; nothing without rows."""
    if not rows:
        return
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if name in (head[0], *_WORDS) else cell.rjust(width)
            for name, cell, width in zip(head, row, widths, strict=True)
        ]
        yield ("  " + "  ".join(cells)).rstrip()


def printable(text: str) -> str:
    """The text without control characters: what comes from Redis must not command the terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)
