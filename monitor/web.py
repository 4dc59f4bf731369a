"""The snapshot as a plain page that renews itself, as JSON, and as a health answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from html import escape

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from hiddenfeed.words import count_text, size_rate_text, size_text
from monitor.prometheus import CONTENT_TYPE_LATEST, exposition
from monitor.views import FailureView, RunView, Snapshot, proof_note, time_left_text, unknown_note
from monitor.words import ago, rate, share

#: A snapshot serves all who ask within this time, so that many open pages cost Redis no more than one.
_KEPT_SECONDS = 0.5
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { max-width: 70rem; margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem; overflow-wrap: anywhere; }
.problem { border-left: .3rem solid #c62828; padding: .3rem .7rem; margin: .4rem 0; overflow-wrap: anywhere; }
.state { font-weight: normal; border: 1px solid; border-radius: 1rem; padding: .05rem .6rem; font-size: .85rem; }
progress { width: 100%; height: 1.1rem; accent-color: #2e7d32; }
.wide { overflow-x: auto; } table { border-collapse: collapse; }
th, td { padding: .2rem .9rem .2rem 0; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; border-bottom: 1px solid; }
.quiet { opacity: .75; }
"""


def make_app(read: Callable[[], Snapshot], refresh_seconds: float) -> Starlette:
    """The page's application; `read` takes a snapshot and may block, raising nothing."""
    current = _Current(read)

    def page(_: Request) -> Response:
        return HTMLResponse(render_page(current.get(), refresh_seconds), headers=_HEADERS)

    def document(_: Request) -> Response:
        return Response(msgspec.json.encode(current.get()), media_type="application/json", headers=_HEADERS)

    def health(_: Request) -> Response:
        error = current.get().redis_error
        answer = {"status": "unavailable", "reason": error} if error else {"status": "ok"}
        return JSONResponse(answer, status_code=503 if error else 200, headers=_HEADERS)

    def metrics(_: Request) -> Response:
        return Response(exposition(current.get()), media_type=CONTENT_TYPE_LATEST, headers=_HEADERS)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/snapshot.json", document),
            Route("/healthz", health),
            Route("/metrics", metrics),
        ]
    )


class _Current:
    """The latest snapshot, taken anew when it is too old. For several threads."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read, self._lock = read, threading.Lock()
        self._snapshot: Snapshot | None = None
        self._taken = 0.0

    def get(self) -> Snapshot:
        """A snapshot that is at most half a second old."""
        with self._lock:
            if self._snapshot is None or time.monotonic() - self._taken > _KEPT_SECONDS:
                self._snapshot, self._taken = self._read(), time.monotonic()
            return self._snapshot


def render_page(snapshot: Snapshot, refresh_seconds: float) -> str:
    """The page; every text is escaped, whoever wrote it into Redis."""
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot.at))
    parts = [f'<p class="problem" role="alert">{escape(problem)}</p>' for problem in snapshot.problems]
    if not snapshot.runs and not snapshot.problems:
        parts.append("<p>No runs yet.</p>")
    if note := unknown_note(snapshot):
        parts.append(f'<p class="quiet">{escape(note)}</p>')
    parts += [_run(run, proof_note(run, snapshot)) for run in snapshot.runs]
    parts.append(_host(snapshot))
    store = f", store {escape(snapshot.store)}" if snapshot.store else ""
    # No faster than once a second: a page that is being read should not jump.
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>hiddenfeed</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="refresh" content="{max(1, round(refresh_seconds))}"><style>{_STYLE}</style></head>'
        f'<body><main><h1>hiddenfeed</h1><p class="quiet">{clock}{store}</p>{"".join(parts)}</main></body></html>'
    )


def _run(run: RunView, proof: str) -> str:
    left = f", {text}" if (text := time_left_text(run)) else ""
    parts = [
        f'<section><h2>{escape(run.run_id)} <span class="state">{escape(run.state)}'
        f"{f', {proof}' if proof else ''}</span></h2>",
        f'<progress max="1" value="{run.done:.4f}" aria-label="share of tokens stored">{share(run.done)}</progress>',
        f"<p>{share(run.done)}: {run.batches:,} of {count_text(run.batches_total, 'batch', 'batches')}, {run.samples:,} of "
        f"{count_text(run.samples_total, 'sample')}, {run.tokens:,} of {count_text(run.tokens_total, 'token')}, {size_text(run.size_bytes)} stored.<br>"
        f"{rate(run.tokens_per_second, 'tokens')}, {rate(run.samples_per_second, 'samples')}{left}.<br>"
        f"Batches: {run.queued:,} queued, {run.started:,} started, {run.retrying:,} to be tried again, "
        f'{run.failed:,} failed.<br><span class="quiet">Model {escape(run.model)}</span></p>',
    ]
    if run.workers:
        parts.append(
            _table(
                (
                    "GPU worker",
                    "device",
                    "batches",
                    "rate",
                    "read",
                    "forward",
                    "stall",
                    "write",
                    "padding",
                    "last",
                ),
                (
                    (
                        worker.worker,
                        worker.device,
                        f"{worker.batches:,}",
                        rate(worker.tokens_per_second, "tokens"),
                        *(share(worker.stages[stage]) for stage in ("read", "forward", "stall", "write")),
                        f"{worker.padding:.1%}",
                        ago(worker.last_seconds_ago),
                    )
                    for worker in run.workers
                ),
            )
        )
    if run.uploaders:
        parts.append(
            _table(
                ("uploader", "files", "size", "rate", "each file", "duplicates", "last"),
                (
                    (
                        uploader.uploader,
                        f"{uploader.files:,}",
                        size_text(uploader.size_bytes),
                        size_rate_text(uploader.bytes_per_second),
                        size_rate_text(uploader.transfer_bytes_per_second),
                        f"{uploader.duplicates:,}",
                        ago(uploader.last_seconds_ago),
                    )
                    for uploader in run.uploaders
                ),
            )
        )
    return "".join([*parts, _failures(run.failures), "</section>"])


def _host(snapshot: Snapshot) -> str:
    parts = ["<section><h2>Uploads and processes</h2>"]
    parts += [
        f"<p>{escape(queue.name)}: {count_text(queue.queued, 'file')} queued, {queue.started:,} on their way, "
        f"{queue.retrying:,} to be tried again, {queue.failed:,} failed.</p>{_failures(queue.failures)}"
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
    return "".join([*parts, "</section>"])


def _failures(failures: Sequence[FailureView]) -> str:
    if not failures:
        return ""
    items = "".join(
        f"<li>{escape(failure.description or failure.job_id)}: {escape(failure.error)}</li>"
        for failure in failures
    )
    return f"<ul>{items}</ul>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
