"""The snapshot as plain markup: what the page shows before its script has run, and to those who run none.

Every text is escaped, whoever wrote it into Redis.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape

from common.check_words import STATE_HEAD, STATES_TITLE, state_row
from hiddenfeed.words import count_text, size_text
from monitor.rows import (
    STAGES,
    UPLOADER_HEAD,
    device_text,
    stage_shares,
    uploader_row,
)
from monitor.views import DeviceView, RunView, Snapshot, UploadQueueView, left_text, proof_note, unknown_note
from monitor.words import ago, rate, share


def render_plain(snapshot: Snapshot) -> str:
    """The whole snapshot."""
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot.at))
    store = f", store {escape(snapshot.store)}" if snapshot.store else ""
    parts = [f'<p class="muted">{clock}{store}</p>']
    parts += [f'<p class="problem" role="alert">{escape(problem)}</p>' for problem in snapshot.problems]
    if not snapshot.runs and not snapshot.problems:
        parts.append("<p>No runs yet.</p>")
    if note := unknown_note(snapshot):
        parts.append(f'<p class="muted">{escape(note)}</p>')
    if snapshot.runs:
        parts.append(_answers(snapshot))
    parts += [_run(run, proof_note(run, snapshot)) for run in snapshot.runs]
    parts.append(_host(snapshot))
    return "".join(parts)


def _answers(snapshot: Snapshot) -> str:
    items = "".join(
        f'<li class="{escape(answer.verdict)}"><p class="q">{escape(answer.question)}</p>'
        f'<p class="b">{escape(answer.brief)}</p><p class="a">{escape(answer.text)}</p></li>'
        for answer in snapshot.answers
    )
    return f'<ul class="answers">{items}</ul>'


def _run(run: RunView, proof: str) -> str:
    left = f", {text}" if (text := left_text(run)) else ""
    parts = [
        f'<section><h2>{escape(run.run_id)} <span class="state">{escape(run.state)}'
        f"{f', {proof}' if proof else ''}</span></h2>",
        f'<progress max="1" value="{run.done:.4f}" aria-label="share of tokens stored">{share(run.done)}</progress>',
        f"<p>{share(run.done)}: {run.batches:,} of {count_text(run.batches_total, 'batch', 'batches')}, {run.samples:,} of "
        f"{count_text(run.samples_total, 'sample')}, {run.tokens:,} of {count_text(run.tokens_total, 'token')}, {size_text(run.size_bytes)} stored.<br>"
        f"{rate(run.tokens_per_second, 'tokens')}, {rate(run.samples_per_second, 'samples')}{left}.<br>"
        f"Batches: {run.queued:,} queued, {run.started:,} started, {run.retrying:,} to be tried again, "
        f'{run.failed:,} failed.<br><span class="muted">Model {escape(run.model)}</span></p>',
    ]
    if run.workers:
        head = ("GPU worker", "device", "batches", "rate", *STAGES, "padding", "last")
        parts.append(_table(head, map(_worker_row, run.workers)) + _more(run.more_workers))
    if run.uploaders:
        parts.append(_table(UPLOADER_HEAD, map(uploader_row, run.uploaders)) + _more(run.more_uploaders))
    if run.batches:
        parts.append(_checks(run))
    return "".join([*parts, _failures(run), "</section>"])


def _checks(run: RunView) -> str:
    items = "".join(f'<li class="{escape(each.verdict)}">{escape(each.text)}</li>' for each in run.findings)
    title = f'<p class="muted">{escape(STATES_TITLE)}</p>'
    states = title + _table(STATE_HEAD, map(state_row, run.checks.states)) if run.checks.states else ""
    return f"<h3>Checks</h3><ul>{items}</ul>{states}"


def _worker_row(worker: DeviceView) -> tuple[str, ...]:
    return (
        worker.worker,
        device_text(worker),
        f"{worker.batches:,}",
        rate(worker.tokens_per_second, "tokens"),
        *stage_shares(worker),
        f"{worker.padding:.1%}",
        ago(worker.last_seconds_ago),
    )


def _host(snapshot: Snapshot) -> str:
    parts = ["<section><h2>Uploads and processes</h2>"]
    parts += [
        f"<p>{escape(queue.name)}: {count_text(queue.queued, 'file')} queued, {queue.started:,} on their way, "
        f"{queue.retrying:,} to be tried again, {queue.failed:,} failed.</p>{_failures(queue)}"
        for queue in snapshot.uploads
    ]
    if snapshot.spool:
        spool = snapshot.spool
        parts.append(
            f"<p>Spool {escape(spool.name)}: {count_text(spool.files, 'file')}, {size_text(spool.size_bytes)}, "
            f"{size_text(spool.part_bytes)} being written, {share(spool.used)} of {size_text(spool.cap_bytes)}; "
            f"{size_text(spool.disk_free_bytes)} free on disk.</p>"
        )
    if snapshot.processes:
        parts.append(
            _table(
                ("process", "state", "jobs", "slots", "done", "failed", "seen", "waits for"),
                (
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
                ),
            )
        )
    return "".join([*parts, _more(snapshot.more_processes), "</section>"])


def _more(number: int) -> str:
    return f'<p class="muted">and {number:,} more</p>' if number else ""


def _failures(found: RunView | UploadQueueView) -> str:
    items = "".join(
        f"<li>{word}: {escape(failure.description or failure.job_id)}: {escape(failure.error)}</li>"
        for word, failures in (("failed", found.failures), ("to be tried again", found.retries))
        for failure in failures
    )
    return f"<ul>{items}</ul>" if items else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
