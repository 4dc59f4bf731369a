"""The snapshot as a live view in the terminal, cut to the window; what comes from Redis is text, never markup."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hiddenfeed.words import count_text, size_rate_text, size_text
from monitor.glance import MARKS, STYLES, at_a_glance, is_tiny
from monitor.looks import snapshots
from monitor.rows import (
    UPLOADER_HEAD,
    bare_rate,
    batches_text,
    busy_share,
    device_text,
    need,
    short_name,
    uploader_row,
)
from monitor.terminal import printable
from monitor.views import DeviceView, RunView, Snapshot, UploadQueueView, left_text, proof_note
from monitor.words import ago, rate, share, short

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
_STAGE_WIDTH, _NARROW_STAGE_WIDTH = 16, 10
#: A window that is less wide gets fewer columns and shorter words; one that is wider also names devices.
_NARROW, _WIDE = 110, 170
#: Problems beyond the one that answers what went wrong, and failed batches of a run.
_MOST_PROBLEMS, _MOST_FAILURES = 4, 3
#: Processes that are named because they wait or are silent.
_MOST_WAITING = 3
#: Upload queues, one per host, that are named.
_MOST_QUEUES = 4


@dataclass(frozen=True)
class _Room:
    """How much of a window a run gets."""

    width: int
    workers: int
    uploaders: int

    @property
    def narrow(self) -> bool:
        """Whether words must be short."""
        return self.width < _NARROW


def watch(
    read: Callable[[], Snapshot], refresh_seconds: float, stop: Event, console: Console | None = None
) -> None:
    """Show what `read` says until `stop` is set."""
    console = console or Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for snapshot in snapshots(read, refresh_seconds, stop):
            live.update(view(snapshot, console), refresh=True)


def view(snapshot: Snapshot, console: Console) -> RenderableType:
    """Everything that fits into the window, the most important first."""
    going = [run for run in snapshot.runs if run.state not in ("complete", "cancelled")]
    shown = going or list(snapshot.runs[-1:])
    if is_tiny(console.width, console.height):
        return Group(*at_a_glance(snapshot, shown)[: max(1, console.height - 1)])
    bare = _parts(snapshot, shown, _Room(console.width, 0, 0))
    spare = (console.height - len(console.render_lines(bare, pad=False))) // max(1, len(shown))
    # A line each says how many there are more.
    uploaders = max(0, min(max((len(run.uploaders) for run in shown), default=0), spare // 4))
    return _parts(snapshot, shown, _Room(console.width, max(1, spare - uploaders), uploaders))


def _parts(snapshot: Snapshot, shown: Sequence[RunView], room: _Room) -> Group:
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
    parts: list[RenderableType] = [
        Text.assemble(("hiddenfeed ", "bold"), clock, "  ", (printable(snapshot.store), "dim")),
        _answers(snapshot),
    ]
    parts += [
        Text(printable(f"✕ {problem}"), style="red", no_wrap=room.narrow, overflow="ellipsis")
        for problem in snapshot.problems[1 : 1 + _MOST_PROBLEMS]
    ]
    for run in shown:
        parts += [Text(), *_run(run, proof_note(run, snapshot), room, alone=len(shown) == 1)]
    if not room.narrow:
        parts.append(Text())
    return Group(*parts, *_host(snapshot, room))


def _answers(snapshot: Snapshot) -> Table:
    table = Table.grid(padding=(0, 1))
    for answer in snapshot.answers:
        style = STYLES[answer.verdict]
        table.add_row(
            Text(MARKS[answer.verdict], style=style),
            Text(answer.question, style="bold", no_wrap=True),
            Text(printable(answer.text), style=style),
        )
    return table


def _run(run: RunView, proof: str, room: _Room, *, alone: bool) -> list[RenderableType]:
    state = f"{run.state}, {proof}" if proof else run.state
    head = Text.assemble(
        (printable(run.run_id), "bold"),
        "  ",
        (state, _STATES.get(run.state, "")),
        "  ",
        (printable(run.model), "dim"),
        no_wrap=True,
        overflow="ellipsis",
    )
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(justify="right")
    bar.add_row(ProgressBar(total=1.0, completed=run.done), Text(share(run.done, 1), style="bold"))
    parts: list[RenderableType] = [head, bar, *_numbers(run, room, alone=alone), *_findings(run, room)]
    if run.workers:
        parts.append(_workers(run.workers, room))
        if not room.narrow:
            parts.append(_legend())
    if run.uploaders:
        parts.append(_uploaders(run, room))
    parts += [
        Text(
            printable(f"✕ {failure.description or failure.job_id}: {failure.error}"),
            style="red",
            no_wrap=True,
            overflow="ellipsis",
        )
        for failure in run.failures[: 1 if room.narrow else _MOST_FAILURES]
    ]
    return parts


def _findings(run: RunView, room: _Room) -> list[RenderableType]:
    """What went wrong, and of what was well only the canaries: the window is small."""
    wrong = [finding for finding in run.findings if finding.verdict in ("warn", "bad")]
    texts = [
        Text(
            printable(f"{MARKS[finding.verdict]} {finding.text}"),
            style=STYLES[finding.verdict],
            no_wrap=True,
            overflow="ellipsis",
        )
        for finding in wrong[: 1 if room.narrow else _MOST_FAILURES]
    ]
    checks = run.checks
    if checks.canary_cosine is not None:
        text = f"checked: {count_text(checks.batches, 'batch', 'batches')}, recomputed samples agree by {checks.canary_cosine.value:.5f} or more"
        texts.append(Text(text, style="dim", no_wrap=True, overflow="ellipsis"))
    return list(texts)


def _numbers(run: RunView, room: _Room, *, alone: bool) -> list[RenderableType]:
    """How much is done and how fast; the time left of a run that is alone stands in the answers."""
    pace = f"{rate(run.tokens_per_second, 'tokens')}, {rate(run.samples_per_second, 'samples')}"
    left = "" if alone else left_text(run)
    queue = f"{run.queued:,} queued, {run.started:,} started"
    if room.narrow:
        done = (
            f"{short(run.tokens)} of {short(run.tokens_total)} tokens, {run.batches:,} of "
            f"{count_text(run.batches_total, 'batch', 'batches')}, {size_text(run.size_bytes)} stored"
        )
        queue += f", {run.retrying:,} retrying" if run.retrying else ""
        queue += f", {run.failed:,} failed" if run.failed else ""
        lines = [done, f"{pace}; {queue}", left]
    else:
        done = (
            f"{run.tokens:,} of {count_text(run.tokens_total, 'token')}, {run.samples:,} of {count_text(run.samples_total, 'sample')}, "
            f"{run.batches:,} of {count_text(run.batches_total, 'batch', 'batches')}, {size_text(run.size_bytes)} stored"
        )
        queue += f", {run.retrying:,} to be tried again, {run.failed:,} failed"
        lines = [done, f"{pace}{f', {left}' if left else ''}; {queue}"]
    return [Text(line, no_wrap=True, overflow="ellipsis") for line in lines if line]


def _workers(workers: Sequence[DeviceView], room: _Room) -> Table:
    # Those that need a look come first, if not all fit.
    fit = len(workers) <= room.workers
    rows = len(workers) if fit else max(0, room.workers - 1)
    ordered = workers if fit else sorted(workers, key=need)
    columns = _columns(room.width)
    table = _table(*columns)
    for worker in ordered[:rows]:
        table.add_row(*(cell(worker) for cell in columns.values()))
    if len(workers) > rows and room.workers:
        table.add_row(Text(f"and {len(workers) - rows:,} more", style="dim"))
    return table


def _columns(width: int) -> dict[str, Callable[[DeviceView], RenderableType]]:
    """Heads of the columns that fit into the width, and what is in them."""
    narrow = width < _NARROW
    bar = _NARROW_STAGE_WIDTH if narrow else _STAGE_WIDTH
    columns: dict[str, Callable[[DeviceView], RenderableType]] = {
        "worker": lambda each: Text(printable(short_name(each.worker)), no_wrap=True, overflow="ellipsis"),
        "state": lambda each: Text(each.state, style=_STATES.get(each.state, "")),
        "device": lambda each: Text(printable(device_text(each)), no_wrap=True, overflow="ellipsis"),
        "tokens/s": lambda each: bare_rate(each.tokens_per_second),
        "samples/s": lambda each: bare_rate(each.samples_per_second),
        "busy": busy_share,
        "time": lambda each: _stages(each, bar),
        "padding": lambda each: f"{each.padding:.1%}",
        "batch": lambda each: Text(printable(batches_text(each.current)), no_wrap=True),
        "last": lambda each: ago(each.last_seconds_ago),
    }
    left_out = {"samples/s", "padding", "device"} if narrow else {"device"} if width < _WIDE else set()
    return {name: cell for name, cell in columns.items() if name not in left_out}


def _legend() -> Text:
    words = [part for stage, letter, style in _STAGES for part in ((letter, style), f" {stage}  ")]
    return Text.assemble("time of its batches: ", *words, style="dim")


def _stages(worker: DeviceView, width: int) -> Text:
    bar = Text()
    for stage, letter, style in _STAGES:
        bar.append(letter * round(worker.stages.get(stage, 0.0) * width), style=style)
    return bar


def _uploaders(run: RunView, room: _Room) -> RenderableType:
    if room.narrow:
        together = sum(each.bytes_per_second or 0.0 for each in run.uploaders)
        return Text(
            f"{count_text(len(run.uploaders), 'uploader')}: {size_rate_text(together)} together since their first file",
            no_wrap=True,
            overflow="ellipsis",
        )
    fit = len(run.uploaders) <= room.uploaders
    rows = len(run.uploaders) if fit else max(0, room.uploaders - 1)
    table = _table(*UPLOADER_HEAD)
    for uploader in run.uploaders[:rows]:
        name, *others = uploader_row(uploader)
        table.add_row(Text(printable(short_name(name)), no_wrap=True), *others)
    if len(run.uploaders) > rows and room.uploaders:
        table.add_row(Text(f"and {len(run.uploaders) - rows:,} more", style="dim"))
    return table


def _host(snapshot: Snapshot, room: _Room) -> list[RenderableType]:
    parts: list[RenderableType] = [
        Text(
            printable(
                f"{queue.name}: {count_text(queue.queued, 'file')} queued, {queue.started:,} on their way, "
                f"{queue.retrying:,} {'retrying' if room.narrow else 'to be tried again'}, {queue.failed:,} failed"
            ),
            no_wrap=True,
            overflow="ellipsis",
        )
        for queue in _worth_a_line(snapshot.uploads)
    ]
    if room.narrow:
        # The answers say it as well.
        return parts
    waiting = [process for process in snapshot.processes if process.state in ("waiting", "silent")]
    parts += [
        Text(
            printable(
                f"{process.name} is {process.state}: {process.waits_for or ago(process.heartbeat_seconds_ago)}"
            ),
            style=_STATES[process.state],
            no_wrap=True,
            overflow="ellipsis",
        )
        for process in waiting[:_MOST_WAITING]
    ]
    return parts


def _worth_a_line(queues: Sequence[UploadQueueView]) -> list[UploadQueueView]:
    """Those with most to do, in the order of their names."""
    busiest = sorted(
        queues, key=lambda queue: (-queue.failed, -queue.queued - queue.started - queue.retrying)
    )
    return sorted(busiest[:_MOST_QUEUES], key=lambda queue: queue.name)


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        left = name in ("worker", "uploader", "state", "device", "time")
        # What is wide gives way, so that no number is cut.
        gives_way = name in ("worker", "uploader", "device")
        table.add_column(
            name,
            justify="left" if left else "right",
            no_wrap=True,
            min_width=None if gives_way else len(name),
        )
    return table
