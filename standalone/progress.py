"""Where a run stands, in one line: pure functions of counters, pace, the time left and log lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from common.eta import Estimate
from common.pace import Pace
from common.queues import QueueCounts
from common.run_state import Progress, RunRecord
from hiddenfeed.layout import check_run_id
from hiddenfeed.words import count_text

_BAR_WIDTH = 20


def progress_line(
    record: RunRecord,
    progress: Progress,
    extract: QueueCounts,
    upload: QueueCounts,
    pace: Pace,
    left: Estimate | None,
    trouble: str = "",
    part: str = "",
) -> str:
    """`[#####...............] 25%  10/40 batches  1,020 tokens/s  3 files on their way  about 35 s left (31 s to 39 s)`

    `part` is what is going on before the first batch and after the last one.
    """
    done = min(1.0, progress.tokens / record.tokens) if record.tokens else 1.0
    filled = int(done * _BAR_WIDTH)
    parts = [
        f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {min(99, int(done * 100)) if done < 1 else 100:3d}%",
        f"{progress.batches:,}/{count_text(record.batches, 'batch', 'batches')}",
    ]
    if pace.rate is not None:
        parts.append(f"{pace.rate:,.0f} tokens/s")
    if upload.unfinished:
        parts.append(
            f"{count_text(upload.unfinished, 'file')} on {'its' if upload.unfinished == 1 else 'their'} way"
        )
    if extract.failed or upload.failed:
        parts.append(f"{extract.failed + upload.failed} failed")
    if progress.batches >= record.batches:
        parts.append(part or "proving")
    elif left is not None and not pace.late:
        parts.append(str(left))
    elif not (progress.batches or extract.started or extract.failed):
        parts.append(part or "loading the model")
    if trouble:
        parts.append(trouble)
    return "  ".join(parts)


def announced_run(lines: Iterable[str]) -> str | None:
    """The run's id out of the producer's JSON log lines; None as long as it has not said it."""
    for entry in _entries(lines):
        if isinstance(run_id := entry.get("run"), str):
            return check_run_id(run_id)
    return None


def warnings(lines: Iterable[str]) -> list[str]:
    """The warnings among a role's JSON log lines."""
    return [str(entry.get("message")) for entry in _entries(lines) if entry.get("level") == "warning"]


def statements(lines: Iterable[str]) -> list[str]:
    """What the producer has to say of data, model and plan, out of its JSON log lines; no progress, no warnings."""
    return [
        str(entry.get("message"))
        for entry in _entries(lines)
        if (entry.get("source"), entry.get("level")) == ("producer", "info")
    ]


def doing(lines: Iterable[str]) -> str:
    """How far the producer is, by its own last words; empty if it has not said."""
    said = [str(entry.get("message")) for entry in _entries(lines) if entry.get("source") == "progress"]
    return said[-1] if said else ""


def latest_warning(lines: Iterable[str], not_before: float) -> tuple[float, str]:
    """When a role last warned, in seconds since the epoch, and of what; (0, "") if not since `not_before`."""
    found = (0.0, "")
    for entry in _entries(lines):
        if entry.get("level") not in ("warning", "error"):
            continue
        try:
            at = datetime.fromisoformat(str(entry.get("time"))).timestamp()
        except ValueError:
            continue
        reason = str(entry.get("error") or entry.get("why") or "")
        if at >= max(not_before, found[0]):
            found = (at, ": ".join(filter(None, [str(entry.get("message")), reason])))
    return found


def _entries(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError:
            continue
