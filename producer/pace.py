"""How fast a run goes and how long it will take, in one line: pure functions of counters and a clock."""

from __future__ import annotations

from collections import deque

from hiddenfeed.report import size_text
from producer.console import duration
from producer.submission import Standing

#: The rate is that of the last minute, so that it follows what happens.
WINDOW_SECONDS = 60.0


class Pace:
    """Tokens per second of late, from looks at a counter."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()

    def look(self, now: float, tokens: int) -> float | None:
        """Tokens per second over the last minute; None until something has moved."""
        if self._looks and tokens < self._looks[-1][1]:
            # The counter began anew.
            self._looks.clear()
        self._looks.append((now, tokens))
        while len(self._looks) > 2 and self._looks[1][0] <= now - WINDOW_SECONDS:
            self._looks.popleft()
        then, before = self._looks[0]
        return (tokens - before) / (now - then) if tokens > before and now > then else None


def standing_line(
    standing: Standing, *, tokens: int, batches: int, rate: float | None, workers: int | None
) -> str:
    """`34%, 12 of 40 batches, 1.2 GiB, 1,020 tokens/s, about 35 s left, 8 queued, 3 running`

    `tokens` and `batches` are the run's; `workers` is how many GPU workers are alive, None if that is not known.
    """
    progress, counts = standing.progress, standing.counts
    parts = [
        f"{min(1.0, progress.tokens / max(1, tokens)):.0%}",
        f"{progress.batches} of {batches} batches",
        size_text(progress.bytes),
    ]
    if rate:
        parts += [f"{rate:,.0f} tokens/s", f"about {duration((tokens - progress.tokens) / rate)} left"]
    queued = counts.queued + standing.pending
    parts += [
        f"{number:,} {word}" for number, word in ((queued, "queued"), (counts.started, "running")) if number
    ]
    parts += [
        f"{number:,} {word}"
        for number, word in ((counts.scheduled, "to be tried again"), (counts.failed, "failed"))
        if number
    ]
    if standing.state == "paused":
        parts.append("paused")
    elif workers == 0 and queued:
        parts.append("no GPU worker is there")
    return ", ".join(parts)
