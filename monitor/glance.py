"""The live view of a window that has room for a line per question and no more."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from monitor.terminal import printable
from monitor.views import RunView, Snapshot
from monitor.words import share

#: Of verdicts, in windows of any size.
STYLES = {"good": "green", "warn": "yellow", "bad": "bold red", "unknown": "dim"}
MARKS = {"good": "✓", "warn": "▲", "bad": "✕", "unknown": "–"}
_TOPICS = {"busy": "GPUs", "upload": "upload", "done": "done", "wrong": "wrong", "disk": "disk"}
_WIDTH, _HEIGHT = 56, 18


def is_tiny(width: int, height: int) -> bool:
    """Whether a window of so many columns and lines has no room for more."""
    return width < _WIDTH or height < _HEIGHT


def at_a_glance(snapshot: Snapshot, shown: Sequence[RunView]) -> list[Text]:
    """A line for each answer, each run and each problem, in this order; each is cut where the window ends."""
    lines = []
    for answer in snapshot.answers:
        style = STYLES[answer.verdict]
        topic = (f"{_TOPICS[answer.about]:6} ", "bold")
        lines.append(
            Text.assemble((f"{MARKS[answer.verdict]} ", style), topic, (printable(answer.brief), style))
        )
    lines += [
        Text.assemble(f"{share(run.done, 1)} {run.state} ", (printable(run.run_id), "bold")) for run in shown
    ]
    lines += [Text(printable(problem), style="red") for problem in snapshot.problems]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines
