"""Where a run stands, in one line: a pure function of counters and pace."""

from __future__ import annotations

from common.pace import Pace
from hiddenfeed.words import count_text, duration_text, size_text
from producer.submission import Standing


def standing_line(standing: Standing, pace: Pace, *, tokens: int, batches: int, workers: int | None) -> str:
    """`34%, 12 of 40 batches, 1.2 GiB, 1,020 tokens/s, about 35 s left, 8 queued, 3 running`

    `tokens` and `batches` are the run's; `workers` is how many GPU workers are alive, None if that is not known.
    """
    progress, counts = standing.progress, standing.counts
    parts = [
        f"{min(1.0, progress.tokens / max(1, tokens)):.0%}",
        f"{progress.batches:,} of {count_text(batches, 'batch', 'batches')}",
        size_text(progress.bytes),
    ]
    rate, left = pace.rate, pace.remaining_seconds(tokens)
    if rate is not None:
        parts.append(f"{rate:,.0f} tokens/s")
    if left is not None:
        parts.append(f"about {duration_text(left)} left")
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
