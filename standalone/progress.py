"""Where a run stands, in one line: pure functions of counters and a clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from common.queues import QueueCounts
from common.run_state import Progress, RunRecord
from hiddenfeed.layout import check_run_id

_BAR_WIDTH = 20
#: The rate shown is that of the last seconds, so that it follows what happens.
_WINDOW_SECONDS = 20.0


@dataclass
class Meter:
    """Tokens stored over time."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def rate(self, now: float, tokens: int) -> float | None:
        """Tokens per second of late; None until something has moved. Call it with every look."""
        self._seen.append((now, tokens))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _WINDOW_SECONDS:
            self._seen.popleft()
        (then, before) = self._seen[0]
        return (tokens - before) / (now - then) if tokens > before and now > then else None


def progress_line(
    record: RunRecord,
    progress: Progress,
    extract: QueueCounts,
    upload: QueueCounts,
    rate: float | None,
    trouble: str = "",
) -> str:
    """`[#####...............] 25%  10/40 batches  1,020 tokens/s  3 files on their way  about 35 s left`"""
    done = min(1.0, progress.tokens / record.tokens) if record.tokens else 1.0
    filled = int(done * _BAR_WIDTH)
    parts = [
        f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {min(99, int(done * 100)) if done < 1 else 100:3d}%",
        f"{progress.batches}/{record.batches} batches",
    ]
    if rate:
        parts.append(f"{rate:,.0f} tokens/s")
    if upload.unfinished:
        parts.append(f"{upload.unfinished} {'file' if upload.unfinished == 1 else 'files'} on their way")
    if extract.failed or upload.failed:
        parts.append(f"{extract.failed + upload.failed} failed")
    if progress.batches >= record.batches:
        parts.append("proving")
    elif rate:
        parts.append(f"about {short_duration((record.tokens - progress.tokens) / rate)} left")
    elif not (progress.batches or extract.started or extract.failed):
        parts.append("loading the model")
    if trouble:
        parts.append(trouble)
    return "  ".join(parts)


def announced_run(lines: Iterable[str]) -> str | None:
    """The run's id out of the producer's JSON log lines; None as long as it has not said it."""
    for entry in _entries(lines):
        if isinstance(run_id := entry.get("run_id"), str):
            return check_run_id(run_id)
    return None


def warnings(lines: Iterable[str]) -> list[str]:
    """The warnings among a role's JSON log lines."""
    return [str(entry.get("message")) for entry in _entries(lines) if entry.get("level") == "warning"]


def _entries(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError:
            continue


def short_duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `7 h 10 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60:02d} s"
        if whole < 3600
        else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    )
