"""The snapshot as a live view in the terminal, cut to the window; what comes from Redis is text, never markup."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hiddenfeed.words import count_text, size_text
from monitor.rows import UPLOADER_HEAD, bare_rate, busy_share, uploader_row
from monitor.terminal import batches_of, printable
from monitor.views import DeviceView, RunView, Snapshot, proof_note, time_left_text
from monitor.words import ago, rate

_STYLES = {"good": "green", "warn": "yellow", "bad": "bold red", "unknown": "dim"}
_MARKS = {"good": "✓", "warn": "▲", "bad": "✕", "unknown": "–"}
_STATES = {
    "busy": "green", "running": "green", "complete": "green", "uploading": "green", "proving": "green",
    "idle": "yellow", "waiting": "yellow", "paused": "yellow", "cancelled": "yellow",
    "silent": "bold red", "gone": "red", "stalled": "bold red",
}  # fmt: skip
#: Stages with the letters and colours of their bar.
_STAGES = (
    ("read", "r", "magenta"),
    ("forward", "█", "blue"),
    ("stall", "·", "red"),
    ("write", "w", "yellow"),
)
_STAGE_WIDTH = 16
#: Lines that are not rows of workers.
_OTHER_LINES = 24


def watch(
    read: Callable[[], Snapshot], refresh_seconds: float, stop: Event, console: Console | None = None
) -> None:
    """Show what `read` says until `stop` is set."""
    console = console or Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while not stop.is_set():
            live.update(view(read(), console.height), refresh=True)
            stop.wait(refresh_seconds)


def view(snapshot: Snapshot, height: int) -> RenderableType:
    """Everything that fits into `height` lines, the most important first."""
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
    parts: list[RenderableType] = [
        Text.assemble(("hiddenfeed ", "bold"), clock, "  ", (printable(snapshot.store), "dim")),
        _answers(snapshot),
    ]
    parts += [Text(printable(f"✕ {problem}"), style="red") for problem in snapshot.problems[1:5]]
    going = [run for run in snapshot.runs if run.state not in ("complete", "cancelled")]
    shown = going or list(snapshot.runs[-1:])
    rows = max(3, (height - _OTHER_LINES) // max(1, len(shown)))
    for run in shown:
        parts += [Text(), *_run(run, proof_note(run, snapshot), rows)]
    parts += [Text(), *_host(snapshot)]
    return Group(*parts)


def _answers(snapshot: Snapshot) -> Table:
    table = Table.grid(padding=(0, 1))
    for answer in snapshot.answers:
        style = _STYLES[answer.verdict]
        table.add_row(
            Text(_MARKS[answer.verdict], style=style),
            Text(answer.question, style="bold"),
            Text(printable(answer.text), style=style),
        )
    return table


def _run(run: RunView, proof: str, rows: int) -> list[RenderableType]:
    state = f"{run.state}, {proof}" if proof else run.state
    head = Text.assemble(
        (printable(run.run_id), "bold"),
        "  ",
        (state, _STATES.get(run.state, "")),
        "  ",
        (printable(run.model), "dim"),
    )
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(justify="right")
    bar.add_row(ProgressBar(total=1.0, completed=run.done), Text(f"{run.done:.1%}", style="bold"))
    numbers = (
        f"{run.tokens:,} of {count_text(run.tokens_total, 'token')}, {run.samples:,} of {count_text(run.samples_total, 'sample')}, "
        f"{run.batches:,} of {count_text(run.batches_total, 'batch', 'batches')}, {size_text(run.size_bytes)} stored"
    )
    left = time_left_text(run)
    pace = f"{rate(run.tokens_per_second, 'tokens')}, {rate(run.samples_per_second, 'samples')}{f', {left}' if left else ''}"
    queue = f"{run.queued:,} queued, {run.started:,} started, {run.retrying:,} to be tried again, {run.failed:,} failed"
    parts: list[RenderableType] = [head, bar, Text(numbers), Text(pace), Text(queue)]
    parts += _findings(run)
    if run.workers:
        parts.append(_workers(run.workers, rows))
    if run.uploaders:
        parts.append(_uploaders(run, rows))
    parts += [
        Text(
            printable(f"✕ {failure.description or failure.job_id}: {failure.error}"),
            style="red",
            no_wrap=True,
        )
        for failure in run.failures[:3]
    ]
    return parts


def _findings(run: RunView) -> list[RenderableType]:
    """What went wrong, and of what was well only the canaries: the window is small."""
    wrong = [finding for finding in run.findings if finding.verdict in ("warn", "bad")]
    texts = [
        Text(
            printable(f"{_MARKS[finding.verdict]} {finding.text}"),
            style=_STYLES[finding.verdict],
            no_wrap=True,
        )
        for finding in wrong[:3]
    ]
    checks = run.checks
    if checks.canary_cosine is not None:
        text = f"checked: {count_text(checks.batches, 'batch', 'batches')}, recomputed samples agree by {checks.canary_cosine.value:.5f} or more"
        texts.append(Text(text, style="dim", no_wrap=True))
    return list(texts)


def _workers(workers: Sequence[DeviceView], rows: int) -> Table:
    # Those that need a look come first, if not all fit.
    ordered = sorted(workers, key=lambda worker: worker.state == "busy") if len(workers) > rows else workers
    table = _table(
        "worker", "state", "tokens/s", "samples/s", "busy", "time of its batches", "padding", "batch", "last"
    )
    for worker in ordered[:rows]:
        table.add_row(
            Text(printable(worker.worker), no_wrap=True),
            Text(worker.state, style=_STATES.get(worker.state, "")),
            bare_rate(worker.tokens_per_second),
            bare_rate(worker.samples_per_second),
            busy_share(worker),
            _stages(worker),
            f"{worker.padding:.1%}",
            Text(printable(", ".join(batches_of(worker.current)))),
            ago(worker.last_seconds_ago),
        )
    if len(workers) > rows:
        table.add_row(Text(f"and {len(workers) - rows:,} more", style="dim"))
    return table


def _stages(worker: DeviceView) -> Text:
    bar = Text()
    for stage, letter, style in _STAGES:
        bar.append(letter * round(worker.stages.get(stage, 0.0) * _STAGE_WIDTH), style=style)
    return bar


def _uploaders(run: RunView, rows: int) -> Table:
    table = _table(*UPLOADER_HEAD)
    for uploader in run.uploaders[:rows]:
        name, *others = uploader_row(uploader)
        table.add_row(Text(printable(name), no_wrap=True), *others)
    if len(run.uploaders) > rows:
        table.add_row(Text(f"and {len(run.uploaders) - rows:,} more", style="dim"))
    return table


def _host(snapshot: Snapshot) -> list[RenderableType]:
    parts: list[RenderableType] = [
        Text(
            printable(
                f"{queue.name}: {count_text(queue.queued, 'file')} queued, {queue.started:,} on their way, "
                f"{queue.retrying:,} to be tried again, {queue.failed:,} failed"
            )
        )
        for queue in snapshot.uploads
    ]
    waiting = [process for process in snapshot.processes if process.state in ("waiting", "silent")]
    parts += [
        Text(
            printable(
                f"{process.name} is {process.state}: {process.waits_for or ago(process.heartbeat_seconds_ago)}"
            ),
            style=_STATES[process.state],
        )
        for process in waiting[:3]
    ]
    return parts


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for number, name in enumerate(names):
        table.add_column(
            name, justify="left" if number < 2 or name == "time of its batches" else "right", no_wrap=True
        )
    return table
